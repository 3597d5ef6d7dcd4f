"""The TPOT gain of drafting over the plain pool, at the present load and at each load served lately.

Loads are grouped in bands (powers of two of the requests that run beside an answer). Within a band the first source
with enough data is used:

    1. answers of both pools in that band, by length, as measured at the gateway
    2. the same from the engines' own histograms
    3. the drafting pool's answers in that band against the plain pool's learned speed curve

If none of them covers the present load, the gain that a pool is judged by falls back to

    4. answers of both pools at all loads that both have seen

Otherwise there is no gain. A speed profile alone, without measurements, does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from gateway.telemetry.source import PlainSpeed
from gateway.telemetry.tpot import Comparison, Lacking, TpotTable, against, compare, lacking

Key = tuple[str, str]
"""(pool, model), as named in the policy."""
_Tables = dict[tuple[str, str, int], TpotTable]
"""By (pool, model, k)."""


class Gains:
    """TPOT tables by pool, model and k: of the gateway's own requests and from the engines' counters."""

    def __init__(self, window: Callable[[], float], plain_speed: PlainSpeed) -> None:
        """`window` is the time constant, in seconds, by which measurements decay."""
        self._window = window
        self._plain_speed = plain_speed
        self._requests: _Tables = {}
        self._engines: _Tables = {}

    def request(self, now: float, key: Key, k: int, tokens: float, running: float, seconds: float) -> None:
        """Records one streamed answer; `seconds` is its TPOT, `running` the requests beside it."""
        self._table(self._requests, key, k).observe(now, tokens, running, seconds)

    def engine(
        self, now: float, key: Key, k: int, tokens: float, running: float, seconds: float, number: float
    ) -> None:  # fmt: skip
        """Records the mean of the `number` requests that an engine finished between two scrapes."""
        self._table(self._engines, key, k).observe(now, tokens, running, seconds, number)

    def present(self, key: Key, k: int, plain: Sequence[str], now: float) -> Comparison | None:
        """Drafting with k against the best-measured pool of `plain`, at the present load."""
        if not k:
            return None
        for tables in (self._requests, self._engines):
            mine = tables.get((*key, k))
            if mine is not None and mine.band is not None:
                found = self._at(key, k, plain, now, mine.band)
                return found or self._pairs(key, k, plain, now)
        return None

    def lacking(self, key: Key, k: int, plain: Sequence[str], now: float) -> Lacking | None:
        """What `present` still needs; None if there is no plain pool to compare with."""
        found = [
            lacking(tables.get((*key, k)), tables.get((pool, key[1], 0)), pool, now)
            for tables in (self._requests, self._engines)
            for pool in plain
        ]
        return max(found, key=lambda one: (one.alike, min(one.mine, one.theirs), one.mine + one.theirs), default=None)

    def by_load(self, key: Key, k: int, plain: Sequence[str], now: float) -> tuple[Comparison, ...]:
        """One comparison per load band that the pool has served lately, where there is enough data."""
        if not k:
            return ()
        tables = (self._requests.get((*key, k)), self._engines.get((*key, k)))
        bands = sorted(set().union(*(table.bands(now) for table in tables if table is not None)))
        found = (self._at(key, k, plain, now, band) for band in bands)
        return tuple(one for one in found if one is not None)

    def depths(self, key: Key, k: int, now: float) -> Comparison | None:
        """k against k - 1 draft tokens in the same pool, where both have run lately."""
        deeper, base = self._requests.get((*key, k)), self._requests.get((*key, k - 1))
        return compare(deeper, base, now, "requests") if k > 1 and deeper and base else None

    def keep(self, known: Iterable[Key]) -> None:
        """Drops all pools and models that are not in `known`."""
        kept = set(known)
        for tables in (self._requests, self._engines):
            for row in [row for row in tables if row[:2] not in kept]:
                del tables[row]

    def _at(self, key: Key, k: int, plain: Sequence[str], now: float, load: int) -> Comparison | None:
        return self._pairs(key, k, plain, now, load) or self._curve(key, k, plain, now, load)

    def _pairs(
        self, key: Key, k: int, plain: Sequence[str], now: float, load: int | None = None
    ) -> Comparison | None:  # fmt: skip
        for tables, source in ((self._requests, "requests"), (self._engines, "engines")):
            mine = tables.get((*key, k))
            if mine is not None:
                theirs = (tables.get((pool, key[1], 0)) for pool in plain)
                found = [c for table in theirs if table and (c := compare(mine, table, now, source, load))]
                if found:
                    return max(found, key=lambda comparison: comparison.samples)
        return None

    def _curve(self, key: Key, k: int, plain: Sequence[str], now: float, load: int) -> Comparison | None:
        for tables in (self._requests, self._engines):
            mine = tables.get((*key, k))
            if mine is not None:
                speeds = (partial(self._plain_speed, pool, *key) for pool in plain)
                found = [c for speed in speeds if (c := against(mine, speed, now, load))]
                if found:
                    return min(found, key=lambda comparison: comparison.error)
        return None

    def _table(self, tables: _Tables, key: Key, k: int) -> TpotTable:
        table = tables.get((*key, k))
        if table is None:
            table = tables[(*key, k)] = TpotTable(self._window())
        return table
