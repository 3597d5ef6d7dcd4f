"""How the canary policy does beside the live one, from the same outcomes.

Both serve real requests, so their times and regrets compare directly: a conversation's and a request's share is drawn
without a look at it. Flips are the canary's requests that the live policy would have sent elsewhere, decided again at
their end as the shadow policy does (`again.py`), with the time that the canary's choice saved or cost by the curves.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from gateway.decisions.again import Again
from gateway.decisions.metrics import CanaryMetrics
from gateway.policy.schema import Policy
from gateway.routing.state import RoutingState
from gateway.types import LoadView, Outcome


class CanaryJudge:
    """`observe` every outcome, with its regret."""

    def __init__(self, metrics: CanaryMetrics, view: LoadView, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._state = RoutingState(clock, Random(0), view)
        self._again: Again

    def adopt(self, live: Policy, share: float) -> None:
        """Takes the live policy, before anything else and whenever it changes, and the canary's share now."""
        self._again = Again(live, self._state)
        self._metrics.share.set(share)

    def learn_from(self, live: RoutingState) -> None:
        """Starts from the speeds that are known."""
        self._state.curves.merge({"live": live.curves.snapshot()})

    def observe(self, outcome: Outcome, regret: float | None) -> None:
        # Only what was routed compares; a path that is passed through has no estimate.
        if outcome.estimate is None or outcome.decision is None:
            return
        self._metrics.counted(outcome, regret)
        if outcome.canary is None:
            self._again.learn(outcome, outcome.decision)
        elif verdict := self._again.judge(outcome):
            self._metrics.judged(verdict)
