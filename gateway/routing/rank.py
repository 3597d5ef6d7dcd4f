"""Which of the pools left by gates and rules comes first, and by what right.

`static` goes by the threshold, then by time. `expected_time` takes the least own time, `fleet` the least sum of own
and imposed time (see `curve.py`). Times that differ by less than the curves know are equal, and the threshold decides:
a profile that nothing has been measured against says less than the published rule, "long answers draft". On an idle
pool differences below what anybody notices are equal too. A kind of request that has left the threshold's side comes
back only where that side is really as good (hysteresis: it goes at one margin and returns at half of it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter

from gateway.policy.schema import Pool, Routing
from gateway.routing.curve import Curve
from gateway.routing.learned import COLD, UNSEEN
from gateway.types import CostTerms, Estimate, PoolKind, Reason, Task

_TOTAL = attrgetter("total")
# Looking up a member of an enum takes longer than many a comparison (CPython 3.11), and every request comes here.
_PLAIN, _MTP, _FASTER, _TIE = PoolKind.PLAIN, PoolKind.MTP, Reason.FASTER, Reason.TIE
_ROOT_2 = math.sqrt(2.0)
TIE_SHARE = 0.01
"""Differences below this share are ties, however much has been measured."""
TIE_SECONDS = 0.1
"""The limit of what feels instantaneous (Nielsen 1993): the tie on idle pools of which nothing is known yet; it
shrinks as they become known."""


@dataclass(slots=True)
class Candidate:
    """One pool of the model while a decision is made."""

    pool: Pool
    curve: Curve
    terms: CostTerms
    total: float
    """What the objective makes least: own time, or own and imposed."""
    can: bool
    """Passes the capability gates."""
    out: str | None
    """The reason of the first gate that it does not pass."""

    @property
    def uncertainty(self) -> float:
        return self.curve.uncertainty

    @property
    def seen(self) -> float:
        return self.curve.seen


def rank(
    candidates: list[Candidate], estimate: Estimate, routing: Routing, away: set[tuple[str, bool]], model: str
) -> tuple[list[Candidate], Reason]:
    """The candidates, best first, and the reason of the first. `away` keeps which side was taken last."""
    long = estimate.output_tokens >= routing.threshold
    wanted = _MTP if long else _PLAIN
    if routing.objective == "static":
        return sorted(candidates, key=lambda c: (c.pool.kind is not wanted, c.total)), Reason.THRESHOLD
    # Most models have two pools, and often the first is the better.
    in_order = len(candidates) == 2 and candidates[0].total <= candidates[1].total
    ranked = candidates if in_order else sorted(candidates, key=_TOTAL)
    best = ranked[0]
    if len(ranked) == 1 or best.pool.kind is wanted:
        if away:
            away.discard((model, long))
        return ranked, _FASTER
    for other in ranked:
        if other.pool.kind is wanted:
            break
    else:
        return ranked, _FASTER
    if other.total - best.total >= _margin(best, other, estimate.task if long else None, (model, long) in away):
        away.add((model, long))
        return ranked, _FASTER
    away.discard((model, long))
    return [other, *(c for c in ranked if c is not other)], _TIE


def _margin(best: Candidate, other: Candidate, task: Task | None, away: bool) -> float:
    """What `other` may cost more and still be taken; `task` is that of an answer that is long."""
    most = best.total * (COLD if task is None else UNSEEN)
    if other.total - best.total >= most and other.terms.running >= 1.0:
        # However little is known.
        return most
    margin = tie_margin(best, other)
    if task is not None:
        # A task that was never drafted gets the benefit of the doubt: where it goes instead it could not be learned.
        margin = max(margin, best.total * other.curve.tpot.doubt(task))
    return margin / 2 if away else margin


def tie_margin(best: Candidate, other: Candidate) -> float:
    """Seconds below which two pools are equal."""
    doubt = math.hypot(best.curve.tpot.uncertainty, other.curve.tpot.uncertainty) / _ROOT_2
    margin = best.total * (COLD if doubt > COLD else doubt if doubt > TIE_SHARE else TIE_SHARE)
    if other.terms.running < 1.0:
        margin = max(margin, TIE_SECONDS * min(1.0, doubt / COLD) ** 2)
    return margin
