"""What happens to a request once it is over: all parts learn, its decision is judged and kept, the shadow decides.

It is one observer with a fixed order: regret is computed from the speed curves as learning leaves them, and is kept
with the decision.

Learning from an answer takes time, and what is learned are means over many. So above a certain rate only an even sample
of the answers teaches, and what is counted for one of them also counts for those left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

from gateway.api.core import Learned
from gateway.canary import Canary
from gateway.decisions.canary import CanaryJudge
from gateway.decisions.log import DecisionLog
from gateway.decisions.metrics import CanaryMetrics, DecisionMetrics, ShadowMetrics
from gateway.decisions.shadow import Shadow
from gateway.metrics import Metrics
from gateway.policy.load import PolicyInvalid, load_policy
from gateway.policy.watch import PolicyWatcher
from gateway.types import LoadView, Outcome

log = logging.getLogger("gateway.shadow")

LESSONS = 200.0
"""Finished requests per second and process that are learned from when there are more."""
LESSONS_AHEAD = 2000
"""Requests of a burst after a quiet time that are all learned from."""


class Lessons:
    """A token bucket over finished requests."""

    __slots__ = ("_left", "_seen", "_then")

    def __init__(self, now: float) -> None:
        self._left = float(LESSONS_AHEAD)
        self._seen = 0
        self._then = now

    def take(self, now: float) -> int:
        """The number of requests that the one which ended now stands for; 0 if it is not to be learned from."""
        self._seen += 1
        left = self._left + (now - self._then) * LESSONS
        self._then = now
        if left < 1.0:
            self._left = left
            return 0
        self._left = min(left, LESSONS_AHEAD) - 1.0
        seen, self._seen = self._seen, 0
        return seen


class Hindsight:
    """Call `observe` with every outcome, and run what `begin` returns in the background."""

    def __init__(self, learned: Learned, decisions: DecisionLog, metrics: Metrics, now: float) -> None:
        self.decisions = decisions
        self.shadow: Shadow | None = None
        self.canary: Canary | None = None
        self._learned = learned
        self._lessons = Lessons(now)
        self._metrics = metrics
        self._counted = DecisionMetrics(metrics)
        self._watcher: PolicyWatcher | None = None

    def cast_shadow(self, path: str, env: Mapping[str, str], view: LoadView, clock: Callable[[], float]) -> None:
        """Makes the policy in `path` the shadow, and follows its file. Raises PolicyInvalid."""
        policy = load_policy(path, env)
        shadow = self.shadow = Shadow(policy, ShadowMetrics(self._metrics), view, clock)

        def on_failure(error: PolicyInvalid) -> None:
            log.error(
                "shadow policy not reloaded; the last good one stays in use", extra={"fields": {"problems": str(error)}}
            )

        self._watcher = PolicyWatcher(path, env, policy, on_change=shadow.adopt, on_failure=on_failure)

    def send_canary(
        self,
        path: str,
        env: Mapping[str, str],
        view: LoadView,
        clock: Callable[[], float],
        rng: Random,
        on_change: Callable[[], None],
    ) -> Canary:
        """Makes the policy in `path` the canary, to be compared with the live one. Raises PolicyInvalid."""
        judge = CanaryJudge(CanaryMetrics(self._metrics), view, clock)
        self.canary = Canary(path, env, self._learned, judge, rng, on_change)
        return self.canary

    def observe(self, outcome: Outcome) -> None:
        regret = None
        # What never reached a back end has nothing to teach.
        if outcome.sent_upstream is not None and (stands_for := self._lessons.take(outcome.ended)):
            regret = self._learned.observe(outcome)
            self._counted.regretted(outcome, regret, stands_for)
        else:
            self._learned.skip(outcome)
        self.decisions.observe(outcome, regret)
        if self.shadow:
            self.shadow.observe(outcome)
        if self.canary:
            self.canary.judge.observe(outcome, regret)

    def begin(self) -> list[Coroutine[Any, Any, None]]:
        """The endless tasks. Call it once what earlier processes learned has been restored."""
        if self.shadow:
            self.shadow.learn_from(self._learned.routing)
        if self.canary:
            self.canary.judge.learn_from(self._learned.routing)
        followed = (self._watcher, self.canary)
        return [self.decisions.run(), *(one.run() for one in followed if one)]
