"""Detects engines that slow each other because they share a GPU without isolation (time-slicing, vGPU).

An engine's mean step time over a scrape interval depends on its batch, on joining prompts, contexts and tasks, and on
the other engine if they share a GPU. The loads of independent engines rise and fall together with the traffic, so
levels prove nothing. The regression therefore uses changes between consecutive intervals:

    d log step = a dL + b d(L^2) + c d(joins) + e d(prompt tokens) + g dX
    L = log2(1 + n), X = 1 - exp(-n of the other)

fitted by least squares over exponentially decaying sums. n is the mean number of decoding requests: the sum of the
inter-token latencies per second, not the gauge of one instant. X is the share of time in which the other engine is
busy at all, since one decoding stream takes as many GPU time slices as twenty. The slowdown factor, with the other
engine as busy as it usually is when it is busy, is

    factor = exp(g E[X^2] / E[X])

Two engines slow each other if both factors are large and significant for long enough. The verdict stays until it is
measured otherwise or one of them restarts. If the other engine never idles, the effect cannot be measured and nothing
is reported. Work per page is bounded: each page is compared with `PARTNERS` other engines in turn.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.telemetry.counters import Delta
from gateway.telemetry.mtp import Latch

PARTNERS = 4
"""Other engines that one page is compared with."""
KEPT = 6
"""Intervals kept per engine: the scrapes of two engines do not coincide."""
LEAST_STEPS = 20.0
"""Least sequence steps for an interval's mean step time to count."""
LEAST_LOAD = 0.3
MIN_SAMPLES = 60.0
SURE = 4.0
"""Standard errors that an effect must exceed; high, because there are many pairs."""
SLOWED, CLEAR = 1.10, 1.04
"""Factors above which two engines slow each other, and below which they no longer do."""
WINDOW = 600.0
SUSTAIN = 30.0
"""Seconds: the time constant of the sums, and how long a verdict must hold."""
JUDGE_EVERY = 8
_MOST_CHANGE = 1.0
_TERMS = 5


@dataclass(frozen=True, slots=True)
class Slowing:
    """Two engines that slow each other."""

    first: str
    second: str
    """URLs."""
    first_factor: float
    """Step time of `first` while `second` is busy / while it is idle."""
    second_factor: float
    samples: float
    since: float


class _Interval(NamedTuple):
    """What one engine did between two scrapes."""

    begun: float
    ended: float
    load: float
    """Mean number of decoding requests."""
    log_step: float | None
    joins: float
    prompts: float


class _Sums:
    """Second moments of four own changes, the other engine's and the step's; upper triangle by rows."""

    __slots__ = ("at", "busy", "busy_square", "count", "weight", "xy")

    def __init__(self) -> None:
        self.xy = [0.0] * ((_TERMS + 1) * (_TERMS + 2) // 2)
        self.weight = self.busy = self.busy_square = self.at = 0.0
        self.count = 0

    def add(self, now: float, changes: Sequence[float], other: float) -> None:
        keep = math.exp(min(self.at - now, 0.0) / WINDOW)
        self.at = now
        xy, at = self.xy, 0
        for i, one in enumerate(changes):
            for two in changes[i:]:
                xy[at] = keep * xy[at] + one * two
                at += 1
        self.weight = keep * self.weight + 1.0
        self.busy = keep * self.busy + other
        self.busy_square = keep * self.busy_square + other * other
        self.count += 1

    def effect(self) -> tuple[float, float]:
        """The coefficient g and its standard error; the error is infinite where g cannot be determined."""
        size = _TERMS + 1
        rows, at = [[0.0] * size for _ in range(size)], 0
        for i in range(size):
            for j in range(i, size):
                rows[i][j] = rows[j][i] = self.xy[at]
                at += 1
        left = rows[_TERMS][_TERMS]
        # Gaussian elimination in order: the last pivot is the variation of X that the other terms do not explain.
        for i in range(_TERMS):
            pivot = rows[i][i]
            if pivot <= 1e-9 * max(self.xy[0], 1e-9) or pivot <= 1e-6 * self.weight:
                if i == _TERMS - 1:
                    return 0.0, math.inf
                continue
            for j in range(i + 1, size):
                share = rows[i][j] / pivot
                for m in range(j, size):
                    rows[j][m] -= share * rows[i][m]
                    rows[m][j] = rows[j][m]
        variation, common, left = rows[_TERMS - 1][_TERMS - 1], rows[_TERMS - 1][_TERMS], rows[_TERMS][_TERMS]
        free = self.weight - _TERMS
        if free < 1.0:
            return 0.0, math.inf
        return common / variation, math.sqrt(max(left, 0.0) / free / variation)

    @property
    def usual(self) -> float:
        """E[X^2] / E[X]: how busy the other engine is when it is busy."""
        return self.busy_square / self.busy if self.busy > 0.0 else 0.0


class _Pair:
    """Two engines, in the order of their URLs."""

    __slots__ = ("factors", "latch", "since", "sums")

    def __init__(self) -> None:
        self.sums = (_Sums(), _Sums())
        """Of the first beside the second, and of the second beside the first."""
        self.latch = Latch()
        self.factors = (1.0, 1.0)
        self.since = 0.0

    def judge(self, now: float) -> None:
        found = []
        for sums in self.sums:
            effect, error = sums.effect() if sums.weight >= MIN_SAMPLES else (0.0, math.inf)
            if error == math.inf:
                return
            found.append((effect * sums.usual, error * sums.usual))
        slowed = all(effect > SURE * error and effect > math.log(SLOWED) for effect, error in found)
        clear = any(effect + 2.0 * error < math.log(SLOWED) and effect < math.log(CLEAR) for effect, error in found)
        was = self.latch.on
        if self.latch.update(now, SUSTAIN, bad=slowed, good=clear) and not was:
            self.since = now
        first, second = (math.exp(min(effect, 5.0)) for effect, _ in found)
        self.factors = first, second


class Neighbours:
    """`take` every page; `found` lists the pairs. Use it from one event loop."""

    def __init__(self) -> None:
        self._engines: dict[str, deque[_Interval]] = {}
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._turn = 0

    def take(self, url: str, at: float, deltas: Iterable[Delta]) -> None:
        """Records one server's differences between two scrapes, of all its models and ranks."""
        rows = list(deltas)
        if not rows:
            return
        if any(row.reset for row in rows):
            # Another process, and perhaps another GPU.
            self._forget({url})
            return
        kept = self._engines.get(url)
        if kept is None:
            kept = self._engines[url] = deque(maxlen=KEPT)
        kept.append(_interval(at, rows))
        # Judge the last interval but one: by now the overlapping pages of the other engines have arrived.
        if len(kept) > 2 and (changes := _changes(kept[-3], kept[-2])) is not None:
            self._compare(url, kept[-3], kept[-2], changes)

    def follow(self, urls: Iterable[str]) -> None:
        """Forgets all engines that are not in `urls`."""
        self._forget(set(self._engines) - set(urls))

    def found(self) -> list[Slowing]:
        """Pairs that slow each other now."""
        return [
            Slowing(first, second, *pair.factors, min(sums.weight for sums in pair.sums), pair.since)
            for (first, second), pair in self._pairs.items()
            if pair.latch.on
        ]

    def _forget(self, urls: set[str]) -> None:
        for url in urls:
            self._engines.pop(url, None)
        if urls:
            self._pairs = {key: pair for key, pair in self._pairs.items() if not urls & set(key)}

    def _compare(self, url: str, before: _Interval, after: _Interval, changes: tuple[float, ...]) -> None:
        others = [other for other in self._engines if other != url]
        for at in range(min(PARTNERS, len(others))):
            other = others[(self._turn + at) % len(others)]
            was, now = (_load_during(self._engines[other], i.begun, i.ended) for i in (before, after))
            if was is None or now is None:
                continue
            x = 1.0 - math.exp(-now)
            change = x - (1.0 - math.exp(-was))
            key = (url, other) if url < other else (other, url)
            pair = self._pairs.get(key)
            if pair is None:
                pair = self._pairs[key] = _Pair()
            sums = pair.sums[key[0] != url]
            sums.add(after.ended, (*changes[:-1], change, changes[-1]), x)
            if not sums.count % JUDGE_EVERY:
                pair.judge(after.ended)
        self._turn += PARTNERS


def _interval(at: float, rows: Sequence[Delta]) -> _Interval:
    seconds = max(max(row.seconds for row in rows), 1e-3)

    def total(name: str) -> float:
        return sum(row.counts.get(name, 0.0) for row in rows)

    time, steps = total("step_sum"), total("step_count")
    step = math.log(time / steps) if steps >= LEAST_STEPS and time > 0.0 else None
    return _Interval(
        at - seconds, at, time / seconds, step, total("ttft_count") / seconds, total("prompt_tokens") / seconds / 1000.0
    )


def _changes(before: _Interval, after: _Interval) -> tuple[float, ...] | None:
    """The engine's own changes between two intervals, the step's last; None where they cannot be used."""
    if before.log_step is None or after.log_step is None or min(before.load, after.load) < LEAST_LOAD:
        return None
    was, now = math.log2(1.0 + before.load), math.log2(1.0 + after.load)
    step = after.log_step - before.log_step
    if abs(now - was) > _MOST_CHANGE:
        return None
    step = max(-_MOST_CHANGE, min(step, _MOST_CHANGE))
    return now - was, now * now - was * was, after.joins - before.joins, after.prompts - before.prompts, step


def _load_during(rows: Iterable[_Interval], begun: float, ended: float) -> float | None:
    """An engine's mean load from `begun` to `ended`; None if its pages cover less than half of it."""
    covered = load = 0.0
    for row in rows:
        part = min(row.ended, ended) - max(row.begun, begun)
        if part > 0.0:
            covered += part
            load += part * row.load
    return load / covered if covered >= 0.5 * (ended - begun) else None
