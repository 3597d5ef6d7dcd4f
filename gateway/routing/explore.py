"""A small share of requests goes to a pool that is not the best one, so that its speed stays known.

It is paid from an allowance: every decision adds a `PRICE` part of `share` of its expected seconds, an exploration
takes the seconds by which it is worse. So exploration costs at most that much of all requests' time, whatever the
pools are like, and expensive pools are tried with cheap requests. Only a pool is explored that might turn out to be the
best, being little known, or that nobody has heard of for a while. Requests that somebody waits for are never used: the
router asks only for keys without priority and outside rules, hints and conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeVar

PRICE = 0.25
"""Seconds that may be lost per explored second."""
KNOWN = 0.03
"""Relative standard error below which a curve counts as known."""
SILENT = 30.0
"""Seconds without a finished request after which a pool may have become another one."""
MOST_ALLOWANCE = 60.0
"""Seconds that a long time without exploration may save up."""


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
    """The allowance and the dice."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.allowance = 0.0
        """Seconds that may be lost now."""
        self.asked = 0
        self.explored = 0

    def pick(self, ranked: Sequence[O], share: float, now: float) -> O | None:
        """One of `ranked` (best first) other than the first, or, nearly always, None."""
        if share <= 0.0 or len(ranked) < 2:
            return None
        self.asked += 1
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
        self.explored += 1
        return chosen


def _might_win(option: Option, best: float) -> bool:
    """Whether two standard errors could make it the best."""
    doubt = option.uncertainty
    return doubt > KNOWN and option.total * (1.0 - 2.0 * doubt) < best
