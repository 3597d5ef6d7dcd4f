"""Busy pools take newcomers in turns where that lets all of them decode faster.

A prompt that joins a running batch costs it a fixed stall F, which all prompts that join in the same step share. Where
prompts come often and F is long beside a step, it is better that they join one pool for a while, and share, and the
other pool decodes undisturbed; then the other way round. With T(lambda) the mean step under lambda prompts per second
(see `curve.py`), the decoding that two like pools get done rises by the share

    gain = (1 / T(2 lambda) + 1 / T(0)) / (2 / T(lambda)) - 1

The marginal cost of one request cannot see this, for it is about many. So the pool whose turn it is keeps it until
another one is cheaper by `PATIENCE` times that gain; with little to gain nothing changes hands but the cheapest wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.routing.rank import Candidate

PATIENCE = 5.0
LEAST_GAIN = 0.06
MOST_PATIENCE = 0.5
LEAST_RUNNING = 2.0
DECODING = 0.85
"""Below this share of their time in which requests decode, waiting for the first token is what they do, and it takes
longer where all join."""
LOOK = 1.0
"""Seconds between two looks at the gain."""


@dataclass(slots=True)
class _Turn:
    pool: str
    patience: float
    looked: float


class Turns:
    """Whose turn it is, by model."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def first(self, model: str, ranked: Sequence[Candidate], now: float) -> Candidate:
        """The best of `ranked`, or the one whose turn it is where that is still cheap enough."""
        best = ranked[0]
        turn = self._turns.get(model)
        if best.terms.running < LEAST_RUNNING:
            return best
        if turn is None:
            self._turns[model] = _Turn(best.pool.name, 0.0, now - LOOK)
            return best
        if now - turn.looked >= LOOK:
            turn.looked = now
            turn.patience = min(PATIENCE * max(gain(ranked) - LEAST_GAIN, 0.0), MOST_PATIENCE)
        if turn.pool == best.pool.name or not turn.patience:
            turn.pool = best.pool.name
            return best
        holder = next((c for c in ranked if c.pool.name == turn.pool), None)
        if holder is None or holder.total > (1.0 + turn.patience) * best.total:
            turn.pool = best.pool.name
            return best
        return holder


def gain(candidates: Sequence[Candidate]) -> float:
    """By how much the pools would decode faster in turns, on average over them."""
    busy = [c for c in candidates if c.terms.running >= LEAST_RUNNING]
    if len(busy) < 2 or min(c.curve.mix.decoding for c in busy) < DECODING:
        return 0.0
    joins = sum(c.curve.mix.joins for c in busy) / len(busy)
    found = 0.0
    for c in busy:
        none, some, twice = (c.curve.bare_step(c.terms.running, rate) for rate in (0.0, joins, 2.0 * joins))
        found += some * (1.0 / twice + 1.0 / none) / 2.0 - 1.0
    return found / len(busy)
