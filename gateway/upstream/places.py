"""Which requests wait in which pool's queue, newest last: decides which one gives way when a queue is full.

The longest queue drops (after McKenney's stochastic fair queueing): among keys of the lowest priority that waits, the
one with most requests loses its newest. A queue that a single key fills drops none; the newcomer is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from gateway.upstream.fair import Entry

E = TypeVar("E", bound=Entry)


class Places(Generic[E]):
    """An index over the queue, by pool, priority and key."""

    def __init__(self) -> None:
        self._by_pool: dict[str, dict[tuple[int, str | None], OrderedDict[E, None]]] = {}

    def add(self, entry: E, pool: str) -> None:
        groups = self._by_pool.setdefault(pool, {})
        groups.setdefault((entry.priority, entry.key), OrderedDict())[entry] = None

    def remove(self, entry: E, pool: str) -> None:
        groups = self._by_pool[pool]
        group = groups[entry.priority, entry.key]
        del group[entry]
        if not group:
            del groups[entry.priority, entry.key]
        if not groups:
            del self._by_pool[pool]

    def displaced_by(self, entry: E, pool: str) -> E | None:
        """The entry that gives way to `entry` in a full queue: `entry` itself if its own key fills the queue beside
        others, or None if there is no other key and the newcomer is simply refused."""
        groups = self._by_pool.get(pool, {})
        lowest = min((priority for priority, _ in groups), default=entry.priority)
        if lowest > entry.priority:
            return None
        at_lowest = {key: group for (priority, key), group in groups.items() if priority == lowest}
        if not at_lowest:
            return None
        largest = max(at_lowest, key=lambda key: len(at_lowest[key]))
        if lowest < entry.priority:
            return next(reversed(at_lowest[largest]))
        own = len(at_lowest.get(entry.key, ()))
        if len(at_lowest[largest]) > own + 1:
            return next(reversed(at_lowest[largest]))
        return entry if len(at_lowest) > 1 and own else None
