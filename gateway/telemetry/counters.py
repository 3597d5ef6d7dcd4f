"""Differences counters across engine restarts, and sums the differences over a sliding time window.

A counter only grows while its process lives, and all counters of an engine restart together. If any counter of an
engine fell, or the process start time changed, every counter of that engine is new and its value is the difference.
Judging each counter alone would be wrong: a histogram's sum and count that both fell would give two negative numbers
with a plausible mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.telemetry.vllm import EngineKey, Reading, Snapshot, position

Counts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one engine counted between two scrapes."""

    key: EngineKey
    seconds: float
    """Between the scrapes; after a restart the new process may be younger."""
    counts: Counts
    """Increments by `Reading` name; only counters that moved, and with drafts those of every position."""
    reset: bool
    """Whether the engine restarted in between; `counts` are then the new process's own."""


class CounterTrack:
    """Differences one endpoint's counters from scrape to scrape."""

    def __init__(self) -> None:
        self.restarts = 0
        """Restarts seen: pages on which a counter had fallen."""
        self._at = 0.0
        self._started: float | None = None
        self._last: dict[EngineKey, Counts] = {}
        self._lost: dict[EngineKey, dict[str, float]] = {}

    def update(self, snapshot: Snapshot) -> list[Delta]:
        """The differences to the previous page. An engine that is seen for the first time has none."""
        fresh_process = None not in (snapshot.started, self._started) and snapshot.started != self._started
        deltas = []
        for reading in snapshot.readings:
            old = self._last.get(reading.key)
            if old is not None:
                deltas.append(self._delta(reading, old, snapshot.at - self._at, fresh_process))
            # A family that is missing from one page has not restarted: keep its last value for the next comparison.
            reset = bool(deltas) and deltas[-1].reset
            self._last[reading.key] = reading.counters if old is None or reset else {**old, **reading.counters}
        self.restarts += any(delta.reset for delta in deltas)
        self._at = snapshot.at
        self._started = snapshot.started if snapshot.started is not None else self._started
        return deltas

    def _delta(self, reading: Reading, old: Counts, seconds: float, fresh_process: bool) -> Delta:
        new = reading.counters
        reset = fresh_process or any(value < old.get(name, 0.0) for name, value in new.items())
        if not reset:
            # A counter that was not there before has no difference: its value may be hours old.
            counts = {n: v - old[n] for n, v in new.items() if n in old and v != old[n]}
            return Delta(reading.key, seconds, _with_positions(counts, old), False)
        lost = self._lost.setdefault(reading.key, {})
        for name, value in old.items():
            lost[name] = lost.get(name, 0.0) + value
        counts = {name: value for name, value in new.items() if value}
        return Delta(reading.key, seconds, _with_positions(counts, new), True)

    def totals(self) -> Iterator[tuple[EngineKey, dict[str, float]]]:
        """Each engine's counters, continued across its restarts, so that they never fall."""
        for key, last in self._last.items():
            lost = self._lost.get(key, {})
            yield key, {name: last.get(name, 0.0) + lost.get(name, 0.0) for name in {**last, **lost}}


def _with_positions(counts: dict[str, float], known: Counts) -> dict[str, float]:
    """Where there were drafts, a position at which none was accepted has a rate of 0, not an unknown one."""
    if "drafts" in counts:
        index = 0
        while (name := position(index)) in known:
            counts.setdefault(name, 0.0)
            index += 1
    return counts


class Window:
    """Sums of counts over the last `span` seconds, kept in `parts` time slices that expire as a whole."""

    def __init__(self, span: float, parts: int = 120) -> None:
        self.span = span
        self._width = span / parts
        self._slices: deque[tuple[int, dict[str, float]]] = deque()
        """(slice index since time 0, its sums), oldest first."""

    def add(self, now: float, counts: Counts) -> None:
        index = int(now / self._width)
        if not self._slices or self._slices[-1][0] < index:
            self._slices.append((index, {}))
            self._forget(now)
        sums = self._slices[-1][1]
        for name, value in counts.items():
            sums[name] = sums.get(name, 0.0) + value

    def total(self, now: float) -> dict[str, float]:
        """Sums over the whole window."""
        return self.recent(now, self.span)

    def recent(self, now: float, at_least: float, name: str = "", minimum: float = 0.0) -> dict[str, float]:
        """Sums over the last `at_least` seconds, extended further back until `name` reaches `minimum`."""
        self._forget(now)
        oldest = int((now - at_least) / self._width)
        sums: dict[str, float] = {}
        for index, counts in reversed(self._slices):
            if index <= oldest and sums.get(name, 0.0) >= minimum:
                break
            for field, value in counts.items():
                sums[field] = sums.get(field, 0.0) + value
        return sums

    def clear(self) -> None:
        self._slices.clear()

    def _forget(self, now: float) -> None:
        oldest = int((now - self.span) / self._width)
        while self._slices and self._slices[0][0] <= oldest:
            self._slices.popleft()


def mean(counts: Counts, histogram: str) -> float | None:
    """A histogram's mean over a difference, sum / count; None without observations."""
    count = counts.get(f"{histogram}_count", 0.0)
    return counts.get(f"{histogram}_sum", 0.0) / count if count > 0 else None


def seconds_per_token(counts: Counts) -> float | None:
    """TPOT in seconds of the requests that finished within a difference; None without any.

    Computed as decode time / (generated tokens - requests). The mean of `request_time_per_output_token_seconds` would
    be too low, since an answer of one token counts as 0 there; it is the fallback where the engine exports only that.
    """
    decode, tokens = counts.get("decode_sum"), counts.get("generated_sum")
    if decode is None or tokens is None:
        return mean(counts, "tpot")
    following = tokens - counts.get("generated_count", 0.0)
    return decode / following if following > 0 else None
