"""How the canary policy compares with the live one, from the outcomes of both.

Both serve real requests, and which policy a request gets does not depend on what it asks, so their times and regrets
compare directly. Flips are the canary's requests that the live policy would have sent elsewhere. They are decided again
when they end (`counterfactual.py`), with the time that the canary's choice saved or cost by the speed curves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from gateway.decisions.counterfactual import Counterfactual, Verdict
from gateway.decisions.metrics import CanaryMetrics
from gateway.policy.schema import Policy
from gateway.routing.state import RoutingState
from gateway.types import LoadView, Outcome, Result

MOST_MOVES = 5
FAILED = frozenset({Result.BACKEND_ERROR, Result.TRUNCATED, Result.TIMEOUT, Result.REJECTED})


@dataclass(slots=True)
class Arm:
    """Sums over the requests that one of the two has decided."""

    requests: int = 0
    failed: int = 0
    whole: int = 0
    seconds: float = 0.0
    """From arrival to the last byte, of whole answers."""
    judged: int = 0
    regret: float = 0.0
    """Seconds."""

    def add(self, outcome: Outcome, regret: float | None) -> None:
        self.requests += 1
        self.failed += outcome.result in FAILED
        if outcome.result is Result.OK:
            self.whole += 1
            self.seconds += outcome.ended - outcome.started
        if regret is not None:
            self.judged += 1
            self.regret += max(regret, 0.0)

    def object(self) -> dict[str, Any]:
        """Shares and means; None where there was no request to compute them from."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "failed_share": round(self.failed / self.requests, 5) if self.requests else None,
            "mean_seconds": round(self.seconds / self.whole, 5) if self.whole else None,
            "mean_regret": round(self.regret / self.judged, 5) if self.judged else None,
        }


class SideBySide:
    """The two policies in this process, since either last changed."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.live, self.canary = Arm(), Arm()
        self.moves: Counter[tuple[str, str, str]] = Counter()
        """Flips by model, the live policy's pool and the canary's."""
        self.saved = self.lost = 0.0

    def flipped(self, verdict: Verdict) -> None:
        self.moves[verdict.model, verdict.after or "", verdict.before] += 1
        # The verdict's gain is the live policy's.
        gain = -(verdict.gain or 0.0)
        self.saved += max(gain, 0.0)
        self.lost += max(-gain, 0.0)

    def object(self, now: float) -> dict[str, Any]:
        return {
            "for_seconds": round(now - self.since, 1),
            "live": self.live.object(),
            "canary": self.canary.object(),
            "flips": self.moves.total(),
            "saved": round(self.saved, 4),
            "lost": round(self.lost, 4),
            "moves": [
                {"model": model, "from": before or None, "to": after, "requests": requests}
                for (model, before, after), requests in self.moves.most_common(MOST_MOVES)
            ],
        }


class CanaryJudge:
    """`observe` every outcome, with its regret."""

    def __init__(self, metrics: CanaryMetrics, view: LoadView, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._state = RoutingState(clock, Random(0), view)
        self._other: Counterfactual
        self.beside = SideBySide(clock())

    def adopt(self, live: Policy, share: float) -> None:
        """Takes the live policy and the canary's share. Call it first, and when either policy changes."""
        self._other = Counterfactual(live, self._state)
        self.beside = SideBySide(self._clock())
        self._metrics.share.set(share)

    def object(self) -> dict[str, Any]:
        """The comparison since either policy last changed."""
        return self.beside.object(self._clock())

    def learn_from(self, live: RoutingState) -> None:
        """Starts from the speeds that the live policy has learned."""
        self._state.curves.merge({"live": live.curves.snapshot()})

    def observe(self, outcome: Outcome, regret: float | None) -> None:
        # Only what was routed compares; a path that is passed through has no estimate.
        if outcome.estimate is None or outcome.decision is None:
            return
        self._metrics.counted(outcome, regret)
        arm = self.beside.live if outcome.canary is None else self.beside.canary
        arm.add(outcome, regret)
        if outcome.canary is None:
            self._other.learn(outcome, outcome.decision)
        elif verdict := self._other.judge(outcome):
            self._metrics.judged(verdict)
            if verdict.flips:
                self.beside.flipped(verdict)
