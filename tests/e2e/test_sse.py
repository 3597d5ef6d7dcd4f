"""Event streams through a real gateway: bytes unchanged, every end told truthfully."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from gateway.api.usage import SILENT_STREAMS
from tests.answers import cut_stream, raw, reply, stream
from tests.e2e.events import DONE, ERROR, data_lines, delta, usage
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat, connected
from tests.stub import Answer, Call, Stub

STREAM = chat(stream=True)


async def through(answer: Answer, body: object = STREAM) -> bytes:
    """The body that a client gets when the back end answers so."""
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, body)
        assert got.status == 200
        return got.body


async def test_a_character_cut_by_a_chunk_edge_arrives_whole() -> None:
    """SSE-01: bytes pass as they are, also where a chunk ends within a character."""
    event = delta("你好")
    at = event.index("你".encode()) + 1

    assert await through(stream(event[:at], event[at:], delta("", "stop"), DONE)) == event + delta("", "stop") + DONE


async def test_the_end_mark_comes_once_and_last() -> None:
    """SSE-02, SSE-03: one `[DONE]`, at the end, then the zero chunk, and the connection serves the next request."""
    sent = delta("hi") + delta("", "stop") + DONE
    async with Stub(stream(sent)) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        for _ in range(2):
            await client.send("/v1/chat/completions", json.dumps(STREAM).encode())
            got = await client.answer()

            assert data_lines(got.body).count(b"[DONE]") == 1
            assert got.body == sent
            assert got.framing.endswith(b"0\r\n")


async def as_vllm(call: Call) -> None:
    """A back end that adds the usage chunk for those who ask."""
    request = call.request.json()
    assert isinstance(request, dict)
    asked = (request.get("stream_options") or {}).get("include_usage")
    await stream(delta("hi", "stop"), *([usage(9, 7)] if asked else []), DONE)(call)


@pytest.mark.parametrize(
    ("options", "seen", "counted"),
    [({"include_usage": False}, False, 0), (None, False, 7), ({"include_usage": True}, True, 7)],
)
async def test_the_client_gets_the_usage_chunk_only_if_it_asked(
    options: dict[str, bool] | None, seen: bool, counted: int
) -> None:
    """SSE-04: where the client says nothing the gateway asks for itself, counts, and hides the chunk exactly."""
    body = {**STREAM, **({"stream_options": options} if options else {})}
    async with Stub(as_vllm) as stub, gateway(one_pool(stub.url)) as running:
        for _ in range(SILENT_STREAMS):
            await ask(running.url, STREAM)
        assert all(request.json() == STREAM for request in stub.requests)
        got = await ask(running.url, body)

        assert got.body == delta("hi", "stop") + (usage(9, 7) if seen else b"") + DONE
        assert running.counted("gateway_output_tokens_total", pool="plain") == counted
        sent = stub.requests[-1].json()
        assert sent == {"stream_options": {"include_usage": True}, **body}


async def test_a_back_end_that_tells_usage_unasked_is_left_alone() -> None:
    """SSE-05: with vLLM's forced usage its clients get the chunk, always, and it is counted."""
    sent = delta("hi", "stop") + usage(9, 7) + DONE
    async with Stub(stream(sent)) as stub, gateway(one_pool(stub.url)) as running:
        for _ in range(3 * SILENT_STREAMS):
            assert (await ask(running.url, STREAM)).body == sent

        assert all(request.json() == STREAM for request in stub.requests)


async def test_a_policy_can_forbid_to_ask() -> None:
    """`ask_usage: false`: the bytes sent are the client's own, whatever is not learned."""
    raw = json.dumps(STREAM, indent=2).encode()
    async with Stub(as_vllm) as stub, gateway(one_pool(stub.url) + "server: {ask_usage: false}\n") as running:
        for _ in range(SILENT_STREAMS + 2):
            await ask(running.url, raw)

        assert all(request.body == raw for request in stub.requests)


async def test_a_usage_chunk_without_choices_passes_and_counts() -> None:
    """SSE-05: `choices: []` at the end is normal; its tokens are counted."""
    async with (
        Stub(stream(delta("hi", "stop"), usage(9, 7), DONE)) as stub,
        gateway(one_pool(stub.url)) as running,
    ):
        got = await ask(running.url, STREAM)

        assert usage(9, 7) in got.body
        assert running.counted("gateway_output_tokens_total", pool="plain") == 7


@pytest.mark.parametrize("with_reset", [False, True])
async def test_a_cut_stream_ends_in_an_error_event(with_reset: bool) -> None:
    """SSE-06, SSE-07: half an answer gets an error event and no `[DONE]`, and counts as truncated."""
    cut = cut_stream(delta("one "), delta("two "), delta("three")[:20], with_reset=with_reset)
    async with Stub(cut) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, STREAM)
        lines = data_lines(got.body)

        assert b"[DONE]" not in got.body
        assert [json.loads(line).get("error", {}).get("code") for line in lines] == [None, None, "connection_lost"]
        assert running.counted("gateway_requests_total", outcome="truncated") == 1
        assert running.in_flight == 0


async def test_a_stream_that_ends_properly_but_too_early_is_an_error_too() -> None:
    """SSE-06: a clean close without a finish reason is not a finished answer."""
    async with Stub(stream(delta("one "), delta("two "))) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, STREAM)

        assert json.loads(data_lines(got.body)[-1])["error"]["type"] == "upstream_error"
        assert running.counted("gateway_requests_total", outcome="truncated") == 1


async def test_a_stream_with_a_length_of_its_own_may_still_end_in_an_error_event() -> None:
    """SSE-06: the back end's `Content-Length` leaves no room for it, so the stream is chunked."""
    sent = delta("hi")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(sent)
    body = await through(raw(head + sent))

    assert body.startswith(sent)
    assert json.loads(data_lines(body)[-1])["error"]["type"] == "upstream_error"
    assert b"[DONE]" not in body


async def test_the_sdk_raises_on_a_cut_stream() -> None:
    """SSE-06: a person with the OpenAI SDK sees an exception, not half an answer."""
    cut = cut_stream(delta("one "), delta("two")[:30])
    async with (
        Stub(cut) as stub,
        gateway(one_pool(stub.url)) as running,
        openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        pieces = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError):
            async for _ in pieces:
                pass


async def test_an_error_as_first_event_fails_over() -> None:
    """SSE-08: nothing was delivered yet, so the client sees the other back end's stream only."""
    good = delta("fine", "stop") + DONE
    async with (
        Stub(stream(ERROR, DONE)) as bad,
        Stub(stream(good)) as healthy,
        gateway(one_pool(bad.url, healthy.url)) as running,
    ):
        # The picker may take the healthy one first, so ask until the broken one has been met.
        for _ in range(20):
            assert (await ask(running.url, STREAM)).body == good
            if bad.requests:
                break
        assert bad.requests


async def test_an_error_event_with_nowhere_else_to_go_passes() -> None:
    """SSE-08: the back end's own error is the answer where there is no other back end."""
    assert await through(stream(ERROR, DONE)) == ERROR + DONE


async def test_a_socket_held_open_after_an_error_event_does_not_hold_the_client() -> None:
    """SSE-09: the gateway ends the answer within a short fixed time."""

    async def held(call: Call) -> None:
        await stream(delta("a"), ERROR, finish=False)(call)

    assert await through(held) == delta("a") + ERROR


@pytest.mark.parametrize("status", [400, 404, 422, 500])
async def test_an_error_answer_to_a_stream_request_is_plain_json(status: int) -> None:
    """SSE-10: same status, same body, JSON, no event framing."""
    error = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": status}}
    async with Stub(reply(error, status)) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, STREAM)

        assert (got.status, got.json()) == (status, error)
        assert got.header("content-type") == "application/json"


async def test_silence_past_the_idle_limit_is_an_error_event() -> None:
    """SSE-11: the status has gone out, so the timeout is told in band."""
    quiet = stream(delta("one"), delta("two"), finish=False)
    async with Stub(quiet) as stub, gateway(one_pool(stub.url, extra=", timeouts: {idle: 100ms}")) as running:
        got = await ask(running.url, STREAM)

        assert json.loads(data_lines(got.body)[-1])["error"]["type"] == "timeout_error"
        assert running.counted("gateway_requests_total", outcome="timeout") == 1


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\u001c"])
async def test_only_line_ends_of_the_format_end_a_line(mark: str) -> None:
    """SSE-12: other Unicode line breaks inside an event do it no harm."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a' + mark.encode() + b'b"},"finish_reason":"stop"}]}\n\n'

    assert await through(stream(event, DONE)) == event + DONE


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
@pytest.mark.parametrize("space", [b" ", b""])
async def test_every_legal_line_end_is_read_and_passed(end: bytes, space: bytes) -> None:
    """SSE-13, SSE-14: CRLF, CR and LF, with and without the space, give usage and pass unchanged."""
    events = delta("hi", "stop") + usage(3, 5) + DONE
    events = events.replace(b"data: ", b"data:" + space).replace(b"\n", end)
    async with Stub(stream(events)) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, STREAM)

        assert got.body == events
        assert running.counted("gateway_output_tokens_total", pool="plain") == 5
        assert running.counted("gateway_requests_total", outcome="ok") == 1


async def test_one_event_of_a_megabyte_passes() -> None:
    """SSE-15: the whole reasoning in one line is passed on, in parts if need be."""
    event = delta("思" * 350_000, "stop")

    assert await through(stream(event[:500_000], event[500_000:], DONE)) == event + DONE


async def test_streams_are_marked_against_buffering() -> None:
    """SSE-16: a web server in front is told not to hold the stream back."""
    async with Stub(stream(delta("hi", "stop"), DONE)) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, STREAM, headers=(("accept-encoding", "gzip"),))

        # A web server between here and the engine must not pack what the gateway has to read either.
        assert stub.requests[0].get(b"accept-encoding") is None
        assert got.header("x-accel-buffering") == "no"
        assert got.header("cache-control") == "no-cache"
        assert got.header("content-encoding") is None


async def test_unknown_fields_survive() -> None:
    """SSE-17, SSE-18: what the gateway has never heard of passes in content and order; absent keys are no fault."""
    event = b'data: {"choices":[{"index":0,"delta":{"reasoning":"x"}}],"zzz":1,"aaa":[null]}\n\n'

    assert await through(stream(event, delta("", "stop"), DONE)) == event + delta("", "stop") + DONE


async def test_a_long_answer_arrives_to_its_last_byte() -> None:
    """SSE-19: more than one read, more than any buffer."""
    events = [delta(f"{n} " + "x" * 1000) for n in range(2000)]

    assert await through(stream(*events, delta("", "stop"), DONE)) == b"".join(events) + delta("", "stop") + DONE


async def test_the_first_token_passes_while_the_second_is_awaited() -> None:
    """A slow token is not held back until more arrive."""
    gate = asyncio.Event()
    answer = stream(delta("one"), delta("two", "stop"), DONE, gate=gate)
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await client.send("/v1/chat/completions", json.dumps(STREAM).encode())
        await client.head()
        first = await asyncio.wait_for(client.chunk(), 60)

        assert not gate.is_set()
        assert first == delta("one")
        gate.set()


async def test_heartbeats_fill_a_silence_and_are_no_first_token() -> None:
    """TIMEOUT-05: with a heartbeat set, comments go out while the back end is silent."""
    gate = asyncio.Event()
    policy = one_pool("{url}") + "server: {heartbeat: 30ms}\n"
    answer = stream(delta("one", "stop"), DONE, gate=gate, gate_before=0)
    async with (
        Stub(answer) as stub,
        gateway(policy.replace("{url}", stub.url)) as running,
        connected(running.url) as client,
    ):
        await client.send("/v1/chat/completions", json.dumps(STREAM).encode())
        await client.head()
        beats = [await asyncio.wait_for(client.chunk(), 60) for _ in range(2)]
        gate.set()

        assert beats == [b": keep-alive\n\n"] * 2
        while (piece := await client.chunk()).startswith(b":"):
            pass
        assert piece.startswith(delta("one", "stop"))


async def test_garbage_instead_of_http_is_a_bad_gateway() -> None:
    """RETRY-08: bytes that are not HTTP become a 502 with an error object."""
    async with Stub(raw(b"\x00\x01nonsense\r\n\r\n", then_close=True)) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, STREAM)

        assert (got.status, got.error["code"]) == (502, "bad_upstream_response")
