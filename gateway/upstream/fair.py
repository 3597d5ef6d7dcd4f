"""The order in which waiting requests are served. A pure data structure: no clock, no I/O.

1. Higher priority first.
2. Among keys of one priority, the one that has been served the least work: fair queueing by virtual time, as Linux
   schedules processes. A key's time grows by the work of each of its requests that is served; one that has not waited
   lately starts at the present, so that nobody saves up and a wall of one key's requests delays nobody else's.
3. Within a key, the same among classes of size (powers of two of the work): each gets an equal share of the service,
   so that a short request passes a wall of long ones after at most one of each class, a class that wants less than its
   share hardly waits, and the long ones still get their turn after a bounded number of short ones.
4. Within a class, first come first served.

A request may be served by several pools. It stands in the queue once, and whichever of its pools has room first takes
it; where pools of different requests differ, the first in this order that fits is taken.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar

MIN_WORK = 0.01
MAX_WORK = 3600.0
SWEEP = 64
"""Above so many keys of a priority, those without requests whose debt is paid are forgotten."""


class Entry(Protocol):
    """What stands in the queue."""

    order: tuple[str, ...]
    """The pools that may serve it, best first."""
    work: float
    """Expected seconds of service; any unit will do as long as all use it."""
    priority: int
    key: str | None


E = TypeVar("E", bound=Entry)


class _Size(Generic[E]):
    """One class of size of one key: a FIFO for each set of pools."""

    __slots__ = ("lanes", "time")

    def __init__(self, time: float) -> None:
        self.time = time
        self.lanes: dict[tuple[str, ...], OrderedDict[E, int]] = {}

    def first(self, pools: Collection[str]) -> E | None:
        best: E | None = None
        best_number = 0
        for order, lane in self.lanes.items():
            if any(pool in pools for pool in order):
                entry, number = next(iter(lane.items()))
                if best is None or number < best_number:
                    best, best_number = entry, number
        return best


class _Key(Generic[E]):
    """One key's requests of one priority. Classes of size stay, with what they owe; there are some twenty."""

    __slots__ = ("latest", "now", "sizes", "time", "waiting", "wants")

    def __init__(self, time: float) -> None:
        self.time = time
        self.now = 0.0
        """The virtual time within the key."""
        self.latest = 0.0
        """The furthest that any of its classes has been served to; a time with nobody waiting forgives all debts."""
        self.waiting = 0
        self.sizes: dict[int, _Size[E]] = {}
        self.wants: Counter[str] = Counter()
        """Requests that each pool may serve."""

    def fits(self, pools: Collection[str]) -> bool:
        return any(pool in self.wants for pool in pools)

    def first(self, pools: Collection[str]) -> E | None:
        for size in sorted((size for size in self.sizes.values() if size.lanes), key=lambda size: size.time):
            if (entry := size.first(pools)) is not None:
                return entry
        return None


class _Level(Generic[E]):
    """One priority."""

    __slots__ = ("keys", "latest", "now", "waiting")

    def __init__(self) -> None:
        self.now = 0.0
        self.latest = 0.0
        """The furthest that any key has been served to."""
        self.waiting = 0
        self.keys: dict[str | None, _Key[E]] = {}


class FairQueue(Generic[E]):
    """Entries by the order above. All operations are O(keys + classes of one key) or better."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level[E]] = {}
        self._number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[E]:
        for level in self._levels.values():
            for key in level.keys.values():
                for size in key.sizes.values():
                    for lane in size.lanes.values():
                        yield from lane

    def add(self, entry: E) -> None:
        level = self._levels.setdefault(entry.priority, _Level())
        key = level.keys.get(entry.key)
        if key is None:
            if len(level.keys) >= SWEEP:
                self._sweep(level)
            key = level.keys[entry.key] = _Key(level.now)
        elif not key.waiting:
            key.time = max(key.time, level.now)
        number = size_of(entry.work)
        size = key.sizes.get(number)
        if size is None:
            size = key.sizes[number] = _Size(key.now)
        elif not size.lanes:
            size.time = max(size.time, key.now)
        self._number += 1
        size.lanes.setdefault(entry.order, OrderedDict())[entry] = self._number
        for pool in entry.order:
            key.wants[pool] += 1
        key.waiting += 1
        level.waiting += 1
        self._size += 1

    def first(self, pools: Collection[str]) -> E | None:
        """The entry that is served next if exactly these pools have room; it stays in the queue."""
        for priority in sorted(self._levels, reverse=True):
            keys = [key for key in self._levels[priority].keys.values() if key.fits(pools)]
            if keys:
                return min(keys, key=lambda key: key.time).first(pools)
        return None

    def serve(self, entry: E) -> None:
        """Takes the entry out and charges its key and class with its work."""
        level = self._levels[entry.priority]
        key = level.keys[entry.key]
        size = key.sizes[size_of(entry.work)]
        work = min(max(entry.work, MIN_WORK), MAX_WORK)
        level.now = max(level.now, key.time)
        key.now = max(key.now, size.time)
        key.time += work
        size.time += work
        level.latest = max(level.latest, key.time)
        key.latest = max(key.latest, size.time)
        self.remove(entry)

    def remove(self, entry: E) -> None:
        """Takes the entry out as if it had never been there. Raises KeyError if it is not."""
        level = self._levels[entry.priority]
        key = level.keys[entry.key]
        size = key.sizes[size_of(entry.work)]
        lane = size.lanes[entry.order]
        del lane[entry]
        if not lane:
            del size.lanes[entry.order]
        for pool in entry.order:
            key.wants[pool] -= 1
            if not key.wants[pool]:
                del key.wants[pool]
        key.waiting -= 1
        level.waiting -= 1
        if not key.waiting:
            key.now = key.latest
        if not level.waiting:
            level.now = level.latest
        self._size -= 1

    def _sweep(self, level: _Level[E]) -> None:
        for name in [name for name, key in level.keys.items() if not key.waiting and key.time <= level.now]:
            del level.keys[name]


def size_of(work: float) -> int:
    """The class of size: which power of two the work is below."""
    return math.frexp(min(max(work, MIN_WORK), MAX_WORK))[1]
