"""Acceptance from counters, and from an answer's own metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.telemetry.spec_decode import acceptance, counts_of, find_spec_metrics
from gateway.types import SpecSample
from tests.sim.helpers import FAST_MTP, say, sim


def test_the_definitions() -> None:
    """Rate, mean length, position rates and decay are vLLM's, from sums."""
    sample = SpecSample(drafts=100, draft_tokens=300, accepted_tokens=105, accepted_at=(60, 30, 15))
    found = acceptance(counts_of(sample))

    assert found is not None
    assert (found.rate, found.mean_length, found.positions) == (0.35, 2.05, (0.6, 0.3, 0.15))
    assert found.decay == (0.5, 0.5)


def test_nothing_drafted_is_unknown() -> None:
    """SCRAPE-04: without drafts there is no rate, rather than a rate of 0."""
    assert acceptance({}) is None
    assert acceptance({"drafts": 0.0, "draft_tokens": 0.0, "accepted_tokens": 0.0}) is None


def test_a_position_that_accepts_nothing_ends_the_decay() -> None:
    """No ratio is made of nothing."""
    found = acceptance(counts_of(SpecSample(10, 30, 5, (5, 0, 0))))

    assert found is not None
    assert found.decay == (0.0,)


def _spec(**fields: Any) -> bytes:
    body = {
        "acceptance_histogram": [40, 30, 30],
        "num_spec_steps": 100,
        "num_accepted_draft_tokens": 90,
        "num_draft_tokens": 200,
        **fields,
    }
    return orjson.dumps({"choices": [], "metrics": {"queue_time_ms": 1.5, "speculative_decoding": body}})


def test_an_answers_own_metrics() -> None:
    """The histogram of accepted tokens by step gives the counts by position."""
    assert find_spec_metrics(b"data: " + _spec() + b"\n\ndata: [DONE]\n\n") == SpecSample(100, 200, 90, (60, 30))


def test_blanks_and_a_missing_histogram_are_fine() -> None:
    """JSON may be spaced, and an older server may send the sums alone."""
    spaced = b'{"metrics": {"speculative_decoding" : {"num_spec_steps" : 9, "num_draft_tokens": 18, '
    spaced += b'"num_accepted_draft_tokens": 4}}}'

    assert find_spec_metrics(spaced) == SpecSample(9, 18, 4)


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b'{"metrics":{"speculative_decoding":null}}',
        b'{"choices":[{"message":{"content":"\\"speculative_decoding\\":{\\"num_spec_steps\\":1}"}}]}',
        _spec(num_spec_steps=0),
        _spec(num_spec_steps=-4),
        _spec(num_accepted_draft_tokens=500),
        _spec(num_draft_tokens="many"),
        _spec()[:120],
    ],
)
def test_what_can_not_be_is_none(tail: bytes) -> None:
    """A null, a text that looks like it, impossible numbers and a cut body give nothing."""
    assert find_spec_metrics(tail) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_servers_answers_carry_it(stream: bool) -> None:
    """Whole answers and streams of a server with per-request metrics are read, and add up to its counters."""
    body = say("Explain tides.", max_tokens=80, ignore_eos=True, stream=stream)
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with sim(replace(FAST_MTP, per_request_metrics=True)) as server:
        sample = find_spec_metrics((await server.post("/v1/chat/completions", body)).content)
        metrics = await server.metrics()

    assert sample is not None
    assert sample.drafts == metrics["vllm:spec_decode_num_drafts_total"][()]
    assert sample.accepted_tokens == metrics["vllm:spec_decode_num_accepted_tokens_total"][()]
    by_position = metrics["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert list(sample.accepted_at) == [by_position[(("position", str(i)),)] for i in range(2)]
