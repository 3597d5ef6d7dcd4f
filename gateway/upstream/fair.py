"""The order in which waiting requests are served. A pure data structure: no clock, no I/O.

1. Higher priority first.
2. Among keys of one priority, the one that has been served the least work: fair queueing by virtual time, as Linux
   schedules processes. A key's time grows by the work of each of its requests that is served; one that has not waited
   lately starts at the present, so that nobody saves up and a wall of one key's requests delays nobody else's.
3. Within a key, the least work first, as far as the others' patience allows: a request of w seconds has waited long
   enough when `PATIENCE` w seconds of the key's work have been served since it came, or `ROUNDS` w per slot of its
   pools if that is more, since many slots serve much in little time. So a short request passes a wall of long ones, an
   equal or longer one that came later never goes first (as long as the pools keep their size), and the long ones get
   their turn.

Work is the share of a shared engine's time that a request takes (see `routing.cost.work_of`), not the time that it
spends there: then serving the least work first minimises the mean time (Smith's rule).

A request may be served by several pools. It stands in the queue once, and whichever of its pools has room first takes
it; where pools of different requests differ, the first in this order that fits is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

MIN_WORK = 1e-4
MAX_WORK = 3600.0
PATIENCE = 400.0
"""Seconds of others' work that a request lets pass per second of its own. More makes the mean time shorter and the
longest requests' time longer."""
ROUNDS = 3.0
"""At least so many per slot."""
SWEEP = 64
"""Above this number of keys of a priority, those without waiting requests or debt are forgotten."""


class Entry(Protocol):
    """What stands in the queue."""

    order: tuple[str, ...]
    """The pools that may serve it, best first."""
    work: float
    """Expected seconds of an engine's time; any unit will do as long as all use it."""
    places: int
    """Requests that its pools run concurrently."""
    priority: int
    key: str | None


E = TypeVar("E", bound=Entry)
_Place = tuple[float, int, E]
"""Its turn, in work of its key; the number of its arrival; itself."""


class _Key(Generic[E]):
    """One key's requests of one priority, in lanes: for each set of pools a heap by turn. What leaves from the middle
    of a lane stays there as a gap until it comes to the front, or until there are more gaps than requests. No lane is
    empty, and none begins with a gap."""

    __slots__ = ("gaps", "lanes", "served", "time", "turns", "wants")

    def __init__(self, time: float) -> None:
        self.time = time
        self.served = 0.0
        """Work of this key that was served, in all."""
        self.gaps = 0
        self.lanes: dict[tuple[str, ...], list[_Place[E]]] = {}
        self.turns: dict[E, _Place[E]] = {}
        self.wants: Counter[str] = Counter()
        """Requests that each pool may serve."""

    def fits(self, pools: Collection[str]) -> bool:
        return not self.wants.keys().isdisjoint(pools)

    def first(self, pools: Collection[str]) -> E | None:
        best: _Place[E] | None = None
        for order, lane in self.lanes.items():
            if any(pool in pools for pool in order) and (best is None or lane[0] < best):
                best = lane[0]
        return best[2] if best is not None else None

    def add(self, entry: E, number: int) -> None:
        place = self.served + max(PATIENCE, ROUNDS * entry.places) * bounded(entry.work), number, entry
        self.turns[entry] = place
        heappush(self.lanes.setdefault(entry.order, []), place)
        for pool in entry.order:
            self.wants[pool] += 1

    def remove(self, entry: E) -> None:
        """Raises KeyError if it is not there."""
        place, order = self.turns.pop(entry), entry.order
        lane = self.lanes[order]
        self.gaps += 1
        if lane[0] is place:
            self._trim(order, lane)
        elif self.gaps > len(self.turns):
            for other in [*self.lanes]:
                self.lanes[other] = kept = [one for one in self.lanes[other] if self.turns.get(one[2]) is one]
                heapify(kept)
            self.gaps = 0
        for pool in order:
            self.wants[pool] -= 1
            if not self.wants[pool]:
                del self.wants[pool]

    def _trim(self, order: tuple[str, ...], lane: list[_Place[E]]) -> None:
        """Takes the gaps from the front of a lane."""
        turns = self.turns
        while turns.get(lane[0][2]) is not lane[0]:
            heappop(lane)
            self.gaps -= 1
            if not lane:
                del self.lanes[order]
                return


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
    """Entries by the order above. All operations are O(keys + lanes of one key + log of their length) or
    better, removals on average."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level[E]] = {}
        self._number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[E]:
        for level in self._levels.values():
            for key in level.keys.values():
                yield from key.turns

    def add(self, entry: E) -> None:
        level = self._levels.setdefault(entry.priority, _Level())
        key = level.keys.get(entry.key)
        if key is None:
            if len(level.keys) >= SWEEP:
                self._sweep(level)
            key = level.keys[entry.key] = _Key(level.now)
        elif not key.turns:
            key.time = max(key.time, level.now)
        self._number += 1
        key.add(entry, self._number)
        level.waiting += 1
        self._size += 1

    def first(self, pools: Collection[str]) -> E | None:
        """The entry that is served next if exactly these pools have room; it stays in the queue."""
        for priority in sorted(self._levels, reverse=True):
            best: _Key[E] | None = None
            for key in self._levels[priority].keys.values():
                if (best is None or key.time < best.time) and key.fits(pools):
                    best = key
            if best is not None:
                return best.first(pools)
        return None

    def serve(self, entry: E) -> None:
        """Takes the entry out and charges its key with its work."""
        level = self._levels[entry.priority]
        key = level.keys[entry.key]
        work = bounded(entry.work)
        level.now = max(level.now, key.time)
        key.time += work
        key.served += work
        level.latest = max(level.latest, key.time)
        self.remove(entry)

    def remove(self, entry: E) -> None:
        """Takes the entry out as if it had never been there. Raises KeyError if it is not."""
        level = self._levels[entry.priority]
        level.keys[entry.key].remove(entry)
        level.waiting -= 1
        if not level.waiting:
            level.now = level.latest
        self._size -= 1

    def _sweep(self, level: _Level[E]) -> None:
        for name in [name for name, key in level.keys.items() if not key.turns and key.time <= level.now]:
            del level.keys[name]


def bounded(work: float) -> float:
    """Work within sane bounds, whatever the estimate says."""
    return min(max(work, MIN_WORK), MAX_WORK)
