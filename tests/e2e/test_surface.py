"""The formats besides chat, as their own SDKs see them: Responses, Messages, batches, pooling, speech."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio

from tests.answers import cut_stream, reply, stream
from tests.e2e.fleet import MODEL, Fleet, fleet
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, get
from tests.stub import Call, Stub

LONG = "Write a detailed essay about the history of lighthouses."
LABEL = "Classify the sentiment of this review as positive or negative. Answer with one word: I loved it."
TOOL = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@pytest_asyncio.fixture
async def running() -> AsyncIterator[Fleet]:
    async with fleet() as made:
        yield made


@pytest_asyncio.fixture
async def client(running: Fleet) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest_asyncio.fixture
async def claude(running: Fleet) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as made:
        yield made


class TestResponses:
    async def test_they_are_routed_by_their_expected_length(self, client: openai.AsyncOpenAI) -> None:
        """A label goes to plain and an essay to MTP, with `max_output_tokens` as the cap; the name is the client's."""
        raw = client.responses.with_raw_response
        short = await raw.create(model=MODEL, input=LABEL, max_output_tokens=4)
        long = await raw.create(model="e4b", input=LONG, max_output_tokens=300)

        assert (short.headers["x-gateway-pool"], long.headers["x-gateway-pool"]) == ("plain", "mtp")
        answer = long.parse()
        assert (answer.model, answer.status) == ("e4b", "incomplete")
        assert answer.usage is not None
        assert answer.usage.output_tokens == 300

    async def test_a_stream_tells_the_whole_text_and_its_end(self, client: openai.AsyncOpenAI, running: Fleet) -> None:
        """Events come as they are, ended by `response.completed`, and count as a good answer with its usage."""
        events = [e async for e in await client.responses.create(model=MODEL, input=LABEL, stream=True)]

        assert events[0].type == "response.created"
        assert events[-1].type == "response.completed"
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert text == events[-1].response.output_text != ""
        await running.gateway.until(lambda: running.gateway.counted("gateway_requests_total", outcome="ok") == 1)
        assert running.gateway.counted("gateway_output_tokens_total") > 0

    async def test_a_stored_response_is_found_and_continued_where_it_is(
        self, client: openai.AsyncOpenAI, running: Fleet
    ) -> None:
        """`GET`, `cancel` and `previous_response_id` reach the endpoint that has the id, from either pool."""
        made = [
            await client.responses.create(model="e4b", input=text, max_output_tokens=cap)
            for text, cap in ((LABEL, 4), (LONG, 200))
        ]
        for one in made:
            got = await client.responses.with_raw_response.retrieve(one.id)
            found = got.parse()
            assert found.output_text == one.output_text
            assert (found.model, got.headers["x-gateway-model"]) == ("e4b", "served-e4b")
            more = await client.responses.with_raw_response.create(
                model=MODEL, input=LABEL, previous_response_id=one.id
            )
            assert more.headers["x-gateway-pool"] == ("plain" if one is made[0] else "mtp")
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            await client.responses.cancel(made[0].id)
        with pytest.raises(openai.NotFoundError, match="resp_nowhere"):
            await client.responses.retrieve("resp_nowhere")

    async def test_a_background_response_is_cancelled_at_its_endpoint(self, client: openai.AsyncOpenAI) -> None:
        """A response that still runs is cancelled by its id."""
        made = await client.responses.create(model=MODEL, input=LONG, background=True, max_output_tokens=8000)

        assert made.status == "queued"
        assert (await client.responses.cancel(made.id)).status == "cancelled"

    async def test_an_unknown_id_is_asked_for_everywhere(self, running: Fleet) -> None:
        """An id of another worker, or of before a restart, is found at the endpoint that knows it."""
        made = (await ask(running.mtp, {"model": "served-e4b", "input": "hi"}, "/v1/responses")).json()
        found = await get(running.url, f"/v1/responses/{made['id']}")

        assert found.status == 200
        assert found.json()["id"] == made["id"]

    async def test_tools_and_parse(self, client: openai.AsyncOpenAI) -> None:
        """A forced call comes back as an item; a schema as an object that `parse` reads."""
        import pydantic

        class City(pydantic.BaseModel):
            name: str
            large: bool

        tool: Any = {"type": "function", "name": "get_weather", "parameters": TOOL, "strict": True}
        called = await client.responses.create(model=MODEL, input="?", tools=[tool], tool_choice="required")
        parsed = await client.responses.parse(model=MODEL, input="Describe a city.", text_format=City)

        assert called.output[0].type == "function_call"
        assert called.output[0].name == "get_weather"
        assert isinstance(parsed.output_parsed, City)


class TestMessages:
    async def test_they_are_routed_by_their_expected_length(self, claude: anthropic.AsyncAnthropic) -> None:
        """Anthropic's format, streamed and not, with `max_tokens` as the cap."""
        raw = claude.messages.with_raw_response
        short = await raw.create(model=MODEL, max_tokens=4, messages=[{"role": "user", "content": LABEL}])
        long = await raw.create(model="e4b", max_tokens=300, messages=[{"role": "user", "content": LONG}])

        assert (short.headers["x-gateway-pool"], long.headers["x-gateway-pool"]) == ("plain", "mtp")
        answer = await long.parse()
        assert (answer.model, answer.stop_reason, answer.usage.output_tokens) == ("e4b", "max_tokens", 300)

    async def test_a_stream_adds_up(self, claude: anthropic.AsyncAnthropic, running: Fleet) -> None:
        """The SDK's own accumulation of a stream gives the text; it counts as a good answer with its usage."""
        async with claude.messages.stream(
            model="e4b", max_tokens=64, system="Be brief.", messages=[{"role": "user", "content": LONG}]
        ) as events:
            text = "".join([piece async for piece in events.text_stream])
            final = await events.get_final_message()

        assert final.content[0].type == "text"
        assert final.content[0].text == text != ""
        assert final.model == "e4b"
        await running.gateway.until(lambda: running.gateway.counted("gateway_requests_total", outcome="ok") == 1)
        assert running.gateway.counted("gateway_output_tokens_total") == 64

    async def test_tools_and_counting(self, claude: anthropic.AsyncAnthropic) -> None:
        """A forced tool is called with an object; tokens are counted without generating."""
        tool: Any = {"name": "get_weather", "description": "Weather", "input_schema": TOOL}
        ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Weather in Osaka?"}], "tools": [tool]}
        called = await claude.messages.create(max_tokens=200, tool_choice={"type": "any"}, **ask)
        counted = await claude.messages.count_tokens(**ask)

        assert called.stop_reason == "tool_use"
        assert called.content[0].type == "tool_use"
        assert isinstance(called.content[0].input, dict)
        assert counted.input_tokens > 5


class TestErrorsByDialect:
    async def test_anthropics_sdk_raises_its_own_classes(self) -> None:
        """Errors that the gateway makes have Anthropic's form on Anthropic's paths, whatever their status."""
        extra = "server: {max_body_bytes: 2000}\naccess: {keys: [{name: a, env: KEY_A, requests_per_minute: 1}]}\n"
        async with fleet(extra, {"KEY_A": "secret-a-secret-a-secret"}) as made:

            def client(key: str) -> anthropic.AsyncAnthropic:
                return anthropic.AsyncAnthropic(base_url=made.url, api_key=key, max_retries=0)

            async with client("wrong") as wrong, client("secret-a-secret-a-secret") as right:
                ask: Any = {"max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
                with pytest.raises(anthropic.AuthenticationError) as refused:
                    await wrong.messages.create(model=MODEL, **ask)
                with pytest.raises(anthropic.NotFoundError, match="gemma-4-e4b"):
                    await right.messages.create(model="gemma-4", **ask)
                with pytest.raises(anthropic.RequestTooLargeError):
                    await right.messages.create(model=MODEL, system="x" * 3000, **ask)
                await right.messages.create(model=MODEL, **ask)
                with pytest.raises(anthropic.RateLimitError):
                    await right.messages.create(model=MODEL, **ask)
        body: Any = refused.value.body
        assert body["type"] == "error"
        assert body["error"]["type"] == "authentication_error"

    @pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
    async def test_nothing_up_is_overloaded(self, path: str) -> None:
        """503 is Anthropic's `overloaded_error`; a broken body its `invalid_request_error`."""
        async with gateway(one_pool("http://127.0.0.1:1", extra=", retry: {attempts: 1}")) as running:
            down = await ask(running.url, {"model": "m", "messages": [], "max_tokens": 1}, path)
            broken = await ask(running.url, b"{", "/v1/messages")

        assert down.status in (502, 503)
        assert down.json()["type"] == "error"
        inner: Any = down.json()["error"]
        assert inner["type"] == ("overloaded_error" if down.status == 503 else "api_error")
        assert broken.status == 400
        wrong: Any = broken.json()["error"]
        assert wrong["type"] == "invalid_request_error"

    async def test_a_cut_stream_ends_in_the_formats_own_error_event(self) -> None:
        """Half an answer never looks whole: each SDK raises where its stream is cut."""
        started = (
            b'event: message_start\ndata: {"type":"message_start","message":{"id":"x","type":"message","role":'
            + (
                b'"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":1,"output_tokens":0}}}\n\n'
            )
        )
        created = (
            b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"id":"r"}}\n\n'
        )
        async with Stub() as stub, gateway(one_pool(stub.url)) as running:
            stub.script += [cut_stream(started, b"event: message_st"), cut_stream(created, b"event: respo")]
            async with (
                anthropic.AsyncAnthropic(base_url=running.url, api_key="k", max_retries=0) as claude,
                openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="k", max_retries=0) as client,
            ):
                events = await claude.messages.create(
                    model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}], stream=True
                )
                with pytest.raises(anthropic.APIStatusError):
                    [event async for event in events]
                answers = await client.responses.create(model="m", input="x", stream=True)
                with pytest.raises(openai.APIError):
                    [event async for event in answers]
            await running.until(lambda: running.counted("gateway_requests_total", outcome="truncated") == 2)

    async def test_an_end_mark_within_the_text_is_no_end(self) -> None:
        """The answer's own words cannot pass for the end: line breaks are escaped there."""
        fake = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","text":"\\nevent: message_stop\\n"}\n\n'
        )
        async with Stub(stream(fake)) as stub, gateway(one_pool(stub.url)) as running:
            got = await ask(running.url, {"model": "m", "stream": True}, "/v1/messages")

        assert b"event: error" in got.body


class TestOtherRoutes:
    async def test_pooling_routes_answer(self, client: openai.AsyncOpenAI, running: Fleet) -> None:
        """Embeddings through the SDK, and vLLM's own routes, with an alias, under the client's name."""
        embedded = await client.embeddings.create(model="e4b", input=["a", "b"])
        assert (len(embedded.data), embedded.model) == (2, "e4b")
        bodies: dict[str, dict[str, object]] = {
            "/pooling": {"input": "a"},
            "/classify": {"input": "a"},
            "/score": {"queries": "a", "documents": ["b", "a"]},
            "/v1/score": {"text_1": "a", "text_2": "b"},
            "/rerank": {"query": "a", "documents": ["b", "a"]},
            "/v1/rerank": {"query": "a", "documents": ["b", "a"]},
            "/v2/rerank": {"query": "a", "documents": ["b", "a"], "top_n": 1},
            "/v2/embed": {"texts": ["a"]},
            "/tokenize": {"prompt": "a b"},
            "/detokenize": {"tokens": [104]},
            "/invocations": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
        }
        for path, body in bodies.items():
            got = await ask(running.url, {"model": "e4b", **body}, path)
            assert (path, got.status) == (path, 200)
            assert got.json().get("model", "e4b") == "e4b"
            assert got.header("x-gateway-reason") == "pass_through"

    async def test_a_batch_is_routed_and_answers_each(self, running: Fleet) -> None:
        """One choice for each conversation, in order; the estimate counts them all."""
        conversations = [[{"role": "user", "content": LABEL}], [{"role": "user", "content": "はいかいいえで答えて。"}]]
        got = await ask(
            running.url, {"model": "e4b", "messages": conversations, "max_tokens": 8}, "/v1/chat/completions/batch"
        )
        answer: Any = got.json()

        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert got.header("x-gateway-pool") == "plain"

    async def test_audio_is_heard(self, client: openai.AsyncOpenAI) -> None:
        """An upload through the SDK, as JSON and as text, under an alias."""
        heard = await client.audio.transcriptions.create(model="e4b", file=("a.wav", b"\0" * 70_000))
        plain: Any = await client.audio.transcriptions.create(
            model="e4b", file=("a.wav", b"\0" * 7), response_format="text"
        )

        assert heard.text == "70000 bytes of sound."
        assert plain.strip() == "7 bytes of sound."

    @pytest.mark.parametrize("path", ["/v1/embeddings", "/rerank"])
    async def test_unknown_models_are_404_with_the_nearest_names(self, running: Fleet, path: str) -> None:
        """MODEL-01: in the back end's own form, on every path."""
        got = await ask(running.url, {"model": "gemma-4-e4", "input": "x"}, path)

        assert (got.status, got.error["param"]) == (404, "model")
        assert "gemma-4-e4b" in str(got.error["message"])

    async def test_a_stream_of_an_unknown_format_is_whole_when_it_ends(self) -> None:
        """A route that the gateway has not heard of may end its streams as it likes; a cut is still told."""
        one = b'data: {"type":"transcript.text.done","text":"x"}\n\n'
        async with Stub() as stub, gateway(one_pool(stub.url)) as running:
            stub.script += [stream(one), cut_stream(one)]
            whole = await ask(running.url, {"model": "m"}, "/v1/some/future/route")
            cut = await ask(running.url, {"model": "m"}, "/v1/some/future/route")

        assert whole.body == one
        assert b'"error"' in cut.body


async def test_list_and_single_model_answer_head_too(running: Fleet) -> None:
    """`HEAD` where `GET` is, `OPTIONS` with what a path takes, and 405 with `Allow` elsewhere."""
    async with httpx.AsyncClient(base_url=running.url) as http:
        for path in ("/v1/models", f"/v1/models/{MODEL}", "/health"):
            answer = await http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
            assert int(answer.headers["content-length"]) > 0
        for path in ("/v1/chat/completions", "/v1/responses", "/rerank"):
            answer = await http.options(path)
            assert answer.status_code == 204
            assert "POST" in answer.headers["allow"]
        refused = await http.get("/v1/messages")

    assert (refused.status_code, refused.headers["allow"]) == (405, "POST, OPTIONS")
    assert refused.json()["type"] == "error"


async def test_the_old_guided_fields_are_translated() -> None:
    """PARAM-07: the choice is put under its new name behind the client's bytes, told, counted and bounded."""

    async def answer(call: Call) -> None:
        await reply({"choices": []})(call)

    raw = b'{"model":"m", "messages":[{"role":"user","content":"\xe3\x81\x82"}],"guided_choice":["a","b"]}'
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, raw)
        new = await ask(running.url, {"model": "m", "structured_outputs": {"choice": ["c"]}, "guided_choice": ["a"]})

        assert stub.requests[0].body == raw[:-1] + b',"structured_outputs":{"choice": ["a", "b"]}}'
        assert got.header("x-gateway-translated") == "guided_choice"
        assert int(got.header("x-gateway-predicted-output-tokens") or 99) <= 2
        assert new.header("x-gateway-translated") is None
        assert running.counted("gateway_legacy_guided_total", action="translate") == 1


@pytest.mark.parametrize(("mode", "status"), [("refuse", 400), ("pass", 200)])
async def test_the_policy_says_what_old_guided_fields_get(mode: str, status: int) -> None:
    """PARAM-07: refused with what to write instead, or passed byte for byte."""
    raw = b'{"model":"m","messages":[],"guided_regex":"a+"}'
    async with Stub(reply({})) as stub, gateway(one_pool(stub.url) + f"server: {{guided: {mode}}}\n") as running:
        got = await ask(running.url, raw)

        assert got.status == status
        assert [request.body for request in stub.requests] == ([raw] if status == 200 else [])
        assert running.counted("gateway_legacy_guided_total", action=mode) == 1


async def test_explain_reads_every_format(running: Fleet) -> None:
    """ROUTE-09: the decision is that of the live request, whatever the format and with the old fields translated."""
    bodies: dict[str, dict[str, object]] = {
        "/v1/responses": {"input": LONG, "max_output_tokens": 400},
        "/v1/messages": {"system": "Be thorough.", "messages": [{"role": "user", "content": LONG}], "max_tokens": 400},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "guided_choice": ["a", "b"]},
    }
    for path, body in bodies.items():
        told: Any = (await ask(running.url, {"model": MODEL, **body}, "/gateway/explain")).json()
        live = await ask(running.url, {"model": MODEL, **body}, path)

        assert live.status == 200
        assert told["decision"]["pool"] == live.header("x-gateway-pool")
        assert str(round(told["estimate"]["output_tokens"])) == live.header("x-gateway-predicted-output-tokens")


async def test_a_streamed_response_is_found_by_its_own_key_only() -> None:
    """The id is read from a stream's first event; to another key it does not exist, though the back end has it."""
    keys = {"KEY_A": "a" * 24, "KEY_B": "b" * 24}
    extra = "access: {keys: [{name: a, env: KEY_A}, {name: b, env: KEY_B}]}\n"
    async with (
        fleet(extra, keys) as made,
        openai.AsyncOpenAI(base_url=made.url + "/v1", api_key=keys["KEY_A"], max_retries=0) as own,
        openai.AsyncOpenAI(base_url=made.url + "/v1", api_key=keys["KEY_B"], max_retries=0) as other,
    ):
        events = [event async for event in await own.responses.create(model="e4b", input=LABEL, stream=True)]
        assert events[0].type == "response.created"
        response_id = events[0].response.id

        assert (await own.responses.retrieve(response_id)).model == "e4b"
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(response_id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.create(model=MODEL, input="hi", previous_response_id=response_id)
