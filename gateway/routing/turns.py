"""Busy pools take new requests in turns, where that lets both decode faster.

A prompt that joins a running batch stalls it for a fixed time F, however many prompts join in that step. If prompts
arrive often and F is long compared with a step, it is better to send all prompts to one pool for a while, where they
share stalls, while the other pool decodes without stalls; then the other way round. With T(lambda) the mean step time
at lambda prompts per second (see `curve.py`), two equal pools together decode more by the share

    gain = (1 / T(2 lambda) + 1 / T(0)) / (2 / T(lambda)) - 1

The marginal cost of a single request does not show this gain. So the pool whose turn it is stays first until another
pool is cheaper by `PATIENCE` times the gain. If there is little to gain, the cheapest pool is first.
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
"""Taking turns lengthens the wait for the first token. If requests decode for less than this share of their time, that
wait matters most, and there are no turns."""
LOOK = 1.0
"""Seconds between two computations of the gain."""


@dataclass(slots=True)
class _Turn:
    pool: str
    patience: float
    looked: float


class Turns:
    """The pool whose turn it is, by model."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def first(self, model: str, ranked: Sequence[Candidate], now: float) -> Candidate:
        """The pool whose turn it is, if still cheap enough; otherwise the best of `ranked`."""
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
        for holder in ranked:
            if holder.pool.name == turn.pool:
                if holder.total > (1.0 + turn.patience) * best.total:
                    break
                return holder
        turn.pool = best.pool.name
        return best


def gain(candidates: Sequence[Candidate]) -> float:
    """The share by which the pools would decode faster in turns; mean over the pools."""
    busy = [c for c in candidates if c.terms.running >= LEAST_RUNNING]
    if len(busy) < 2 or min(c.curve.mix.decoding for c in busy) < DECODING:
        return 0.0
    joins = sum(c.curve.mix.joins for c in busy) / len(busy)
    found = 0.0
    for c in busy:
        none, some, twice = (c.curve.bare_step(c.terms.running, rate) for rate in (0.0, joins, 2.0 * joins))
        found += some * (1.0 / twice + 1.0 / none) / 2.0 - 1.0
    return found / len(busy)
