"""The shadow policy: it decides every request a second time, without effect, so that its effect is known before use.

It judges requests as they end (`counterfactual.py`), off the path to the client, and has speed curves of its own. What
would have changed is counted in `gateway_shadow_*`; no request is ever sent anywhere because of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from gateway.decisions.counterfactual import Counterfactual
from gateway.decisions.metrics import ShadowMetrics
from gateway.policy.schema import Policy
from gateway.routing.state import RoutingState
from gateway.types import LoadView, Outcome

log = logging.getLogger("gateway.shadow")


class Shadow:
    """`observe` every outcome."""

    def __init__(self, policy: Policy, metrics: ShadowMetrics, view: LoadView, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._state = RoutingState(clock, Random(0), view)
        self._other = Counterfactual(policy, self._state)
        self.adopt(policy)

    @property
    def policy(self) -> Policy:
        return self._other.policy

    def adopt(self, policy: Policy) -> None:
        """Takes a policy, at the start and when its file changes; what was learned stays."""
        self._other = Counterfactual(policy, self._state)
        self._metrics.allow(policy.pools)
        if policy.header_names:
            log.warning("the shadow policy has conditions on headers, which never hold in the shadow")

    def learn_from(self, live: RoutingState) -> None:
        """Starts from the speeds that the live policy has learned, where pools are the same."""
        self._state.curves.merge({"live": live.curves.snapshot()})

    def observe(self, outcome: Outcome) -> None:
        """Decides one finished request again, and counts."""
        verdict = self._other.judge(outcome)
        if verdict is not None:
            self._metrics.shadowed(verdict)
