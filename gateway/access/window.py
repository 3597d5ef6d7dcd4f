"""An exact sliding window: so many units in any period as long as the window, with no burst at an edge.

Units are counted in slots of a 60th of the window. A slot counts until the window after its *end* has passed, so a
unit comes back one window after it was taken, or up to one slot later; never earlier. A bucket that refills while it
drains would let nearly twice the limit through in one window, fixed windows twice at their edge.
"""

from __future__ import annotations

from collections import deque
from math import floor

from gateway.state.store import WINDOW_SLOTS


class Window:
    """Units taken lately. At most 61 counters, whatever the traffic. Times are seconds of a monotonic clock."""

    __slots__ = ("_rows", "_slot", "_used")

    def __init__(self, seconds: float) -> None:
        self._slot = seconds / WINDOW_SLOTS
        self._rows: deque[list[int]] = deque()
        """[slot number, units], oldest first."""
        self._used = 0

    def used(self, now: float) -> int:
        """Units that count against the limit now."""
        oldest = floor(now / self._slot) - WINDOW_SLOTS
        while self._rows and self._rows[0][0] < oldest:
            self._used -= self._rows.popleft()[1]
        return self._used

    def add(self, units: int, now: float) -> int:
        """Takes units, even beyond any limit. Returns the slot, for `take_back`."""
        self.used(now)
        number = floor(now / self._slot)
        if not self._rows or self._rows[-1][0] < number:
            self._rows.append([number, 0])
        self._rows[-1][1] += units
        self._used += units
        return self._rows[-1][0]

    def take_back(self, units: int, slot: int) -> None:
        """Undoes an `add`; units whose slot has gone are back already."""
        for row in self._rows:
            if row[0] == slot:
                undone = min(units, row[1])
                row[1] -= undone
                self._used -= undone

    def wait(self, need: int, limit: int, now: float) -> float:
        """Seconds until `need` more units fit under `limit`, if nothing else is taken; infinite if they never do."""
        over = self.used(now) + need - limit
        if over <= 0:
            return 0.0
        for number, units in self._rows:
            over -= units
            if over <= 0:
                return (number + WINDOW_SLOTS + 1) * self._slot - now
        return float("inf")

    def empty_in(self, now: float) -> float:
        """Seconds until nothing counts any more."""
        if not self.used(now):
            return 0.0
        return (self._rows[-1][0] + WINDOW_SLOTS + 1) * self._slot - now
