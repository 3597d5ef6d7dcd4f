"""Parses a vLLM `/metrics` page into a `Snapshot`, with the metric names of all supported vLLM versions.

Names change between releases: `gpu_cache_usage_perc` became `kv_cache_usage_perc`, `time_per_output_token_seconds`
became `inter_token_latency_seconds`, and for two releases a page exports both. Each quantity lists its names, newest
first, and the newest one present is read. A quantity that is missing from the page is None or absent, never 0: an
unknown load must not look like an idle engine.

A page may hold several engines (label `engine`, one per data-parallel rank) and several models (`model_name`). Each
pair is one `Reading`. For the whole server, running and waiting requests are summed and the highest cache use counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.telemetry.exposition import Layout, Selector

GAUGES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}

COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("vllm:prompt_tokens",),
    "generation_tokens": ("vllm:generation_tokens",),
    "drafts": ("vllm:spec_decode_num_drafts",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens",),
    "accepted_at": ("vllm:spec_decode_num_accepted_tokens_per_pos",),
}
"""A reading has one `accepted_at_0`, `accepted_at_1`, ... per draft position in place of `accepted_at`."""

HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "step": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
    "generated": ("vllm:request_generation_tokens",),
}
"""Read as counters `NAME_sum` and `NAME_count`. `step` is per engine step under drafting, `tpot` is per token."""

MAX_POSITIONS = 32
_START = "process_start_time_seconds"


class EngineKey(NamedTuple):
    """Identifies an engine of a server; "" where the page has no such label."""

    model: str
    engine: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One engine's metrics at one instant. Counters run since the engine's start; missing ones are left out."""

    key: EngineKey
    running: float | None
    waiting: float | None
    kv_usage: float | None
    """0..1."""
    counters: Mapping[str, float]

    @property
    def drafting(self) -> bool:
        """Whether it has speculative-decoding counters, which vLLM exports only with a drafter."""
        return "drafts" in self.counters or "draft_tokens" in self.counters

    @property
    def positions(self) -> int:
        """Number of draft positions, k; 0 where there are no counters by position."""
        count = 0
        while position(count) in self.counters:
            count += 1
        return count


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One server's page. `at` is the gateway's clock when the page had been read."""

    at: float
    readings: tuple[Reading, ...]
    started: float | None
    """The server process's start, Unix seconds; None where the page does not say."""
    running: float | None
    waiting: float | None
    kv_usage: float | None
    drafting: bool | None
    """Whether an engine drafts; None where the page has no vLLM metrics at all."""
    positions: int
    """Draft positions, k; 0 where unknown."""


def position(index: int) -> str:
    """The name of a draft position's counter in a reading."""
    return f"accepted_at_{index}"


def _table() -> dict[str, tuple[str, int]]:
    """(field, rank) by metric name; rank 0 is the field's newest name."""
    rows = [*GAUGES.items(), *COUNTERS.items()]
    table = {name: (field, rank) for field, names in rows for rank, name in enumerate(names)}
    for field, names in HISTOGRAMS.items():
        for rank, name in enumerate(names):
            table |= {f"{name}_{part}": (f"{field}_{part}", rank) for part in ("sum", "count")}
    return table


class _Place(NamedTuple):
    """The reading and the field that a sample belongs to."""

    key: EngineKey
    field: str
    rank: int


PageLayout = Layout[_Place]


class PageReader:
    """Turns pages into snapshots. One instance serves all endpoints."""

    def __init__(self) -> None:
        self._names = _table()
        self._selector = Selector([*self._names, _START], self._place)

    def read(self, page: bytes, at: float, layout: PageLayout | None = None) -> Snapshot:
        """The page's snapshot; an empty one for a page that is not vLLM's. Never raises. Thread-safe.

        `layout` belongs to one back end and is kept from page to page: it makes a page like the last one cheaper.
        """
        started = None
        engines: dict[EngineKey, dict[str, tuple[int, float]]] = {}
        for series, value in self._selector.read(page, layout).items():
            if not 0.0 <= value < math.inf:
                continue
            place = series.meaning
            if place.field == _START:
                started = value
                continue
            values = engines.get(place.key)
            if values is None:
                values = engines[place.key] = {}
            old = values.get(place.field)
            if old is None or place.rank < old[0]:
                values[place.field] = place.rank, value
            elif place.rank == old[0]:
                # A label that this version does not know splits a quantity: the sum is the whole.
                whole = max(old[1], value) if place.field == "kv_usage" else old[1] + value
                values[place.field] = place.rank, whole
        return _snapshot(at, started, [_reading(key, values) for key, values in engines.items()])

    def _place(self, name: str, labels: Mapping[str, str]) -> _Place | None:
        key = EngineKey(labels.get("model_name", ""), labels.get("engine", ""))
        if name == _START:
            return _Place(key, _START, 0)
        field, rank = self._names[name]
        if field == "accepted_at":
            index = labels.get("position", "")
            if not (index.isascii() and index.isdigit() and len(index) <= 2 and int(index) < MAX_POSITIONS):
                return None
            field = position(int(index))
        return _Place(key, field, rank)


def _reading(key: EngineKey, values: Mapping[str, tuple[int, float]]) -> Reading:
    counters = {field: value for field, (_, value) in values.items() if field not in GAUGES}
    gauges = {field: values[field][1] for field in GAUGES if field in values}
    return Reading(key, gauges.get("running"), gauges.get("waiting"), gauges.get("kv_usage"), counters)


def _snapshot(at: float, started: float | None, readings: list[Reading]) -> Snapshot:
    return Snapshot(
        at=at,
        readings=tuple(readings),
        started=started,
        running=_sum(reading.running for reading in readings),
        waiting=_sum(reading.waiting for reading in readings),
        kv_usage=max((r.kv_usage for r in readings if r.kv_usage is not None), default=None),
        drafting=any(reading.drafting for reading in readings) if readings else None,
        positions=max((reading.positions for reading in readings), default=0),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
