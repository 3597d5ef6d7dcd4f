"""Regret: the time that a decision lost or won, computed afterwards with the real length of the answer.

    regret = expected(taken, real length) - least expected(other allowed pool, real length)

Both sides are computed at the load of the decision: the expected time to the first token is kept, the decode time is
scaled to the real length. Above 0 another pool would have been faster; below 0 the choice was right. Both sides come
from the curves, so that the noise of a single request cancels out. Totals are kept per model and reason.

Regret compares one request with the other pools of the same fleet, all else being equal. It is not the gain over a
fleet of one kind, where every request would run elsewhere and every load would differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.routing.curves import Curves
from gateway.types import Outcome, Task
from gateway.words import OK

MOST_ROWS = 4096


@dataclass(slots=True)
class RegretRow:
    """Totals of one model and reason. Seconds."""

    requests: int = 0
    seconds: float = 0.0
    """Measured time from sending to the last token."""
    regret: float = 0.0
    """Total time lost by requests for which another pool would have been faster."""
    gain: float = 0.0
    """Total time won over the next best pool by requests whose pool was the fastest."""

    def share(self) -> float:
        """Regret as a share of the least possible time."""
        best = self.seconds - self.regret
        return self.regret / best if best > 0 else 0.0


class Regret:
    """Rows by (model, reason)."""

    def __init__(self, curves: Curves) -> None:
        self._curves = curves
        self.rows: dict[tuple[str, str], RegretRow] = {}

    def observe(self, outcome: Outcome) -> float | None:
        """Adds one outcome and returns its regret in seconds; None where there is nothing to compare."""
        decision, usage = outcome.decision, outcome.usage
        if outcome.result is not OK or decision is None or usage is None:
            return None
        estimate, tokens = outcome.estimate, usage.completion_tokens
        task, planned = (estimate.task, estimate.output_tokens) if estimate else (Task.UNKNOWN, 1.0)
        taken, best = None, None
        for pool, _, _, out, terms in decision.costs:
            curve = self._curves.get(pool, decision.model)
            if curve is None or terms is None:
                continue
            if pool != decision.pool and out is not None:
                continue
            seconds = curve.afterwards(terms, planned, tokens, task)
            if pool == decision.pool:
                taken = seconds
            elif best is None or seconds < best:
                best = seconds
        if taken is None or best is None:
            return None
        key = (decision.model, decision.reason)
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MOST_ROWS:
                return None
            row = self.rows[key] = RegretRow()
        row.requests += 1
        row.seconds += outcome.ended - (outcome.sent_upstream or outcome.started)
        row.regret += max(taken - best, 0.0)
        row.gain += max(best - taken, 0.0)
        return taken - best
