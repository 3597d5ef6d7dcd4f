"""A 200 that is no answer: a page of a proxy before the engine, JSON that is cut short, an error in disguise."""

from __future__ import annotations

import asyncio
import gzip
import json

import openai
import pytest

from gateway.types import Result
from gateway.upstream.breaker import Gate
from tests.answers import completion, reply, text
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat, connected
from tests.stub import Answer, Call, Stub

PAGE = b"<!doctype html>\n<html><body>Please sign in</body></html>"
JSON = [("content-type", "application/json")]
HTML = [("content-type", "text/html; charset=utf-8")]
EVENTS = [("content-type", "text/event-stream")]
CUT = b'{"id": "c1", "choices": [{"index": 0, "message": {"role": "assistant"}'
ERROR = {"error": {"message": "CUDA error", "type": "InternalServerError", "param": None, "code": 500}}

NO_ANSWERS = {
    "page": text(PAGE, 200, HTML),
    "page that says it is JSON": text(PAGE, 200, JSON),
    "words": text(b"upstream connect error", 200, [("content-type", "text/plain")]),
    "cut": text(CUT, 200, JSON),
    "cut after a brace": text(CUT.removesuffix(b"}") + b', "content": {}', 200, JSON),
    "empty": text(b"", 200, JSON),
    "list": text(b"[]", 200, JSON),
    "error": reply(ERROR),
    "error at the top": reply({"object": "error", "message": "CUDA error", "code": 500}),
    "error that names a good status": reply({"error": {"message": "CUDA error", "code": 200}}),
    "redirect": text(b"", 302, [("location", "https://login.example/")]),
    "nothing": text(b"", 204),
    "error event": text(f"data: {json.dumps(ERROR)}\n\ndata: [DONE]\n\n".encode(), 200, EVENTS),
    "error event after a BOM": text(f"\ufeffdata:{json.dumps(ERROR)}\r\n\r\n".encode(), 200, EVENTS),
    "error event in lines": text(b'data: {\ndata: "error": {"code": 500}\ndata: }\n\ndata: [DONE]\n\n', 200, EVENTS),
    "comments alone": text(b": ping\n\n: ping\n\n", 200, EVENTS),
    "end mark alone": text(b": ping\n\ndata: [DONE]\n\n", 200, EVENTS),
}
GOOD = completion(3, 5)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", NO_ANSWERS)
async def test_what_is_no_answer_is_asked_for_elsewhere(name: str, stream: bool) -> None:
    """RETRY-08, ERROR-04: nothing was delivered yet, so another endpoint answers, and the first one is blamed."""
    async with Stub(NO_ANSWERS[name]) as bad, Stub(GOOD) as good, gateway(one_pool(bad.url, good.url)) as running:
        answers = [await ask(running.url, chat(stream=stream)) for _ in range(4)]
        await running.until(lambda: running.counted("gateway_requests_total") == 4)

        assert [(answer.status, "choices" in answer.json()) for answer in answers] == [(200, True)] * 4
        assert len(good.requests) == 4
        assert running.counted("gateway_requests_total", outcome="ok") == 4
        assert running.counted("gateway_retries_total") == len(bad.requests) > 0
        first = next(one for one in running.core.pools["plain"].endpoints if one.url == bad.url)
        assert first.breaker.consecutive == len(bad.requests)


FAILED = b'{"response": {"id": "r", "status": "failed", "error": {"code": "server_error"}}, "type": "response.failed"}'


@pytest.mark.parametrize(
    "pieces",
    [
        [b"event: response.failed\ndata: " + FAILED + b"\n\n"],
        [b'event: error\ndata: {"code": "server_error", "message": "died", "type": "error"}\n\n'],
        [b'data: {"type": "response.failed", "response": {}}\n\n'],
        [b"event: response.failed\n", b"data: {\n", b'data: "response": {}\n', b"data: }\n", b"\n"],
        [b"data: {\n", b'data:   "error": {"message": "died"}\n', b"data: }\n\n"],
    ],
)
async def test_a_responses_stream_that_begins_with_a_failure_is_asked_for_elsewhere(pieces: list[bytes]) -> None:
    """RETRY-08, ERROR-07: as for chat, whatever names the failure and however many lines and pieces it comes in."""

    async def failing(call: Call) -> None:
        await call.head(200, [*EVENTS, ("transfer-encoding", "chunked")])
        for piece in pieces:
            await call.chunk(piece)
            await asyncio.sleep(0)
        await call.end()

    completed = b'event: response.completed\ndata: {"type": "response.completed"}\n\n'
    body = {"model": "m", "input": "hi", "stream": True}
    async with (
        Stub(failing) as bad,
        Stub(text(completed, 200, EVENTS)) as good,
        gateway(one_pool(bad.url, good.url)) as running,
    ):
        answers = [await ask(running.url, body, "/v1/responses") for _ in range(4)]
        await running.until(lambda: running.counted("gateway_requests_total") == 4)

        assert [(answer.status, answer.body) for answer in answers] == [(200, completed)] * 4
        assert running.counted("gateway_requests_total", outcome="ok") == 4
        assert running.counted("gateway_retries_total", **{"class": "error_event"}) == len(bad.requests) > 0
        first = next(one for one in running.core.pools["plain"].endpoints if one.url == bad.url)
        assert first.breaker.consecutive == len(bad.requests)


@pytest.mark.parametrize("said", [b"", b": ping\n\n: ping\n\n"], ids=["nothing", "comments"])
async def test_a_stream_without_an_event_ends_with_an_error_event(said: bytes) -> None:
    """SSE-06, RETRY-08: an SDK raises; it would take the stream for an answer without a word."""
    async with (
        Stub(text(said, 200, EVENTS)) as bad,
        gateway(one_pool(bad.url)) as running,
        openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        raw = await ask(running.url, chat(stream=True))
        with pytest.raises(openai.APIError, match="without an answer"):
            async for _ in await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            ):
                pass
        await running.until(lambda: running.counted("gateway_requests_total") == 2)

        assert raw.body.startswith(said)
        assert raw.body.removeprefix(said).lstrip().startswith(b"data: {")
        assert b"[DONE]" not in raw.body
        assert running.counted("gateway_requests_total", outcome="backend_error") == 2


@pytest.mark.parametrize("name", sorted(NO_ANSWERS.keys() - {"comments alone"}))
async def test_what_is_no_answer_passes_unchanged_if_there_is_nothing_better(name: str) -> None:
    """ERROR-04: the client sees what the back end said, byte for byte; metrics and breaker know better."""
    breaker = ", breaker: {failures: 3, shut: 60s}"
    async with Stub(NO_ANSWERS[name]) as bad, gateway(one_pool(bad.url, extra=breaker)) as running:
        through = [await ask(running.url, chat()) for _ in range(3)]
        direct = await ask(bad.url, chat())
        await running.until(lambda: running.counted("gateway_requests_total") == 3)

        assert {(answer.status, answer.body) for answer in through} == {(direct.status, direct.body)}
        assert {answer.header("content-type") for answer in through} == {direct.header("content-type")}
        assert running.counted("gateway_requests_total", outcome="backend_error") == 3
        assert running.core.pools["plain"].endpoints[0].breaker.gate is Gate.SHUT
        assert running.in_flight == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_error_in_disguise_that_blames_the_request_is_the_clients(stream: bool) -> None:
    """RETRY-02: a 400 that comes with the status 200 goes nowhere else and marks no back end."""
    error = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
    wrong = text(f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode(), 200, EVENTS) if stream else reply(error)
    async with Stub(wrong) as one, Stub(wrong) as other, gateway(one_pool(one.url, other.url)) as running:
        answers = [await ask(running.url, chat(stream=stream)) for _ in range(10)]
        await running.until(lambda: running.counted("gateway_requests_total") == 10)

        assert {answer.status for answer in answers} == {200}
        assert len(one.requests) + len(other.requests) == 10
        assert running.counted("gateway_requests_total", outcome="client_error") == 10
        assert all(endpoint.breaker.gate is Gate.OPEN for endpoint in running.core.pools["plain"].endpoints)


BODY = json.dumps({"choices": [{"index": 0, "message": {"content": "}<html>"}}]}).encode()
EVENT = b'data: {"error": null, "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
STREAM = gzip.compress(EVENT + b"data: [DONE]\n\n")
ANSWERS: dict[str, tuple[Answer, bytes]] = {
    "packed": ((text(gzip.compress(BODY), 200, [*JSON, ("content-encoding", "gzip")])), gzip.compress(BODY)),
    "stream without an error": (text(EVENT * 2 + b"data: [DONE]\n\n", 200, EVENTS), EVENT * 2 + b"data: [DONE]\n\n"),
    "packed stream": (text(STREAM, 200, [*EVENTS, ("content-encoding", "gzip")]), STREAM),
    "spaced": (text(b" \r\n" + BODY + b"\n\n", 200, JSON), b" \r\n" + BODY + b"\n\n"),
    "without a type": (text(BODY), BODY),
    "infinite": (text(b'{"logprob": -Infinity, "x": NaN}', 200, JSON), b'{"logprob": -Infinity, "x": NaN}'),
    "no UTF-8": (text(b'{"choices": [], "x": "\xff"}', 200, JSON), b'{"choices": [], "x": "\xff"}'),
    "no error": (text(b'{"error": null, "choices": []}', 200, JSON), b'{"error": null, "choices": []}'),
    "deep": (text(b'{"x":' + b"[" * 9999 + b"]" * 9999 + b"}", 200, JSON), b'{"x":' + b"[" * 9999 + b"]" * 9999 + b"}"),
    "long": (text(b'{"x":"' + b"a" * 6_000_000 + b'"}', 200, JSON), b'{"x":"' + b"a" * 6_000_000 + b'"}'),
    "events of another type": (text(b"data: {}\n\ndata: [DONE]\n\n", 200), b"data: {}\n\ndata: [DONE]\n\n"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_unusual_answer_is_an_answer(name: str) -> None:
    """HEADER-01, BODY-07: packed, spaced, not quite JSON, without a type, large: it passes and counts as good."""
    answer, body = ANSWERS[name]
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, chat())
        await running.until(lambda: running.counted("gateway_requests_total") == 1)

        assert (got.status, got.body) == (200, body)
        assert running.counted("gateway_requests_total", outcome=Result.OK.value) == 1


async def test_a_packed_stream_is_not_kept_until_it_ends() -> None:
    """HEADER-01: what a compressing proxy before the engine sends reaches the client piece by piece, unread."""
    gate, half = asyncio.Event(), len(STREAM) // 2

    async def answer(call: Call) -> None:
        kinds = [("content-type", "text/event-stream"), ("content-encoding", "gzip"), ("transfer-encoding", "chunked")]
        await call.head(200, kinds)
        await call.chunk(STREAM[:half])
        await gate.wait()
        await call.chunk(STREAM[half:])
        await call.end()

    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await client.send("/v1/chat/completions", json.dumps(chat(stream=True)).encode())
        status, _ = await client.head()
        assert (status, await client.chunk()) == (200, STREAM[:half])
        gate.set()
        assert await client.chunk() == STREAM[half:]
        assert await client.chunk() == b""
        await running.until(lambda: running.counted("gateway_requests_total", outcome=Result.OK.value) == 1)


async def test_a_page_on_a_path_that_is_passed_on_is_no_answer_either() -> None:
    """HEALTH-01: embeddings, files and what else has no form that is known here: a page in HTML is none of them."""
    async with (
        Stub(NO_ANSWERS["page"]) as bad,
        Stub(text(b"RIFF")) as good,
        gateway(one_pool(bad.url, good.url)) as running,
    ):
        answers = [await ask(running.url, {"model": "m", "input": "x"}, "/v1/audio/speech") for _ in range(4)]
        await running.until(lambda: running.counted("gateway_requests_total") == 4)

        assert [(answer.status, answer.body) for answer in answers] == [(200, b"RIFF")] * 4
        assert running.counted("gateway_retries_total") == len(bad.requests) > 0


async def test_a_page_in_a_stream_that_has_begun_is_an_error_event() -> None:
    """TIMEOUT-05, SSE-06: after heartbeats there is no status to pass on, and a page is no event."""

    async def late(call: object) -> None:
        await hold.wait()
        await NO_ANSWERS["page"](call)  # type: ignore[arg-type]

    hold = asyncio.Event()
    async with Stub(late) as bad, gateway(one_pool(bad.url) + "server: {heartbeat: 20ms}\n") as running:
        asking = asyncio.create_task(ask(running.url, chat(stream=True)))
        await running.until(lambda: running.in_flight == 1)
        await asyncio.sleep(0.1)
        hold.set()
        answer = await asking

        assert answer.body.startswith(b": keep-alive")
        assert b"Please sign in" not in answer.body
        assert b'"error"' in answer.body
        assert b"[DONE]" not in answer.body


async def test_a_redirect_leads_back_to_this_gateway() -> None:
    """HEADER-03: vLLM takes a slash off a path by a redirect to its own address, which a client may not reach."""

    async def slashed(call: Call) -> None:
        host = (call.request.get(b"host") or b"").decode()
        answer = text(b"", 307, [("location", f"http://{host}/v1/chat/completions")])
        await (answer if call.request.target.endswith(b"/") else GOOD)(call)

    async with Stub(slashed) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, chat(), "/v1/chat/completions/")

        assert (got.status, got.header("location")) == (307, "/v1/chat/completions")
