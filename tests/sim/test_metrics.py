"""The simulated `/metrics`, read by Prometheus' own parser."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.sim.helpers import FAST, FAST_MTP, say, sim

GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions")


async def test_the_names_that_clients_read_exist() -> None:
    """Gauges, counters with `_total`, histograms, and no spec_decode line on a plain server."""
    async with sim() as server:
        samples = await server.metrics()
        text = (await server.client.get("/metrics")).text

    assert all(f"vllm:{name}" in samples for name in GAUGES)
    assert all(f"vllm:{name}_total" in samples for name in COUNTERS)
    assert "vllm:request_time_per_output_token_seconds_bucket" in samples
    assert "spec_decode" not in text
    assert 'vllm:num_requests_running{engine="0",model_name="e4b"} 0.0' in text


async def test_counters_and_histograms_agree_after_traffic() -> None:
    """Finished requests, generation tokens and histogram counts tell the same story."""
    async with sim() as server:
        answers = await asyncio.gather(*(server.chat(f"Explain item {i}.", max_tokens=20) for i in range(8)))
        samples = await server.metrics()

    generated = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert samples["vllm:generation_tokens_total"][()] == generated
    assert sum(samples["vllm:request_success_total"].values()) == 8
    for name in ("time_to_first_token_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"):
        assert samples[f"vllm:{name}_count"][()] == 8
        assert samples[f"vllm:{name}_bucket"][(("le", "+Inf"),)] == 8
    assert samples["vllm:inter_token_latency_seconds_count"][()] == generated - 8
    assert samples["vllm:num_requests_running"][()] == 0


async def test_spec_decode_counters_are_consistent_and_near_the_profile() -> None:
    """SPEC-04 of scraping: accepted is at most drafted, positions sum up, and the mean length is the profile's."""
    async with sim(FAST_MTP) as server:
        await asyncio.gather(*(server.chat(f"Explain item {i}.", max_tokens=250, ignore_eos=True) for i in range(12)))
        samples = await server.metrics()

    drafts = samples["vllm:spec_decode_num_drafts_total"][()]
    accepted = samples["vllm:spec_decode_num_accepted_tokens_total"][()]
    positions = samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert samples["vllm:spec_decode_num_draft_tokens_total"][()] == 2 * drafts
    assert sorted(positions) == [(("position", "0"),), (("position", "1"),)]
    assert sum(positions.values()) == accepted <= 2 * drafts
    assert 1 + accepted / drafts == pytest.approx(1.71, abs=0.1)


async def test_drafting_lowers_time_per_token_but_not_time_per_step() -> None:
    """Per step MTP is slower, per token faster: the two histograms tell them apart."""
    means = []
    for settings in (FAST, FAST_MTP):
        async with sim(settings) as server:
            await server.chat("Write a Python function.", max_tokens=300, ignore_eos=True)
            samples = await server.metrics()
        means.append(
            [
                samples[f"vllm:{name}_sum"][()] / samples[f"vllm:{name}_count"][()]
                for name in ("inter_token_latency_seconds", "request_time_per_output_token_seconds")
            ]
        )

    (plain_step, plain_token), (step, token) = means
    assert step > plain_step
    assert token < plain_token == pytest.approx(plain_step)


async def test_running_and_waiting_show_while_requests_are_on() -> None:
    """With one seat, two requests are one running and one waiting."""
    async with sim(replace(FAST, max_num_seqs=1, time_scale=0.2)) as server:
        body = say("Explain.", ignore_eos=True, max_tokens=4000)
        calls = [asyncio.create_task(server.post("/v1/chat/completions", body)) for _ in range(2)]
        stats = await server.stats()
        while (stats["running"], stats["waiting"]) != (1, 1):
            stats = await server.stats()
        samples = await server.metrics()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    assert samples["vllm:num_requests_running"][()] == 1
    assert samples["vllm:num_requests_waiting"][()] == 1
    assert samples["vllm:num_requests_waiting_by_reason"][(("reason", "capacity"),)] == 1
    assert samples["vllm:kv_cache_usage_perc"][()] > 0
