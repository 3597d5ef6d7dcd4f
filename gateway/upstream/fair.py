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
it. Each pool has an order of its own, by the work that a request would be there: a drafting pool takes first what is
short with drafts, so that the others get what drafts help least (the c-mu rule for servers that differ).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Work:
    """How much engine time a request is expected to take, in seconds; any unit will do as long as all use it."""

    mean: float
    """Over the pools that may serve it."""
    by_pool: Mapping[str, float] = field(default_factory=dict)
    """Pools that are missing here are expected to take the mean."""

    def in_each(self, pools: Sequence[str]) -> tuple[float, ...]:
        return tuple([self.by_pool.get(pool, self.mean) for pool in pools])


UNIT = Work(1.0)
"""For callers to whom all requests are alike."""


class Entry(Protocol):
    """What stands in the queue."""

    order: tuple[str, ...]
    """The pools that may serve it, best first."""
    work: float
    """What its key is charged: the mean of its `Work`."""
    works: tuple[float, ...]
    """Its work in each pool of `order`."""
    places: int
    """Requests that its pools run concurrently."""
    priority: int
    key: str | None


E = TypeVar("E", bound=Entry)
_Place = tuple[float, int, E]
"""Its turn, in work of its key; the number of its arrival; itself."""


class _Key(Generic[E]):
    """One key's requests of one priority, in lanes: for each pool a heap by turn. What leaves from the middle of a lane
    stays there as a gap until it comes to the front, or until there are more gaps than requests. No lane is empty, and
    none begins with a gap."""

    __slots__ = ("lanes", "numbers", "patience", "served", "time")

    def __init__(self, time: float, patience: float) -> None:
        self.time = time
        self.patience = patience
        self.served = 0.0
        """Work of this key that was served, in all."""
        self.lanes: dict[str, _Lane[E]] = {}
        self.numbers: dict[E, int] = {}

    def fits(self, pools: Collection[str]) -> bool:
        return not self.lanes.keys().isdisjoint(pools)

    def first(self, pools: Collection[str]) -> E | None:
        best: _Place[E] | None = None
        for pool in pools:
            if (lane := self.lanes.get(pool)) is not None and (best is None or lane.heap[0] < best):
                best = lane.heap[0]
        return best[2] if best is not None else None

    def add(self, entry: E, number: int) -> None:
        self.numbers[entry] = number
        patience = max(self.patience, ROUNDS * entry.places)
        for pool, work in zip(entry.order, entry.works, strict=True):
            lane = self.lanes.setdefault(pool, _Lane())
            lane.size += 1
            heappush(lane.heap, (self.served + patience * bounded(work), number, entry))

    def remove(self, entry: E) -> None:
        """Raises KeyError if it is not there."""
        numbers, lanes = self.numbers, self.lanes
        del numbers[entry]
        for pool in entry.order:
            lane = lanes[pool]
            lane.size -= 1
            if not lane.size:
                del lanes[pool]
                continue
            heap = lane.heap
            while numbers.get(heap[0][2]) != heap[0][1]:
                heappop(heap)
            if len(heap) > 2 * lane.size:
                lane.heap = [place for place in heap if numbers.get(place[2]) == place[1]]
                heapify(lane.heap)


class _Lane(Generic[E]):
    """Who waits for one pool."""

    __slots__ = ("heap", "size")

    def __init__(self) -> None:
        self.heap: list[_Place[E]] = []
        """With gaps."""
        self.size = 0
        """Without them."""


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
    """Entries by the order above. All operations are O(keys + pools of an entry * log of the queue's
    length) or better, removals on average."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._levels: dict[int, _Level[E]] = {}
        self._number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[E]:
        for level in self._levels.values():
            for key in level.keys.values():
                yield from key.numbers

    def add(self, entry: E) -> None:
        level = self._levels.setdefault(entry.priority, _Level())
        key = level.keys.get(entry.key)
        if key is None:
            if len(level.keys) >= SWEEP:
                self._sweep(level)
            key = level.keys[entry.key] = _Key(level.now, self._patience)
        elif not key.numbers:
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
        for name in [name for name, key in level.keys.items() if not key.numbers and key.time <= level.now]:
            del level.keys[name]


def bounded(work: float) -> float:
    """Work within sane bounds, whatever the estimate says."""
    return min(max(work, MIN_WORK), MAX_WORK)
