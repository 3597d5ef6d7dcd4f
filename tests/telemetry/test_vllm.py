"""vLLM's pages across versions, engines and models."""

from __future__ import annotations

import pytest

from gateway.telemetry.vllm import EngineKey
from tests.telemetry.helpers import drafting, engine, read


@pytest.mark.parametrize("name", ["kv_cache_usage_perc", "gpu_cache_usage_perc"])
def test_cache_use_under_either_name(name: str) -> None:
    """SCRAPE-01: the gauge is found under its old and its new name."""
    assert read(engine(num_requests_running=3.0, **{name: 0.25})).kv_usage == 0.25


def test_cache_use_under_neither_name_is_unknown() -> None:
    """SCRAPE-01: without the gauge the use is unknown, not 0; so is every other figure."""
    snapshot = read(engine(num_requests_running=3.0))

    assert (snapshot.kv_usage, snapshot.waiting, snapshot.running) == (None, None, 3.0)


def test_the_newer_of_two_names_holds() -> None:
    """While a page has both names of one quantity, it is counted once, from the newer."""
    both = engine(
        gpu_cache_usage_perc=0.9,
        kv_cache_usage_perc=0.4,
        time_per_output_token_seconds_sum=8.0,
        time_per_output_token_seconds_count=4.0,
        inter_token_latency_seconds_sum=6.0,
        inter_token_latency_seconds_count=3.0,
    )
    snapshot = read(both)

    assert snapshot.kv_usage == 0.4
    assert snapshot.readings[0].counters == {"step_sum": 6.0, "step_count": 3.0}


def test_two_engines_on_one_page() -> None:
    """SCRAPE-02: data-parallel engines are told apart; load is summed and the fullest cache stands for the server."""
    page = "# TYPE vllm:spec_decode_num_drafts counter\n" + "".join(
        engine("e4b", rank, num_requests_running=n, num_requests_waiting=1.0, kv_cache_usage_perc=n / 10,
               spec_decode_num_drafts_total=100.0 * n)
        for rank, n in (("0", 2.0), ("1", 5.0))
    )  # fmt: skip
    snapshot = read(page)

    assert (snapshot.running, snapshot.waiting, snapshot.kv_usage) == (7.0, 2.0, 0.5)
    assert {r.key.engine: r.counters["drafts"] for r in snapshot.readings} == {"0": 200.0, "1": 500.0}


def test_several_models_on_one_page() -> None:
    """Each served model has its own counters."""
    snapshot = read(engine("a", "0", prompt_tokens_total=1.0) + engine("b", "0", prompt_tokens_total=2.0))

    assert [r.key for r in snapshot.readings] == [EngineKey("a", "0"), EngineKey("b", "0")]


def test_a_quantity_that_is_split_by_a_label_is_summed() -> None:
    """A counter that a later version splits by a further label counts as the sum."""
    line = 'vllm:generation_tokens_total{{engine="0",adapter="{}",model_name="m"}} {}\n'
    snapshot = read(line.format("a", 7) + line.format("b", 5) + line.format("c", 0))

    assert snapshot.readings[0].counters == {"generation_tokens": 12.0}


def test_drafting_is_read_from_the_counters_presence() -> None:
    """A drafting engine has the counters from its start, at 0, with one position for each draft token."""
    plain, mtp = read(engine(num_requests_running=0.0)), read(drafting(0, 0.0, 0.0, 0.0))

    assert (plain.drafting, plain.positions) == (False, 0)
    assert (mtp.drafting, mtp.positions) == (True, 3)


def test_a_page_without_vllm_metrics_says_nothing() -> None:
    """SCRAPE-04: where there is nothing to read, drafting and load are unknown."""
    snapshot = read("process_start_time_seconds 5.5\nhttp_requests_total 7\n")

    assert (snapshot.drafting, snapshot.running, snapshot.started) == (None, None, 5.5)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_an_impossible_figure_is_unknown(value: str) -> None:
    """A gauge or counter that can't be is left out rather than counted."""
    page = f'vllm:num_requests_running{{engine="0"}} {value}\nvllm:prompt_tokens_total{{engine="0"}} {value}\n'
    snapshot = read(page + engine(num_requests_waiting=1.0))

    assert snapshot.running is None
    assert all("prompt_tokens" not in reading.counters for reading in snapshot.readings)


@pytest.mark.parametrize("index", ["-1", "33", "x", "", "٣", "1e1"])
def test_a_position_that_is_none_is_left_out(index: str) -> None:
    """Draft positions are small whole numbers; others don't make the reading wrong."""
    line = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="e4b",position="{index}"}} 5\n'

    assert read(drafting(10, 0.5) + line).positions == 1
