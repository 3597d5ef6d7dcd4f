"""Differences of counters across restarts, and windows of them."""

from __future__ import annotations

import pytest

from gateway.telemetry.counters import CounterTrack, Delta, Window, mean, seconds_per_token
from gateway.telemetry.vllm import EngineKey
from tests.telemetry.helpers import engine, read


def _page(total: float, count: float, rank: str = "0", **more: float) -> str:
    name = "request_time_per_output_token_seconds"
    return engine("e4b", rank, **{f"{name}_sum": total, f"{name}_count": count}, **more)


def _feed(*pages: str) -> list[list[Delta]]:
    track = CounterTrack()
    return [track.update(read(page, float(at))) for at, page in enumerate(pages)]


def test_a_restart_is_seen_and_only_the_new_process_counts() -> None:
    """SCRAPE-03: sum and count 10/5, 18/9, then 9/2: the mean after the restart is 9/2, not -9/-7."""
    first, second, third = _feed(_page(10, 5), _page(18, 9), _page(9, 2))

    assert first == []
    assert (mean(second[0].counts, "tpot"), second[0].reset) == (2.0, False)
    assert (mean(third[0].counts, "tpot"), third[0].reset) == (4.5, True)


def test_one_counter_that_fell_resets_all_of_its_engine() -> None:
    """SCRAPE-03: a counter that has already passed its old value is new all the same; other engines go on."""
    pages = [
        _page(10, 5, prompt_tokens_total=100.0) + _page(10, 5, rank="1"),
        _page(12, 2, prompt_tokens_total=300.0) + _page(12, 6, rank="1"),
    ]
    deltas = {delta.key.engine: delta for delta in _feed(*pages)[1]}

    assert deltas["0"].counts == {"tpot_sum": 12.0, "tpot_count": 2.0, "prompt_tokens": 300.0}
    assert (deltas["1"].counts, deltas["1"].reset) == ({"tpot_sum": 2.0, "tpot_count": 1.0}, False)


def test_another_start_time_is_a_restart_although_all_counters_grew() -> None:
    """A process that was away for long may come back with higher counters than it had."""
    start = "process_start_time_seconds {}\n"
    deltas = _feed(start.format(100) + _page(10, 5), start.format(900) + _page(50, 20))[1]

    assert deltas[0].reset
    assert deltas[0].counts == {"tpot_sum": 50.0, "tpot_count": 20.0}


def test_a_family_missing_from_one_page_is_not_a_restart() -> None:
    """The difference is taken to the last page that had it."""
    _, without, after = _feed(_page(10, 5, prompt_tokens_total=7), _page(11, 6), _page(11, 6, prompt_tokens_total=9))

    assert without[0].counts == {"tpot_sum": 1.0, "tpot_count": 1.0}
    assert (after[0].counts, after[0].reset) == ({"prompt_tokens": 2.0}, False)


def test_totals_never_fall() -> None:
    """What an engine counted before its restarts stays in its total."""
    track = CounterTrack()
    seen = []
    for at, count in enumerate((5, 9, 2, 4, 1)):
        track.update(read(_page(1.0, count), float(at)))
        seen.append(dict(track.totals())[EngineKey("e4b", "0")]["tpot_count"])

    assert seen == [5, 9, 11, 13, 14]
    assert track.restarts == 2


def test_an_engine_that_comes_later_has_no_difference_at_first() -> None:
    """What it counted before it was seen may be hours old."""
    _, second, third = _feed(_page(1, 1), _page(1, 1) + _page(50, 10, rank="1"), _page(1, 1) + _page(60, 12, rank="1"))

    assert [delta.key.engine for delta in second] == ["0"]
    assert {d.key.engine: d.counts for d in third} == {"0": {}, "1": {"tpot_sum": 10.0, "tpot_count": 2.0}}


def test_time_per_token_does_not_count_answers_of_one_token() -> None:
    """Decode time is divided by the tokens it made; the per-request histogram, where 0 stands for them, is second."""
    counts = {"decode_sum": 9.0, "generated_sum": 110.0, "generated_count": 20.0, "tpot_sum": 1.0, "tpot_count": 20.0}

    assert seconds_per_token(counts) == pytest.approx(0.1)
    assert seconds_per_token({"tpot_sum": 1.0, "tpot_count": 20.0}) == pytest.approx(0.05)
    assert seconds_per_token({"decode_sum": 0.0, "generated_sum": 5.0, "generated_count": 5.0}) is None
    assert seconds_per_token({}) is None


def test_a_window_forgets() -> None:
    """Counts leave the window within a slice of its span."""
    window = Window(60.0, parts=60)
    window.add(100.0, {"a": 1.0})
    window.add(130.0, {"a": 2.0, "b": 5.0})

    assert window.total(131.0) == {"a": 3.0, "b": 5.0}
    assert window.total(161.0) == {"a": 2.0, "b": 5.0}
    assert window.total(300.0) == {}


def test_the_recent_part_reaches_back_until_there_is_enough() -> None:
    """The latest seconds are enough where they hold enough; else it goes further back, to the window's end."""
    window = Window(600.0, parts=600)
    for second in range(100):
        window.add(1000.0 + second, {"drafts": 10.0})

    assert window.recent(1099.5, 5.0, "drafts", 0.0) == {"drafts": 50.0}
    assert window.recent(1099.5, 5.0, "drafts", 200.0) == {"drafts": 200.0}
    assert window.recent(1099.5, 5.0, "drafts", 5000.0) == {"drafts": 1000.0}
