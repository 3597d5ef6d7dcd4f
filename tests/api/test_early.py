"""Heartbeats before there is an answer: what the client sees of each way in which it can go on."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from gateway.api.dialect import OPENAI
from gateway.api.downstream import Downstream, Message
from gateway.api.early import EarlyBeats
from gateway.api.exchange import Exchange
from gateway.upstream.call import Opened
from tests.answers import close, reply, stream
from tests.e2e.events import DONE, delta
from tests.gateways import gateway, one_pool
from tests.raw_client import Answer, ask, chat, connected
from tests.stub import Answer as StubAnswer
from tests.stub import Call, Stub

BEAT = b": keep-alive\n\n"
WHOLE = delta("one", "stop") + DONE
REFUSAL = {"error": {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}}


def beating(*urls: str, extra: str = "") -> str:
    return one_pool(*urls, extra=extra) + "server: {heartbeat: 20ms}\n"


def later(gate: asyncio.Event, then: StubAnswer) -> StubAnswer:
    """Not even a head until the gate opens."""

    async def answer(call: Call) -> None:
        await gate.wait()
        await then(call)

    return answer


async def after_beats(url: str, gate: asyncio.Event, path: str = "/v1/chat/completions") -> Answer:
    """Reads two heartbeats, opens the gate, and reads on; `body` is what is no heartbeat."""
    async with connected(url) as client:
        body = chat(stream=True, max_tokens=9)
        await client.send(path, json.dumps(body).encode())
        status, headers = await asyncio.wait_for(client.head(), 60)
        assert [await asyncio.wait_for(client.chunk(), 60) for _ in range(2)] == [BEAT, BEAT]
        gate.set()
        pieces = b""
        while piece := await asyncio.wait_for(client.chunk(), 60):
            pieces += piece
        return Answer(status, headers, pieces.replace(BEAT, b""), b"")


def told(answer: Answer) -> dict[str, object]:
    (line,) = [line for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    assert b"[DONE]" not in answer.body
    error = json.loads(line[6:])["error"]
    assert isinstance(error, dict)
    return error


async def test_they_fill_the_silence_before_the_back_ends_head() -> None:
    """TIMEOUT-05: a back end that only answers with its first token; the answer itself is unchanged."""
    gate = asyncio.Event()
    async with (
        Stub(later(gate, stream(delta("one", "stop"), DONE))) as stub,
        gateway(beating(stub.url)) as running,
    ):
        got = await after_beats(running.url, gate)

        assert (got.status, got.body) == (200, WHOLE)
        assert str(got.header("content-type")).startswith("text/event-stream")
        assert got.header("x-accel-buffering") == "no"
        assert got.header("x-gateway-pool") == "plain"
        assert running.counted("gateway_requests_total", outcome="ok") == 1


async def test_they_fill_the_wait_for_a_place() -> None:
    """TIMEOUT-05: a queue is silent too."""
    gate = asyncio.Event()
    async with (
        Stub(stream(delta("one", "stop"), DONE, gate=gate, gate_before=0)) as stub,
        gateway(beating(stub.url, extra=", limits: {in_flight: 1}")) as running,
    ):
        first = asyncio.create_task(ask(running.url, chat()))
        await running.until(lambda: running.in_flight == 1)
        got = await after_beats(running.url, gate)
        await first

        assert got.body == WHOLE


async def test_a_late_refusal_is_told_within() -> None:
    """ERROR-04: with its own words, and counted as the client's."""
    gate = asyncio.Event()
    async with Stub(later(gate, reply(REFUSAL, 400))) as stub, gateway(beating(stub.url)) as running:
        got = await after_beats(running.url, gate)

        assert told(got) == REFUSAL["error"]
        assert running.counted("gateway_requests_total", outcome="client_error") == 1


async def test_a_client_that_leaves_as_its_answer_opens_loses_no_lease() -> None:
    """CANCEL-01: a cancel that comes with the answer is raised later, where the lease is known, and not over it."""
    opened = cast(Opened, object())

    async def opening() -> Opened:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return opened

    async def nothing() -> Message:
        raise AssertionError("the body is read already")

    async def sent(message: Message) -> None:
        raise AssertionError(message)

    async def serving() -> Opened:
        beats = EarlyBeats(Downstream(nothing, sent), Exchange("r", 0.0, ()), OPENAI, 60.0, list)
        found = await beats.during(opening())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        return found

    assert await asyncio.create_task(serving()) is opened


async def test_a_late_refusal_has_the_form_of_its_api() -> None:
    """On `/v1/messages` it is Anthropic's event."""
    gate = asyncio.Event()
    async with Stub(later(gate, reply(REFUSAL, 400))) as stub, gateway(beating(stub.url)) as running:
        got = await after_beats(running.url, gate, "/v1/messages")

        assert got.body.lstrip().startswith(b"event: error\n")
        assert told(got) == {"type": "invalid_request_error", "message": "too long"}


@pytest.mark.parametrize(
    ("then", "extra", "code"),
    [(close, "", "connection_lost"), (stream(WHOLE), ", timeouts: {total: 2s}", "upstream_timeout")],
)
async def test_an_error_of_the_gateways_is_told_within(then: StubAnswer, extra: str, code: str) -> None:
    """RETRY-08, SSE-11: the status is out, so the error comes as an event and the stream ends."""
    gate, never = asyncio.Event(), asyncio.Event()
    answer = later(never if extra else gate, then)
    async with Stub(answer) as stub, gateway(beating(stub.url, extra=extra)) as running:
        got = await after_beats(running.url, gate)

        assert told(got)["code"] == code
        assert running.in_flight == 0


async def test_other_back_ends_are_tried_as_ever() -> None:
    """SSE-08: comments are no answer, so that a first event with an error still fails over."""
    gate = asyncio.Event()
    bad = stream(b'data: {"error": {"message": "died", "code": 500}}\n\n', DONE)
    async with (
        Stub(later(gate, bad)) as a,
        Stub(later(gate, stream(WHOLE))) as b,
        gateway(beating(a.url, b.url)) as running,
    ):
        for _ in range(4):
            gate.clear()
            assert (await after_beats(running.url, gate)).body == WHOLE
        assert a.requests


async def test_a_quick_refusal_keeps_its_status() -> None:
    """SSE-10: nothing is different before the first heartbeat."""
    policy = one_pool("{url}") + "server: {heartbeat: 30s}\n"
    async with Stub(reply(REFUSAL, 400)) as stub, gateway(policy.replace("{url}", stub.url)) as running:
        got = await ask(running.url, chat(stream=True))

        assert (got.status, got.json()) == (400, REFUSAL)


async def test_a_client_that_leaves_amid_heartbeats_is_gone() -> None:
    """CANCEL-01: the back end's connection closes as ever."""
    async with Stub(later(asyncio.Event(), close)) as stub, gateway(beating(stub.url)) as running:
        async with connected(running.url) as client:
            await client.send("/v1/chat/completions", json.dumps(chat(stream=True)).encode())
            await asyncio.wait_for(client.head(), 60)
        await asyncio.wait_for(stub.connections[0].closed.wait(), 60)
        await running.until(lambda: running.in_flight == 0)

        assert running.counted("gateway_requests_total", outcome="client_closed") == 1
