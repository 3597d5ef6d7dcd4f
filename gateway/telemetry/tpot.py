"""Compares the TPOT of a drafting pool with that of a plain pool, at equal load and equal length.

Pools seldom do the same work: one gets the long answers, one runs fuller. Each observation goes into a bucket by load
(requests running beside it, powers of two) and length (output tokens, powers of four), and two pools are compared only
in buckets that both have filled. A bucket keeps the decaying mean and variance of log seconds: the comparison is a
ratio, and with logarithms one stalled answer does not outweigh a hundred.

    gain = 1 - exp(-sum w (log plain - log mtp) / sum w),   w = n_plain n_mtp / (n_plain + n_mtp) per bucket

This weight minimises the variance if all buckets have the same spread; the variances are the cells' (`telemetry.cell`).

If the plain pool has no comparable answers, `against` uses its learned speed curve at the same lengths and load. The
curve's error is common to all buckets, so it is added after averaging.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.telemetry.cell import Cell

MIN_BUCKET = 4.0
"""Least observations per bucket on each side."""
MIN_SAMPLES = 20.0
"""Least answers in common buckets on each side."""
ALIKE = 0.01
"""Systematic standard error: within a bucket (a factor of two in load, four in length) the two pools' requests still
differ. An assumption, about a tenth of the growth in step time across a bucket."""
LATELY = 60.0
"""Time constant of the mean that is the present load, in seconds."""
DEVIATIONS = 2.0
"""Standard errors from the gain to `Comparison.low` and `high`."""

Bucket = tuple[int, int]
"""(log2 of the running requests, log4 of the output tokens)."""
Speed = Callable[[float, float], tuple[float, float] | None]
"""(output tokens, requests running beside) -> (TPOT in seconds, relative standard error); None where too little is
known."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """TPOT of drafting against plain."""

    gain: float
    """Share of the plain pool's TPOT that drafting saves; negative if it costs."""
    error: float
    """Standard error of `gain`, `ALIKE` included."""
    plain_seconds: float
    """TPOT, with the weights of the gain."""
    mtp_seconds: float
    samples: float
    """Decayed number of answers on the side with fewer."""
    buckets: int
    source: str
    """`requests`: measured at the gateway; `engines`: from the engines' counters, coarser in load and length;
    `curve`: drafting measured, plain from its learned speed curve."""
    load: int | None = None
    """The load band, log2 of the running requests; None: all loads that both pools have seen."""

    @property
    def running(self) -> tuple[float, float] | None:
        """The band's bounds in running requests."""
        if self.load is None:
            return None
        return 2.0 ** (self.load - 0.5) if self.load else 0.0, 2.0 ** (self.load + 0.5)

    @property
    def low(self) -> float:
        """The gain's lower bound."""
        return self.gain - DEVIATIONS * self.error

    @property
    def high(self) -> float:
        """The gain's upper bound."""
        return self.gain + DEVIATIONS * self.error

    @property
    def saved_ms(self) -> float:
        """Milliseconds per output token that drafting saves."""
        return 1000.0 * (self.plain_seconds - self.mtp_seconds)

    def as_dict(self) -> dict[str, object]:
        return {
            "tpot_improvement_ratio": round(self.gain, 4),
            "standard_error": round(self.error, 4),
            "plain_ms_per_token": round(1000.0 * self.plain_seconds, 3),
            "mtp_ms_per_token": round(1000.0 * self.mtp_seconds, 3),
            "samples": round(self.samples, 1),
            "buckets": self.buckets,
            "source": self.source,
            "running": [round(bound, 1) for bound in self.running] if self.running else None,
        }


def band_of(running: float) -> int:
    """The load band: the nearest power of two, as its exponent."""
    return round(math.log2(max(running, 1.0)))


def bucket_of(running: float, tokens: float) -> Bucket:
    return band_of(running), int(math.log2(max(tokens, 1.0)) / 2)


_Cells = Mapping[Bucket, Cell]


class TpotTable:
    """One pool's TPOT by bucket. An observation's weight decays by a factor e in `tau` seconds."""

    def __init__(self, tau: float) -> None:
        self._tau = tau
        self._cells: dict[Bucket, Cell] = {}
        self._lately = 0.0
        self._looked: float | None = None

    def observe(self, now: float, tokens: float, running: float, seconds: float, weight: float = 1.0) -> None:
        """Records one answer, or the mean of `weight` answers. Ignores values that cannot be a TPOT."""
        if not 0.0 < seconds < math.inf or tokens < 2 or not weight > 0:
            return
        cell = self._cells.setdefault(bucket_of(running, tokens), Cell(at=now))
        cell.fade(now, self._tau)
        cell.add(math.log(seconds), weight)
        cell.tokens_sum += weight * tokens
        cell.running_sum += weight * running
        share = 1.0 if self._looked is None else 1.0 - math.exp(min(self._looked - now, 0.0) / LATELY)
        self._lately += share * (running - self._lately)
        self._looked = now

    @property
    def band(self) -> int | None:
        """The band of the present or last load; None before the first answer."""
        return None if self._looked is None else band_of(self._lately)

    def bands(self, now: float) -> set[int]:
        """Load bands with enough observations."""
        return {bucket[0] for bucket, cell in self.cells(now).items() if _enough(cell)}

    def cells(self, now: float) -> Mapping[Bucket, Cell]:
        """The buckets, decayed to `now`."""
        for cell in self._cells.values():
            cell.fade(now, self._tau)
        return self._cells


def _enough(cell: Cell) -> bool:
    return cell.weight >= MIN_BUCKET and cell.count >= MIN_BUCKET


def _alike(mine: _Cells, theirs: _Cells, load: int | None = None) -> tuple[list[Bucket], float]:
    """The buckets with enough observations on both sides, and the answers in them on the side with fewer."""
    common = [b for b in mine if b in theirs and _enough(mine[b]) and _enough(theirs[b]) and load in (None, b[0])]
    return common, min(sum(cells[b].weight for b in common) for cells in (mine, theirs))


@dataclass(frozen=True, slots=True)
class Lacking:
    """The data towards a comparison, which needs `MIN_SAMPLES` answers of each pool at equal load and length."""

    plain: str
    mine: float
    """The drafting pool's answers at any load and length, decayed."""
    theirs: float
    """The plain pool's."""
    alike: float
    """In common buckets, on the side with fewer."""


def lacking(mtp: TpotTable | None, plain: TpotTable | None, name: str, now: float) -> Lacking:
    """The data that two tables hold for a comparison with the plain pool `name`."""
    mine, theirs = (table.cells(now) if table else {} for table in (mtp, plain))
    ours, others = (sum(cell.weight for cell in cells.values()) for cells in (mine, theirs))
    return Lacking(name, ours, others, _alike(mine, theirs)[1])


def compare(
    mtp: TpotTable, plain: TpotTable, now: float, source: str, load: int | None = None
) -> Comparison | None:  # fmt: skip
    """Compares two tables in their common buckets, of one load band or of all; None if the data is too little."""
    mine, theirs = mtp.cells(now), plain.cells(now)
    common, samples = _alike(mine, theirs, load)
    if not common or samples < MIN_SAMPLES:
        return None
    total = log_ratio = variance = log_plain = 0.0
    for bucket in common:
        a, b = mine[bucket], theirs[bucket]
        weight = a.weight * b.weight / (a.weight + b.weight)
        total += weight
        log_ratio += weight * (b.mean - a.mean)
        log_plain += weight * b.mean
        variance += weight**2 * (a.variance_of_mean + b.variance_of_mean)
    log_ratio /= total
    plain_seconds = math.exp(log_plain / total)
    gain = 1.0 - math.exp(-log_ratio)
    return Comparison(
        gain=gain,
        error=math.hypot((1.0 - gain) * math.sqrt(variance) / total, ALIKE),
        plain_seconds=plain_seconds,
        mtp_seconds=plain_seconds * (1.0 - gain),
        samples=samples,
        buckets=len(common),
        source=source,
        load=load,
    )


def against(mtp: TpotTable, speed: Speed, now: float, load: int) -> Comparison | None:
    """Compares one load band of a table with a learned speed; None if either has too little data."""
    total = log_ratio = variance = log_plain = doubt = 0.0
    found = [cell for (band, _), cell in mtp.cells(now).items() if band == load and _enough(cell)]
    for cell in found:
        told = speed(cell.tokens_sum / cell.weight, cell.running_sum / cell.weight)
        if told is None:
            return None
        seconds, error = told
        total += cell.weight
        log_ratio += cell.weight * (math.log(seconds) - cell.mean)
        log_plain += cell.weight * math.log(seconds)
        variance += cell.weight**2 * cell.variance_of_mean
        doubt = max(doubt, error)
    if total < MIN_SAMPLES:
        return None
    plain_seconds = math.exp(log_plain / total)
    gain = 1.0 - math.exp(-log_ratio / total)
    return Comparison(
        gain=gain,
        error=math.hypot((1.0 - gain) * math.hypot(math.sqrt(variance) / total, doubt), ALIKE),
        plain_seconds=plain_seconds,
        mtp_seconds=plain_seconds * (1.0 - gain),
        samples=total,
        buckets=len(found),
        source="curve",
        load=load,
    )
