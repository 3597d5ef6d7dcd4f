"""What happens with a request once it is over: everything learns, its decision is judged and kept, the shadow decides.

One observer in a fixed order: regret is told by the speed curves as learning leaves them, and goes into the row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from gateway.api.core import Learned
from gateway.decisions.log import DecisionLog
from gateway.decisions.metrics import DecisionMetrics, ShadowMetrics
from gateway.decisions.shadow import Shadow
from gateway.metrics import Metrics
from gateway.policy.load import PolicyInvalid, load_policy
from gateway.policy.watch import PolicyWatcher
from gateway.types import LoadView, Outcome

log = logging.getLogger("gateway.shadow")


class Hindsight:
    """`observe` every outcome; run `tasks` in the background."""

    def __init__(self, learned: Learned, decisions: DecisionLog, metrics: Metrics) -> None:
        self.decisions = decisions
        self.shadow: Shadow | None = None
        self._learned = learned
        self._metrics = metrics
        self._counted = DecisionMetrics(metrics)
        self._watcher: PolicyWatcher | None = None

    def cast_shadow(self, path: str, env: Mapping[str, str], view: LoadView, clock: Callable[[], float]) -> None:
        """Lets the policy in `path` decide silently from now on, and follows its file. Raises PolicyInvalid."""
        policy = load_policy(path, env)
        shadow = self.shadow = Shadow(policy, ShadowMetrics(self._metrics), view, clock)

        def on_failure(error: PolicyInvalid) -> None:
            log.error("shadow policy not reloaded, the last one goes on", extra={"fields": {"problems": str(error)}})

        self._watcher = PolicyWatcher(path, env, policy, on_change=shadow.adopt, on_failure=on_failure, clock=clock)

    def observe(self, outcome: Outcome) -> None:
        regret = self._learned.observe(outcome)
        self._counted.regretted(outcome, regret)
        self.decisions.observe(outcome, regret)
        if self.shadow:
            self.shadow.observe(outcome)

    def begin(self) -> list[Coroutine[Any, Any, None]]:
        """The endless tasks, once what earlier processes learned has been restored."""
        if self.shadow:
            self.shadow.learn_from(self._learned.routing)
        return [self.decisions.run(), *([self._watcher.run()] if self._watcher else [])]
