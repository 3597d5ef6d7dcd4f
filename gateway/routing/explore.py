"""A small share of requests goes to a pool that is not the best one, so that its speed stays known.

Exploration has a budget, in seconds. Every decision adds `PRICE * share` of its expected seconds; an exploration spends
the seconds by which its pool is expected to be slower. So it never costs more than that part of all requests' time,
and slow pools are tried with cheap requests. A pool is explored only if it might be the best within its uncertainty,
or if no request has finished there for a while. The router never explores with a key that has priority, nor where a
rule, a hint or a conversation decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeVar

PRICE = 0.25
"""Seconds of loss allowed per second of explored requests."""
KNOWN = 0.03
"""Relative standard error below which a curve counts as known."""
SILENT = 30.0
"""Seconds without a finished request after which a pool's speed may have changed."""
MOST_ALLOWANCE = 60.0
"""Largest budget that can be saved up, in seconds."""


class Option(Protocol):
    """A pool that may be explored."""

    @property
    def total(self) -> float: ...

    @property
    def uncertainty(self) -> float: ...

    @property
    def seen(self) -> float: ...


O = TypeVar("O", bound=Option)  # noqa: E741


class Explorer:
    """The budget and the random draw."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.allowance = 0.0
        """Seconds that an exploration may cost now."""

    def pick(self, ranked: Sequence[O], share: float, now: float) -> O | None:
        """One of `ranked` (best first) other than the first, or, nearly always, None."""
        if share <= 0.0 or len(ranked) < 2:
            return None
        best = ranked[0].total
        allowance = self.allowance + PRICE * share * best
        self.allowance = allowance if allowance < MOST_ALLOWANCE else MOST_ALLOWANCE
        if self._rng.random() >= share:
            return None
        open_ones = [o for o in ranked[1:] if now - o.seen > SILENT or _might_win(o, best)]
        if not open_ones:
            return None
        chosen = max(open_ones, key=lambda o: (o.uncertainty, -o.total))
        extra = chosen.total - best
        if extra > self.allowance:
            return None
        self.allowance -= max(extra, 0.0)
        return chosen


def _might_win(option: Option, best: float) -> bool:
    """Whether it would be the best if it were two standard errors faster than its curve says."""
    doubt = option.uncertainty
    return doubt > KNOWN and option.total * (1.0 - 2.0 * doubt) < best
