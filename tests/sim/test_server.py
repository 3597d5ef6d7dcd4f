"""The simulated server over real sockets, spoken to by the real SDK."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import openai
import pytest

from gateway.sim.server import create_app
from tests.servers import serve_in_thread
from tests.sim.helpers import FAST, FAST_MTP, say, sim


def test_the_synchronous_sdk_gets_whole_and_streamed_answers() -> None:
    """Same request, same answer, streamed or not, with usage that agrees."""
    with serve_in_thread(create_app(FAST_MTP)) as url, openai.OpenAI(base_url=url + "/v1", api_key="any") as client:
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [
            {"role": "user", "content": "Explain how bread rises."}
        ]
        whole = client.chat.completions.create(model="e4b", messages=messages, max_tokens=60)
        stream = client.chat.completions.create(
            model="e4b", messages=messages, max_tokens=60, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)

    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 60
    assert whole.choices[0].finish_reason == "length"


async def test_the_asynchronous_sdk_streams_with_several_tokens_in_a_chunk() -> None:
    """Under drafting there are fewer content chunks than tokens, and their text is the answer."""
    async with sim(FAST_MTP) as server:
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any")
        stream = await client.chat.completions.create(
            model="e4b",
            messages=[{"role": "user", "content": "Write a Python function."}],
            max_tokens=120,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        await client.close()

    content = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(content) < 100
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert chunks[-2].choices[0].finish_reason == "length"


async def test_a_plain_server_sends_one_token_a_chunk() -> None:
    """Continuous usage counts one more token with every chunk."""
    async with sim(replace(FAST, time_scale=1.0)) as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        events = await server.events(say("Explain tides.", max_tokens=12, stream=True, stream_options=options))

    assert events[-1] == "[DONE]"
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 12


async def test_forced_usage_is_on_every_chunk_unasked() -> None:
    """`--enable-force-include-usage` overrules the client."""
    async with sim(replace(FAST, force_include_usage=True)) as server:
        events = await server.events(say("Explain tides.", max_tokens=5, stream=True))

    assert all("usage" in event for event in events[:-1])


async def test_completions_take_text_lists_and_ids() -> None:
    """One choice a prompt and `n`, 16 tokens by default, prompts echoed on request."""
    async with sim() as server:
        ids = (await server.post("/tokenize", {"prompt": "one two three"})).json()
        assert (await server.post("/detokenize", {"tokens": ids["tokens"]})).json() == {"prompt": "one two three"}
        text = (await server.post("/v1/completions", {"prompt": "Once upon a time", "echo": True})).json()
        many = (await server.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 3})).json()
        tokens = (await server.post("/v1/completions", {"prompt": ids["tokens"], "max_tokens": 3})).json()

    assert text["choices"][0]["text"].startswith("Once upon a time")
    assert text["usage"]["completion_tokens"] == 16
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
    assert many["usage"] == {
        "prompt_tokens": 2,
        "total_tokens": 14,
        "completion_tokens": 12,
        "prompt_tokens_details": None,
    }
    assert tokens["usage"]["prompt_tokens"] == ids["count"] == 3


async def test_several_streamed_choices_are_each_complete() -> None:
    """With `n` the chunks interleave, and each choice ends once with its finish reason."""
    async with sim(FAST_MTP) as server:
        events = await server.events(say("Explain rain.", n=3, stream=True, max_tokens=20))

    choices = [event["choices"][0] for event in events[:-1]]
    for index in range(3):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["length"]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}


async def test_a_required_tool_is_called_and_streams_as_one_call() -> None:
    """Name and id come once, the argument pieces join to JSON, and the reason says tool_calls."""
    function = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    body = say("東京の天気は?", tools=[{"type": "function", "function": function}], tool_choice="required")
    async with sim(FAST_MTP) as server:
        whole = (await server.post("/v1/chat/completions", body)).json()["choices"][0]
        events = await server.events({**body, "stream": True})

    call = whole["message"]["tool_calls"][0]["function"]
    assert (call["name"], whole["finish_reason"]) == ("get_weather", "tool_calls")
    calls = [c for event in events[:-1] for c in event["choices"][0]["delta"].get("tool_calls", [])]
    assert [c["function"]["name"] for c in calls if "name" in c["function"]] == ["get_weather"]
    assert "".join(c["function"]["arguments"] for c in calls) == call["arguments"]


async def test_thinking_comes_as_reasoning_before_content() -> None:
    """Reasoning deltas precede content deltas, and the whole message has both apart."""
    async with sim() as server:
        body = say("Explain dew.", chat_template_kwargs={"enable_thinking": True}, thinking_token_budget=20)
        events = await server.events({**body, "stream": True, "max_tokens": 80})
        whole = await server.chat("Explain dew.", reasoning_effort="low", thinking_token_budget=20, max_tokens=80)

    kinds = [key for event in events[1:-1] for key in event["choices"][0]["delta"]]
    assert "reasoning" in kinds
    assert kinds.index("content") > kinds.index("reasoning")
    assert "reasoning" not in kinds[kinds.index("content") :]
    assert whole["choices"][0]["message"]["reasoning"]


async def test_per_request_metrics_tell_the_acceptance() -> None:
    """With the switch on, the usage chunk and the whole answer carry vLLM's metrics; the figures fit together."""
    async with sim(replace(FAST_MTP, per_request_metrics=True)) as server:
        body = say("Write code.", max_tokens=100, stream=True, stream_options={"include_usage": True})
        events = await server.events(body)
        whole = await server.chat("Write code.", max_tokens=100)

    for metrics in (events[-2]["metrics"], whole["metrics"]):
        spec = metrics["speculative_decoding"]
        assert sum(spec["acceptance_histogram"]) == spec["num_spec_steps"]
        assert spec["num_draft_tokens"] == 2 * spec["num_spec_steps"]
        assert spec["mean_acceptance_length"] == pytest.approx(
            1 + spec["num_accepted_draft_tokens"] / spec["num_spec_steps"]
        )
        assert metrics["time_to_first_token_ms"] > 0


async def test_request_ids_and_models() -> None:
    """The client's id is in the answer's id and, by switch, echoed; models carry their limits."""
    async with sim(replace(FAST, request_id_headers=True)) as server:
        answer = await server.post("/v1/chat/completions", say("Hi", max_tokens=2), **{"X-Request-Id": "abc"})
        models = (await server.client.get("/v1/models")).json()["data"]

    assert answer.json()["id"] == "chatcmpl-abc"
    assert answer.headers["x-request-id"] == "abc"
    assert [(m["id"], m["root"], m["max_model_len"]) for m in models] == [
        ("e4b", "google/gemma-4-E4B-it", 16384),
        ("gemma", "google/gemma-4-E4B-it", 16384),
    ]


async def test_small_routes_answer_as_vllm_does() -> None:
    """Health is empty, the version says simulated and how fast, unknown paths and methods get FastAPI's words."""
    async with sim() as server:
        get = server.client.get
        health, ping, version, load = [await get(p) for p in ("/health", "/ping", "/version", "/load")]
        missing, wrong = await get("/v1/nothing"), await get("/v1/chat/completions")

    assert (health.status_code, health.content, ping.status_code) == (200, b"", 200)
    assert version.json()["version"] == FAST.version == "0.33.0+simulated.x20"
    assert replace(FAST, time_scale=1.0).version == "0.33.0+simulated"
    assert version.json()["simulated"]["time_scale"] == 20.0
    assert load.json() == {"server_load": 0}
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})


async def test_an_api_key_guards_only_v1() -> None:
    """Without the key /v1 is 401 with vLLM's odd body; metrics stay open."""
    async with sim(replace(FAST, api_key="secret")) as server:
        refused = await server.post("/v1/chat/completions", say("Hi"))
        taken = await server.post("/v1/chat/completions", say("Hi", max_tokens=1), authorization="Bearer secret")
        metrics = await server.client.get("/metrics")

    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert (taken.status_code, metrics.status_code) == (200, 200)


async def test_a_full_queue_refuses_before_the_stream() -> None:
    """Above `--max-num-queued-reqs` the answer is a plain 503 without Retry-After; `n` counts as n."""
    async with sim(replace(FAST, max_num_queued_reqs=2)) as server:
        refused = await server.post("/v1/chat/completions", say("Hi", n=3, stream=True))
        metrics = await server.metrics()

    assert refused.status_code == 503
    assert refused.json()["error"]["type"] == "Service Unavailable"
    assert "retry-after" not in refused.headers
    assert metrics["vllm:admission_rejections_total"][(("reason", "max_num_queued_reqs"),)] == 1


async def test_mtp_refuses_what_vllm_refuses_there() -> None:
    """SPEC-03: min_p and logit_bias are 400 on a drafting server and fine on a plain one."""
    async with sim(FAST_MTP) as drafting, sim() as plain:
        for extra in ({"min_p": 0.05}, {"logit_bias": {"5": 1}}):
            refused = await drafting.post("/v1/chat/completions", say("Hi", **extra))
            taken = await plain.post("/v1/chat/completions", say("Hi", max_tokens=2, **extra))

            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "BadRequestError")
            assert taken.status_code == 200


async def test_prompt_tokens_details_tell_the_prefix_cache() -> None:
    """The second of two equal long prompts reports cached tokens where the switch is on."""
    async with sim(replace(FAST, prompt_tokens_details=True)) as server:
        text = "The quick brown fox. " * 50
        first = await server.chat(text, max_tokens=2)
        second = await server.chat(text, max_tokens=2)

    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"stream_options": {"include_usage": "on"}}),
        ("/v1/completions", {"prompt": "Explain tides.", "stream_options": {"include_usage": 1}}),
        ("/v1/messages", {}),
        ("/v1/responses", {"input": "Explain tides.", "max_output_tokens": 8}),
    ],
)
@pytest.mark.parametrize(("switch", "streamed"), [("true", True), ("Yes", True), (1, True), ("off", False), (0, False)])
async def test_a_switch_may_be_written_as_pydantic_reads_it(
    path: str, fields: dict[str, Any], switch: object, streamed: bool
) -> None:
    """Text and figures that pydantic reads as true or false, and so vLLM, mean the same here."""
    body = {**say("Explain tides.", max_tokens=8), **fields, "stream": switch}
    if not streamed:
        body.pop("stream_options", None)
    async with sim() as server:
        answer = await server.post(path, body)

    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream") == streamed
    assert ("usage" in answer.text) or not streamed


async def test_a_client_that_leaves_a_stream_aborts_its_request() -> None:
    """CANCEL: closing the connection mid-stream ends the engine's request, and nothing stays behind."""
    async with sim(replace(FAST, time_scale=0.2)) as server:
        body = say("Explain.", stream=True, ignore_eos=True, max_tokens=5000)
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_raw():
                break
        stats = await server.stats()
        while stats["running"] or stats["open"]:
            stats = await server.stats()

    assert stats["finished"]["abort"] == 1
    assert stats["kv_blocks_used"] == 0
    assert stats["clients_gone"] == 1


async def test_a_client_that_leaves_a_whole_request_aborts_it() -> None:
    """CANCEL: a non-streaming call that the client gives up is aborted too."""
    async with sim(replace(FAST, time_scale=0.2)) as server:
        body = say("Explain.", ignore_eos=True, max_tokens=5000)
        call = asyncio.create_task(server.post("/v1/chat/completions", body))
        while not (stats := await server.stats())["running"]:
            pass
        call.cancel()
        await asyncio.wait([call])
        while stats["running"] or stats["open"]:
            stats = await server.stats()

    assert stats["finished"] == {"stop": 0, "length": 0, "abort": 1}
