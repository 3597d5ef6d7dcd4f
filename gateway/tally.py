"""Counting at the price of an addition: sums that are handed to Prometheus' metrics only when they are read.

A counter of prometheus-client takes a lock and, with several workers, writes to a file on every addition; a histogram
does so twice and searches its bounds one by one. A request adds to a dozen of them. Here it adds to plain numbers, all
in one thread, and `settle` hands over what has accumulated since.

For that it uses the parts of a histogram that its own `observe` adds to, which have no public name.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

Series = tuple[str, frozenset[tuple[str, str]]]
"""A histogram's name and the labels of one of its buckets."""


class Count:
    """One series of a counter. Whoever counts adds to `value`."""

    __slots__ = ("_labels", "_metric", "_series", "value")

    def __init__(self, metric: Counter, labels: tuple[str, ...]) -> None:
        self.value = 0.0
        self._metric = metric
        self._labels = labels
        self._series: Counter | None = None

    def settle(self) -> None:
        if not self.value:
            return
        if self._series is None:
            # Only once there is something to count: a series at 0 would say that such requests exist.
            self._series = self._metric.labels(*self._labels)
        value, self.value = self.value, 0.0
        self._series.inc(value)


class Spread:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_labels", "_metric", "_series", "_some", "_sum", "_wall")

    def __init__(
        self,
        metric: Histogram,
        bounds: Sequence[float],
        labels: Mapping[str, str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`bounds` are the buckets' upper ones, without the infinite."""
        self._metric = metric
        self._bounds = bounds
        self._labels = labels
        self._counts = [0] * (len(bounds) + 1)
        self._some = False
        self._sum = 0.0
        self._exemplars: dict[int, Exemplar] = {}
        self._series: Any = None
        self._wall = wall

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        self._some = True
        self._sum += amount
        # The first bound that is not below the amount.
        bucket = bisect_left(self._bounds, amount)
        self._counts[bucket] += 1
        if exemplar is not None:
            self._exemplars[bucket] = Exemplar(exemplar, amount, self._wall())

    def settle(self) -> None:
        if not self._some:
            return
        self._some = False
        if self._series is None:
            self._series = self._metric.labels(**self._labels) if self._labels else self._metric
        counts, self._counts = self._counts, [0] * len(self._counts)
        total, self._sum = self._sum, 0.0
        self._series._sum.inc(total)
        for bucket, count in enumerate(counts):
            if count:
                self._series._buckets[bucket].inc(count)
                self._series._buckets[bucket].set_exemplar(self._exemplars.get(bucket))

    def exemplars(self, name: str) -> Iterator[tuple[Series, Exemplar]]:
        """The last exemplar of each bucket that has one. `name` is the histogram's."""
        for bucket, exemplar in self._exemplars.items():
            bound = self._bounds[bucket] if bucket < len(self._bounds) else math.inf
            le: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
            yield (name, frozenset({**self._labels, "le": le}.items())), exemplar


class Tallies:
    """All series that are counted this way."""

    def __init__(self) -> None:
        self._shapes: dict[Histogram, tuple[str, tuple[float, ...], tuple[str, ...]]] = {}
        self._counts: dict[tuple[Counter, tuple[str, ...]], Count] = {}
        self._spreads: dict[tuple[Histogram, tuple[str, ...]], Spread] = {}

    def add(self, metric: Histogram, name: str, bounds: tuple[float, ...], labels: tuple[str, ...]) -> None:
        """A histogram's name, its upper bounds and its labels' names."""
        self._shapes[metric] = name, bounds, labels

    def count(self, metric: Counter, labels: tuple[str, ...]) -> Count:
        """The series of a counter; kept for good, as the set of labels is bounded."""
        found = self._counts.get((metric, labels))
        if found is None:
            found = self._counts[metric, labels] = Count(metric, labels)
        return found

    def spread(self, metric: Histogram, labels: tuple[str, ...]) -> Spread:
        """The series of a histogram that was added."""
        found = self._spreads.get((metric, labels))
        if found is None:
            _, bounds, names = self._shapes[metric]
            found = Spread(metric, bounds, dict(zip(names, labels, strict=True)))
            self._spreads[metric, labels] = found
        return found

    def settle(self) -> None:
        for count in self._counts.values():
            count.settle()
        for spread in self._spreads.values():
            spread.settle()

    def exemplars(self) -> dict[Series, Exemplar]:
        found: dict[Series, Exemplar] = {}
        for (metric, _), spread in self._spreads.items():
            found.update(spread.exemplars(self._shapes[metric][0]))
        return found
