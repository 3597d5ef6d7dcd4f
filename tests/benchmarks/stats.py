"""Figures out of samples: percentiles, medians over rounds, growth of a series."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of an ascending sequence lies, between neighbours linearly; 0.0 if empty.

    The "inclusive" definition (Hyndman and Fan 1996, type 7), which numpy and Excel use.
    """
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def middle(values: Sequence[float]) -> float:
    """The median; 0.0 if there are no values."""
    return float(median(values)) if values else 0.0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Rise per unit of x by least squares; 0.0 where no line is defined."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0.0:
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
