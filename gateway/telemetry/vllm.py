"""vLLM's metric names, across versions, and one page of them as a `Snapshot`.

Names move between releases: `gpu_cache_usage_perc` became `kv_cache_usage_perc`, `gpu_prefix_cache_*` became
`prefix_cache_*`, `time_per_output_token_seconds` became `inter_token_latency_seconds`, and for two releases a page has
both. Each quantity here lists its names, newest first; the newest one present is taken. What a page does not have is
None or absent, never 0: an unknown load is not an idle engine.

A page may hold several engines (`engine`, one per data-parallel rank) and several models (`model_name`). Each pair is a
`Reading`; the sum of the gauges of load and the highest cache use stand for the server.
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
    "finished": ("vllm:request_success",),
    "preemptions": ("vllm:num_preemptions",),
    "prefix_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    "drafts": ("vllm:spec_decode_num_drafts",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens",),
    "accepted_at": ("vllm:spec_decode_num_accepted_tokens_per_pos",),
}
"""By position, `accepted_at` becomes `accepted_at_0`, `accepted_at_1`, ... in a reading."""

HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "step": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "queue": ("vllm:request_queue_time_seconds",),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "generated": ("vllm:request_generation_tokens",),
}
"""Read as counters `NAME_sum` and `NAME_count`. `step` is per engine step under drafting, `tpot` is per token."""

MAX_POSITIONS = 32
_START = "process_start_time_seconds"


class EngineKey(NamedTuple):
    """Which engine of a server; "" where a page names none."""

    model: str
    engine: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One engine's figures at one instant. Counters count since the engine's start; absent ones are not there."""

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
        """Draft positions it counts by, k; 0 where it has no counters by position."""
        count = 0
        while position(count) in self.counters:
            count += 1
        return count


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One server's page. `at` is the gateway's clock when the page had arrived."""

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

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reading.key.model for reading in self.readings))


def position(index: int) -> str:
    """The counter's name of one draft position in a reading."""
    return f"accepted_at_{index}"


def _table() -> dict[str, tuple[str, int]]:
    """Field and rank (0: its newest name) by metric name."""
    rows = [*GAUGES.items(), *COUNTERS.items()]
    table = {name: (field, rank) for field, names in rows for rank, name in enumerate(names)}
    for field, names in HISTOGRAMS.items():
        for rank, name in enumerate(names):
            table |= {f"{name}_{part}": (f"{field}_{part}", rank) for part in ("sum", "count")}
    return table


class _Place(NamedTuple):
    """Where a sample's value goes."""

    key: EngineKey
    field: str
    rank: int


PageLayout = Layout[_Place]


class PageReader:
    """Pages -> snapshots. One is enough for all endpoints."""

    def __init__(self) -> None:
        self._names = _table()
        self._selector = Selector([*self._names, _START], self._place)

    def read(self, page: bytes, at: float, layout: PageLayout | None = None) -> Snapshot:
        """The page's snapshot; an empty one for anything that is not vLLM's. Never raises. Safe in a thread.

        `layout` is the back end's own, kept from page to page; with it a page like the last one costs less.
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
                # Further labels split a quantity (`finished_reason`, or one of a later version): the sum is the whole.
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
