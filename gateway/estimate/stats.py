"""What finished requests say about the next: decayed statistics per key, chained from broad keys to narrow ones.

Each key holds a small linear fit of actual lengths y on the prior's location m (both log2(1 + tokens)):

    own = mean y + slope (m - mean m)                  slope is pulled to the broader level's, at first 1
    after = (weight own + pull before) / (weight + pull)

With slope 0 that is the key's own mean, with 1 a correction of the prior by a constant (a model's scale, a system
prompt's style); the data decide which. `before` is what the broader levels say, `after` is handed to the next, narrower
one. The fit is on the prior and not on `before`, which moves as other traffic comes and goes. How far a level moves the
prediction is weighted by its record: the decayed mean absolute error before and after its correction, on the key itself
and on the level as a whole. History can be worse than no history; then it fades out. And on a key that requests of all
kinds may share, a fit says little about locations far from those that it was made of: its reach is a normal curve of
the distance, as wide as a factor of two in length, and wider by the spread that it has seen, the more so where real
lengths rose along. So labels that are shorter than expected shorten no essays, and where everything takes a few hundred
tokens, what looks like a label does, too.

Robust: an observation far from what the key expects counts little (the weight of a log-t with 3.5 degrees of freedom).
A cut answer says only "at least so many": it counts as the mean of the part of the distribution above its length.
Bounded: two generations of at most `entries / 2` keys; when the young one is full the old one is forgotten, and a key
that is used moves to the young one. One entry takes about 330 bytes.
All statistics are sums, so two histories merge by addition, in any order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.estimate.hashing import LEVELS

DECAY = 0.98
"""What an observation counts for after each later one on the same key: about the last fifty matter."""
BYTES_PER_ENTRY = 330
"""Measured: list of seven floats, its key and its place in the dictionary."""
_HEAVIEST = 1.0 / (1.0 - DECAY)
_PULL_A = 2.0
_PULL_B = 4.0
_TAILS = 3.5
_LEAST_TYPICAL = 0.2
_LARGEST_ERROR = 4.0
_LEVEL_SHARE = 4.0
_NEAR = 0.02
"""Squared distance that is as good as none."""
_BROAD = tuple(level in ("model", "system", "shape") for level in LEVELS)
"""Keys that requests of all kinds may share. On narrower ones traffic is of one kind, however the prior judges it."""
_SPREAD_PULL = 3.0
_LEVEL_PACE = 0.02
_HEADER = struct.Struct("<4sHHIQ")
_MAGIC = b"MTPH"
_ENTRY = struct.Struct("<Q7d")
_LEVEL = struct.Struct("<3d")
Cell = list[float]
"""[weight, sum m, sum y, sum m*m, sum m*y, errors before, errors after]"""


class Chain(NamedTuple):
    """A prediction's way through the levels."""

    location: float
    spread: float
    """Expected absolute error."""
    support: float
    """Observations, decayed, behind the best known key below the model's, by how much of its correction was taken."""
    base: float
    """The location that the prior gave."""
    steps: tuple[tuple[int, int, float, float], ...]
    """(level, key, location before, corrected location) of each level that the request has."""


class History:
    """Decayed statistics of at most `entries` keys."""

    def __init__(self, entries: int = 32_768) -> None:
        if entries < 2:
            raise ValueError("A history needs room for two entries at least.")
        self._half = entries // 2
        self._young: dict[int, Cell] = {}
        self._old: dict[int, Cell] = {}
        # Per level: decayed mean error before and after the correction, and how many it has seen.
        self._levels: list[list[float]] = [[1.0, 1.0, 0.0] for _ in LEVELS]

    def __len__(self) -> int:
        return len(self._young) + sum(key not in self._young for key in self._old)

    def chain(self, keys: Sequence[int], location: float, spread: float) -> Chain:
        """The prediction after all levels. Changes nothing."""
        steps: list[tuple[int, int, float, float]] = []
        add = steps.append
        support = 0.0
        base, slope = location, 1.0
        young, old, levels = self._young, self._old, self._levels
        for level, key in enumerate(keys):
            if not key:
                continue
            cell = young.get(key) or (old.get(key) if old else None)
            if cell is None:
                add((level, key, location, location))
                continue
            after, own_slope, share, reach = _corrected(cell, levels[level], base, location, slope, _BROAD[level])
            slope += share * reach * (own_slope - slope)
            add((level, key, location, after))
            location += share * reach * (after - location)
            weight = cell[0] * reach
            if level and share * weight > support:
                support = share * weight
            errors = (cell[6] * share + cell[5] * (1.0 - share)) * reach
            spread = (_SPREAD_PULL * spread + errors) / (_SPREAD_PULL + weight)
        return Chain(location, spread, support, base, tuple(steps))

    def learn(self, chain: Chain, actual: float) -> None:
        """Adds one finished answer, log2(1 + tokens), seen or imputed (`imputed`), to every key of its chain."""
        base = chain.base
        square, product = base * base, base * actual
        young, levels = self._young, self._levels
        for level, key, before, after in chain.steps:
            error_before, error_after = abs(actual - before), abs(actual - after)
            # Written out, here and below: `min` costs as much as the rest of a line.
            if error_before > _LARGEST_ERROR:
                error_before = _LARGEST_ERROR
            if error_after > _LARGEST_ERROR:
                error_after = _LARGEST_ERROR
            cell = young.get(key)
            if cell is None:
                cell = self._touch(key)
                young = self._young
            if cell is None:
                young[key] = [1.0, base, actual, square, product, error_before, error_after]
            else:
                _add(cell, base, actual, after, error_before, error_after)
            record = levels[level]
            record[0] += _LEVEL_PACE * (error_before - record[0])
            record[1] += _LEVEL_PACE * (error_after - record[1])
            record[2] += 1.0

    def _touch(self, key: int) -> Cell | None:
        """The cell of a key that is not among the young ones, and now is; None for a new key, which there is room for
        now."""
        cell = self._old.pop(key, None)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        if cell is not None:
            self._young[key] = cell
        return cell

    def snapshot(self) -> bytes:
        """The whole state: a header, the levels' records, the entries sorted by key. 64 bytes an entry."""
        cells = {**self._old, **self._young}
        parts = [_HEADER.pack(_MAGIC, 1, len(LEVELS), len(cells), 0)]
        parts += [_LEVEL.pack(*record) for record in self._levels]
        parts += [_ENTRY.pack(key, *cells[key]) for key in sorted(cells)]
        return b"".join(parts)

    def merge(self, data: bytes) -> None:
        """Adds another history's statistics to this one. Raises `ValueError` for bytes that are not a snapshot.

        Each history's observations should be added once. Where there are more keys than room, the ones with the most
        weight behind them stay.
        """
        levels, entries = _parse(data)
        for mine, theirs in zip(self._levels, levels, strict=True):
            total = mine[2] + theirs[2]
            for i in (0, 1):
                # Shares, so that a history that has seen nothing takes over the other's values to the last bit.
                mine[i] = mine[2] / total * mine[i] + theirs[2] / total * theirs[i] if total else mine[i]
            mine[2] = total
        cells = {**self._old, **self._young}
        for key, cell in entries:
            mine_cell = cells.get(key)
            cells[key] = _capped(cell if mine_cell is None else [a + b for a, b in zip(mine_cell, cell, strict=True)])
        kept = sorted(cells, key=lambda key: (-cells[key][0], key))[: 2 * self._half]
        self._young = {key: cells[key] for key in kept[: self._half]}
        self._old = {key: cells[key] for key in kept[self._half :]}


def imputed(location: float, spread: float, at_least: float) -> float:
    """What a cut answer counts as: the mean above `at_least` of a normal around `location` (mean error `spread`)."""
    sigma = max(0.05, spread * 1.2533)
    z = (at_least - location) / sigma
    if z > 6.0:
        return at_least + sigma / z
    tail = 0.5 * math.erfc(z / math.sqrt(2.0))
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return max(at_least, location + sigma * density / tail)


def _add(cell: Cell, base: float, actual: float, expected: float, error_before: float, error_after: float) -> None:
    """Adds an observation to a cell's fit; one that is far from what the key expects counts little."""
    seen, sum_m, sum_y, sum_mm, sum_my, errors_before, errors_after = cell
    weight = 1.0
    if seen > 2.0:
        typical = errors_after / seen
        miss = (actual - expected) / (typical if typical > _LEAST_TYPICAL else _LEAST_TYPICAL)
        if miss * miss > 1.0:
            weight = (_TAILS + 1.0) / (_TAILS + miss * miss)
    weighted = weight * base
    cell[:] = (
        seen * DECAY + weight,
        sum_m * DECAY + weighted,
        sum_y * DECAY + weight * actual,
        sum_mm * DECAY + weighted * base,
        sum_my * DECAY + weighted * actual,
        # Errors count in full: a template whose answers have changed soon finds its new ones typical.
        errors_before * DECAY + error_before,
        errors_after * DECAY + error_after,
    )


def _corrected(
    cell: Cell, record: list[float], base: float, before: float, slope: float, broad: bool
) -> tuple[float, float, float, float]:
    """(location, slope, share, reach) by a cell, given the broader levels' location and slope.

    The share is how much of the correction is to be taken: from the errors with and without it, on the key itself and
    (`record`) on its level as a whole. The reach is how much of what a `broad` key has seen counts at this location.
    """
    weight, sum_m, sum_y, sum_mm, sum_my, error_before, error_after = cell
    error_before += _LEVEL_SHARE * record[0]
    error_after += _LEVEL_SHARE * record[1]
    better = error_before * error_before
    share = 3.0 * better / (better + error_after * error_after + 1e-12) - 1.0
    share = 0.0 if share < 0.0 else 1.0 if share > 1.0 else share
    if weight <= 0.0:
        return before, slope, share, 0.0
    mean = sum_m / weight
    away = base - mean
    spread_m = sum_mm - sum_m * mean
    covariance = sum_my - sum_y * mean
    own_slope = (covariance + _PULL_B * slope) / ((spread_m if spread_m > 0.0 else 0.0) + _PULL_B)
    own_slope = 0.0 if own_slope < 0.0 else 2.0 if own_slope > 2.0 else own_slope
    own = sum_y / weight + own_slope * away
    reach = 1.0
    if broad and away * away > _NEAR:
        spread_m = spread_m if spread_m > 0.0 else 0.0
        # The spread of what the key has seen, and the part of the lengths' own spread that it told (squares).
        told = covariance * covariance / (spread_m + 1e-9) if covariance > 0.0 else 0.0
        reach = math.exp(-away * away / (2.0 + (12.0 * spread_m + 48.0 * told) / weight))
    return (weight * own + _PULL_A * before) / (weight + _PULL_A), own_slope, share, reach


def _capped(cell: Cell) -> Cell:
    """A merged cell keeps adapting: it weighs no more than one that has learned for long."""
    if cell[0] <= _HEAVIEST:
        return cell
    factor = _HEAVIEST / cell[0]
    return [value * factor for value in cell]


def _parse(data: bytes) -> tuple[list[list[float]], list[tuple[int, Cell]]]:
    if len(data) < _HEADER.size:
        raise ValueError("Not a snapshot of a history.")
    magic, version, levels, count, _ = _HEADER.unpack_from(data)
    size = _HEADER.size + levels * _LEVEL.size + count * _ENTRY.size
    if magic != _MAGIC or version != 1 or levels != len(LEVELS) or size != len(data):
        raise ValueError("Not a snapshot of a history of this version.")
    at = _HEADER.size
    records = [list(_LEVEL.unpack_from(data, at + i * _LEVEL.size)) for i in range(levels)]
    entries = list(_entries(data, at + levels * _LEVEL.size))
    if not all(map(math.isfinite, (value for record in records for value in record))):
        raise ValueError("A snapshot with values that are not numbers.")
    if not all(cell[0] >= 0.0 and all(map(math.isfinite, cell)) for _, cell in entries):
        raise ValueError("A snapshot with values that are not numbers.")
    return records, entries


def _entries(data: bytes, at: int) -> Iterator[tuple[int, Cell]]:
    for key, *cell in _ENTRY.iter_unpack(data[at:]):
        yield key, cell
