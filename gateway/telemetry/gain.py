"""What drafting gains per token over the plain pool at the present load, and at each load that there was.

At one band of load (a power of two of requests running beside an answer) the first of these that says anything counts:

    1. answers of both pools at that load, by length, as the gateway measured them
    2. the same by the engines' own histograms
    3. the drafting pool's answers at that load against the plain pool's learned speed curve, where it has been learned

and for the figure that a pool is judged by, where none of these knows the present load,

    4. answers of both pools at any loads that both have seen

else there is none. A profile that nothing was measured against is no comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from gateway.telemetry.source import PlainSpeed
from gateway.telemetry.tpot import Comparison, Lacking, TpotTable, against, compare, lacking

Key = tuple[str, str]
"""Pool and model, by the policy's names."""
_Tables = dict[tuple[str, str, int], TpotTable]
"""By pool, model and k."""


class Gains:
    """Times per token by pool, model and k: of the gateway's own requests, and by the engines' counters."""

    def __init__(self, window: Callable[[], float], plain_speed: PlainSpeed) -> None:
        """`window` is the time constant, in seconds, in which what was measured fades."""
        self._window = window
        self._plain_speed = plain_speed
        self._requests: _Tables = {}
        self._engines: _Tables = {}

    def request(self, now: float, key: Key, k: int, tokens: float, running: float, seconds: float) -> None:
        """One streamed answer."""
        self._table(self._requests, key, k).observe(now, tokens, running, seconds)

    def engine(
        self, now: float, key: Key, k: int, tokens: float, running: float, seconds: float, number: float
    ) -> None:  # fmt: skip
        """The mean of what an engine finished between two pages."""
        self._table(self._engines, key, k).observe(now, tokens, running, seconds, number)

    def present(self, key: Key, k: int, plain: Sequence[str], now: float) -> Comparison | None:
        """Drafting k against the plain pool of `plain` that tells most, at the present load."""
        if not k:
            return None
        for tables in (self._requests, self._engines):
            mine = tables.get((*key, k))
            if mine is not None and mine.band is not None:
                found = self._at(key, k, plain, now, mine.band)
                return found or self._pairs(key, k, plain, now)
        return None

    def lacking(self, key: Key, k: int, plain: Sequence[str], now: float) -> Lacking | None:
        """How far `present` is from a comparison; None without a plain pool, where there is none to come."""
        found = [
            lacking(tables.get((*key, k)), tables.get((pool, key[1], 0)), pool, now)
            for tables in (self._requests, self._engines)
            for pool in plain
        ]
        return max(found, key=lambda one: (one.alike, min(one.mine, one.theirs), one.mine + one.theirs), default=None)

    def by_load(self, key: Key, k: int, plain: Sequence[str], now: float) -> tuple[Comparison, ...]:
        """One comparison for each band of load at which the pool has served lately and there is something to say."""
        if not k:
            return ()
        tables = (self._requests.get((*key, k)), self._engines.get((*key, k)))
        bands = sorted(set().union(*(table.bands(now) for table in tables if table is not None)))
        found = (self._at(key, k, plain, now, band) for band in bands)
        return tuple(one for one in found if one is not None)

    def depths(self, key: Key, k: int, now: float) -> Comparison | None:
        """k drafts against k - 1 in the same pool, where both have run lately."""
        deeper, base = self._requests.get((*key, k)), self._requests.get((*key, k - 1))
        return compare(deeper, base, now, "requests") if k > 1 and deeper and base else None

    def keep(self, known: Iterable[Key]) -> None:
        """Drops the pools and models that are not among these."""
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
