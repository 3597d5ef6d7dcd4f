"""Who stands in which pool's queue, newest last: what decides who gives way when a queue is full.

The longest queue drops (after McKenney's stochastic fair queueing): of the lowest priority that waits, the key with
most requests loses its newest. A queue that only one key fills drops nobody; the newcomer is turned away.
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
        """Who loses the place that `entry` wants in a full queue: `entry` itself by its key's own fault, or None
        where nobody is to give way."""
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
