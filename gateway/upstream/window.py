"""Counts over the last seconds: a ring of buckets, so that a count costs two additions and no memory per event.

The window slides by whole buckets; what it covers is between `span` less one bucket and `span`.
"""

from __future__ import annotations

BUCKETS = 10


class Window:
    """Events, and how many of them were marked, within the last `span` seconds. Time is an argument."""

    __slots__ = ("_at", "_ends", "_marks", "_totals", "_width", "marked", "span", "total")

    def __init__(self, span: float) -> None:
        self.span = span
        self._width = span / BUCKETS
        self._at = 0
        self._ends = self._width
        """When the newest bucket ends."""
        self._totals = [0] * BUCKETS
        self._marks = [0] * BUCKETS
        self.total = 0
        self.marked = 0

    def add(self, now: float, count: int = 1, marked: int = 0) -> None:
        """Counts events, and separately how many are marked; what a mark means is up to the owner."""
        if now >= self._ends:
            self.advance(now)
        slot = self._at % BUCKETS
        self._totals[slot] += count
        self.total += count
        if marked:
            self._marks[slot] += marked
            self.marked += marked

    def advance(self, now: float) -> None:
        """Drops what is older than the window; call before reading `total` or `marked`. Never goes back."""
        at = int(now / self._width)
        steps = at - self._at
        if steps <= 0:
            return
        for step in range(min(steps, BUCKETS)):
            slot = (at - step) % BUCKETS
            self.total -= self._totals[slot]
            self.marked -= self._marks[slot]
            self._totals[slot] = self._marks[slot] = 0
        self._at = at
        self._ends = (at + 1) * self._width

    def clear(self) -> None:
        self._totals = [0] * BUCKETS
        self._marks = [0] * BUCKETS
        self.total = self.marked = 0
