"""History: decayed statistics of finished requests per key, chained from broad keys to narrow ones.

Each key holds a linear fit of actual lengths y on the prior's location m (both log2(1 + tokens)). `before` is the
location by the broader levels; `after` is passed on to the next narrower level:

    own = mean y + slope (m - mean m)                  slope is shrunk towards the broader level's, which starts at 1
    after = (weight own + pull before) / (weight + pull)

Slope 0 predicts the key's own mean; slope 1 shifts the prior by a constant (a model's scale, a system prompt's style).
The regressor is the prior and not `before`, which moves as other traffic comes and goes.

Share: how much of a level's correction is applied depends on its record, the decayed mean absolute errors with and
without the correction, on the key and on the whole level. Where history does harm, it fades out.

Reach: on a broad key, requests of all kinds meet, and a fit says little about locations far from its data. Its weight
falls with the distance as a normal curve, one factor of two wide, and wider by the spread of the data, more so where
actual lengths rose with m. So short labels do not shorten essays.

Robust: outliers get the weight of a t distribution with 3.5 degrees of freedom. A cut answer is a lower bound and
counts as the mean of the distribution above it. Bounded: two generations of `entries / 2` keys; when the young one is
full the old one is dropped, and a key in use moves to the young one. Statistics are sums, so histories merge by
addition, in any order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

from gateway.estimate.hashing import LEVELS
from gateway.records import record

DECAY = 0.98
"""Decay per later observation on the same key: about the last fifty count."""
BYTES_PER_ENTRY = 330
"""Measured: a list of seven floats, its key and its slot in the dictionary."""
_HEAVIEST = 1.0 / (1.0 - DECAY)
_PULL_A = 2.0
_PULL_B = 4.0
_TAILS = 3.5
_LEAST_TYPICAL = 0.2
_LARGEST_ERROR = 4.0
_LEVEL_SHARE = 4.0
_NEAR = 0.02
"""Squared distance up to which the reach is 1."""
_BROAD = tuple(level in ("model", "system", "shape") for level in LEVELS)
"""Levels whose keys requests of all kinds share. On narrower levels traffic is of one kind."""
_SPREAD_PULL = 3.0
_LEVEL_PACE = 0.02
_HEADER = struct.Struct("<4sHHIQ")
_MAGIC = b"MTPH"
_ENTRY = struct.Struct("<Q7d")
_LEVEL = struct.Struct("<3d")
Cell = list[float]
"""[weight, sum m, sum y, sum m*m, sum m*y, errors before, errors after]"""


@record
class Chain:
    """A prediction and its path through the levels."""

    location: float
    spread: float
    """Expected absolute error of `location`."""
    support: float
    """Decayed observations, times the share applied, of the best supported key below the model's."""
    base: float
    """The prior's location."""
    steps: tuple[tuple[int, int, float, float], ...]
    """(level, key, location before, corrected location) of each level that the request has a key for."""


class History:
    """Decayed statistics of at most `entries` keys. Raises `ValueError` for fewer than two entries."""

    def __init__(self, entries: int = 32_768) -> None:
        if entries < 2:
            raise ValueError("A history needs room for two entries at least.")
        self._half = entries // 2
        self._young: dict[int, Cell] = {}
        self._old: dict[int, Cell] = {}
        # Per level: decayed mean error before and after the correction, and the number of observations.
        self._levels: list[list[float]] = [[1.0, 1.0, 0.0] for _ in LEVELS]

    def __len__(self) -> int:
        return len(self._young) + sum(key not in self._young for key in self._old)

    def chain(self, keys: Sequence[int], location: float, spread: float) -> Chain:
        """The prediction after all levels. Does not change the history."""
        steps: list[tuple[int, int, float, float]] = []
        add = steps.append
        support = 0.0
        base, slope = location, 1.0
        young, old, levels = self._young, self._old, self._levels
        # In one loop, because every request comes here with seven keys: a function for a cell would add a third.
        for level, key in enumerate(keys):
            if not key:
                continue
            cell = young.get(key) or (old.get(key) if old else None)
            if cell is None:
                add((level, key, location, location))
                continue
            weight, sum_m, sum_y, sum_mm, sum_my, errors_before, errors_after = cell
            if weight <= 0.0:
                add((level, key, location, location))
                continue
            record = levels[level]
            error, corrected = errors_before + _LEVEL_SHARE * record[0], errors_after + _LEVEL_SHARE * record[1]
            error *= error
            share = 3.0 * error / (error + corrected * corrected + 1e-12) - 1.0
            share = 0.0 if share < 0.0 else 1.0 if share > 1.0 else share
            mean = sum_m / weight
            away = base - mean
            spread_m = sum_mm - sum_m * mean
            if spread_m <= 0.0:
                spread_m = 0.0
            covariance = sum_my - sum_y * mean
            own_slope = (covariance + _PULL_B * slope) / (spread_m + _PULL_B)
            own_slope = 0.0 if own_slope < 0.0 else 2.0 if own_slope > 2.0 else own_slope
            own = sum_y / weight + own_slope * away
            after = (weight * own + _PULL_A * location) / (weight + _PULL_A)
            add((level, key, location, after))
            part, errors = share, errors_after * share + errors_before * (1.0 - share)
            if _BROAD[level] and away * away > _NEAR:
                reach = _reach(away, weight, spread_m, covariance)
                part, errors, weight = share * reach, errors * reach, weight * reach
            slope += part * (own_slope - slope)
            location += part * (after - location)
            if level and share * weight > support:
                support = share * weight
            spread = (_SPREAD_PULL * spread + errors) / (_SPREAD_PULL + weight)
        return Chain(location, spread, support, base, tuple(steps))

    def learn(self, chain: Chain, actual: float) -> None:
        """Adds one finished answer, log2(1 + tokens), observed or `imputed`, to every key of its chain."""
        base = chain.base
        square, product = base * base, base * actual
        young, levels = self._young, self._levels
        for level, key, before, after in chain.steps:
            # All written out, here and above: calls of `abs` and `min` would double the cost of a line.
            error_before = actual - before if actual > before else before - actual
            if error_before > _LARGEST_ERROR:
                error_before = _LARGEST_ERROR
            miss = actual - after
            error_after = miss if miss >= 0.0 else -miss
            if error_after > _LARGEST_ERROR:
                error_after = _LARGEST_ERROR
            cell = young.get(key)
            if cell is None:
                cell = self._touch(key)
                young = self._young
            if cell is None:
                young[key] = [1.0, base, actual, square, product, error_before, error_after]
            else:
                seen, sum_m, sum_y, sum_mm, sum_my, errors_before, errors_after = cell
                weight = 1.0
                if seen > 2.0:
                    # Outliers, far from what the key expects, count little.
                    typical = errors_after / seen
                    miss /= typical if typical > _LEAST_TYPICAL else _LEAST_TYPICAL
                    if (square_miss := miss * miss) > 1.0:
                        weight = (_TAILS + 1.0) / (_TAILS + square_miss)
                weighted = weight * base
                cell[:] = (
                    seen * DECAY + weight,
                    sum_m * DECAY + weighted,
                    sum_y * DECAY + weight * actual,
                    sum_mm * DECAY + weighted * base,
                    sum_my * DECAY + weighted * actual,
                    # Errors are not down-weighted: if a template's answers change, the new length soon counts as
                    # typical.
                    errors_before * DECAY + error_before,
                    errors_after * DECAY + error_after,
                )
            record = levels[level]
            record[0] += _LEVEL_PACE * (error_before - record[0])
            record[1] += _LEVEL_PACE * (error_after - record[1])
            record[2] += 1.0

    def _touch(self, key: int) -> Cell | None:
        """Moves a key that is not young to the young generation, and makes room there. None for a new key."""
        cell = self._old.pop(key, None)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        if cell is not None:
            self._young[key] = cell
        return cell

    def snapshot(self) -> bytes:
        """The whole state: a header, the levels' records, the entries sorted by key. 64 bytes per entry."""
        cells = {**self._old, **self._young}
        parts = [_HEADER.pack(_MAGIC, 1, len(LEVELS), len(cells), 0)]
        parts += [_LEVEL.pack(*record) for record in self._levels]
        parts += [_ENTRY.pack(key, *cells[key]) for key in sorted(cells)]
        return b"".join(parts)

    def merge(self, data: bytes) -> None:
        """Adds another history's statistics to this one; merge each observation once.

        If there are more keys than room, those with the most weight stay. Raises `ValueError` if `data` is no snapshot.
        """
        levels, entries = _parse(data)
        for mine, theirs in zip(self._levels, levels, strict=True):
            total = mine[2] + theirs[2]
            for i in (0, 1):
                # Weighted by shares, so that an empty history takes over the other's values bit for bit.
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
    """The imputed length of a cut answer: the mean above `at_least` of a normal with mean `location` and mean absolute
    error `spread`."""
    sigma = max(0.05, spread * 1.2533)
    z = (at_least - location) / sigma
    if z > 6.0:
        return at_least + sigma / z
    tail = 0.5 * math.erfc(z / math.sqrt(2.0))
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return max(at_least, location + sigma * density / tail)


def _reach(away: float, weight: float, spread_m: float, covariance: float) -> float:
    """The weight of a broad key's data at a location that is `away` from their mean."""
    # Squares: the spread of the key's data in m, and the part of the actual lengths' spread that m explains.
    told = covariance * covariance / (spread_m + 1e-9) if covariance > 0.0 else 0.0
    return math.exp(-away * away / (2.0 + (12.0 * spread_m + 48.0 * told) / weight))


def _capped(cell: Cell) -> Cell:
    """Limits a merged cell to the weight of one that learned for long, so that it keeps adapting."""
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
