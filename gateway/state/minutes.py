"""Units that the workers of one `gateway serve` have taken of one limit per minute, counted together in shared memory.

It is `access.window.Window` with a ring of slots per worker. A worker writes its own ring only, whole words and the
slot's number before its units, so that nothing is locked and a reader can tell what has left the window. Units belong
to their slots and not to the worker: those of one that dies count until their minute is over, and its successor goes on
with its ring. All processes of a host must read one clock, as `time.monotonic` is.
"""

from __future__ import annotations

from math import floor

from gateway.state.store import WINDOW_SLOTS

_SLOTS = WINDOW_SLOTS + 1
"""The whole window and the slot that has begun."""
_NEWEST, _SUM, _UNITS = 0, 1, 2
"""Of one worker's ring: the number of its newest slot, the sum of its units, and the units by slot."""
WORDS = _UNITS + _SLOTS


class SharedWindow:
    """See `access.window.Window`. Times are seconds of the host's clock."""

    __slots__ = ("_own", "_rings", "_slot")

    def __init__(self, words: memoryview, own: int, seconds: float) -> None:
        """`words` are all workers' rings, of which `own` is this worker's."""
        self._rings = [words[at : at + WORDS] for at in range(0, len(words), WORDS)]
        self._own = self._rings[own]
        self._slot = seconds / WINDOW_SLOTS
        # A predecessor may have died between two words.
        self._own[_SUM] = sum(self._own[_UNITS:].tolist())

    def used(self, now: float) -> int:
        """Units of all workers that count against the limit now."""
        number = floor(now / self._slot)
        return sum(_used(ring, number) for ring in self._rings)

    def add(self, units: int, now: float) -> int:
        """Takes units, even beyond any limit. Returns the slot, for `take_back`."""
        ring, number = self._own, floor(now / self._slot)
        newest: int = ring[_NEWEST]
        if number > newest:
            for gone in range(max(newest, number - _SLOTS) + 1, number + 1):
                at = _UNITS + gone % _SLOTS
                left, ring[at] = ring[at], 0
                ring[_SUM] -= left
            ring[_NEWEST] = newest = number
        ring[_SUM] += units
        ring[_UNITS + newest % _SLOTS] += units
        return newest

    def take_back(self, units: int, slot: int) -> None:
        """Undoes an `add`; units whose slot has gone are back already."""
        ring = self._own
        if ring[_NEWEST] - slot < _SLOTS:
            at = _UNITS + slot % _SLOTS
            undone = min(units, ring[at])
            ring[at] -= undone
            ring[_SUM] -= undone

    def wait(self, need: int, limit: int, now: float) -> float:
        """Seconds until `need` more units fit under `limit`, if nothing else is taken; infinite if they never do."""
        over = self.used(now) + need - limit
        if over <= 0:
            return 0.0
        number = floor(now / self._slot)
        rings = [ring.tolist() for ring in self._rings]
        for slot in range(number - WINDOW_SLOTS, number + 1):
            over -= sum(ring[_UNITS + slot % _SLOTS] for ring in rings if 0 <= ring[_NEWEST] - slot < _SLOTS)
            if over <= 0:
                return (slot + WINDOW_SLOTS + 1) * self._slot - now
        return float("inf")

    def empty_in(self, now: float) -> float:
        """Seconds until nothing counts any more."""
        if not self.used(now):
            return 0.0
        newest: int = max(ring[_NEWEST] for ring in self._rings)
        return (newest + WINDOW_SLOTS + 1) * self._slot - now


def _used(ring: memoryview, number: int) -> int:
    """One worker's units in the window that ends with the slot `number`."""
    while True:
        newest: int = ring[_NEWEST]
        if number - newest >= _SLOTS:
            return 0
        used: int = ring[_SUM]
        if newest < number:
            used -= sum(ring[_UNITS + gone % _SLOTS] for gone in range(newest + 1, number + 1))
        # Else its worker has begun another slot meanwhile, in the place of one that was left out here.
        if ring[_NEWEST] == newest:
            return used
