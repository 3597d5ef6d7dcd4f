"""The end of a stream as a client sees it: held sockets, end marks and errors that are cut, errors in other forms."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.answers import cut_stream, stream
from tests.e2e.events import DONE, ERROR, delta
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat, connected
from tests.stub import Answer, Stub

CHAT = chat(stream=True)
MESSAGES = {"model": "m", "stream": True, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
RESPONSES = {"model": "m", "stream": True, "input": "hi"}
TEXT = {"model": "m", "stream": True, "prompt": "hi"}
LAST = delta("a") + delta("", "stop")


def named(kind: str, **more: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + json.dumps({"type": kind, **more}).encode() + b"\n\n"


SAID = named("message_start") + named("message_delta", usage={"input_tokens": 2, "output_tokens": 3})
TOLD = named("response.created", response={"id": "r"})
COMPLETED = named("response.completed", response={"id": "r", "status": "completed"})


async def relayed(answer: Answer, path: str, body: object, *, held: bool = False) -> tuple[bytes, dict[str, float]]:
    """What the client gets, and how it counts. The back end's idle limit is far longer than a test may take.

    `held`: the back end holds the socket of its answer, which the gateway must close.
    """
    async with Stub(answer) as stub, gateway(one_pool(stub.url, extra=", timeouts: {idle: 1h}")) as running:
        async with asyncio.timeout(60):
            got = await ask(running.url, body, path)
        if held:
            await stub.until(lambda: stub.open == 0)
        outcomes = ("ok", "backend_error", "truncated", "timeout")
        counts = {name: running.counted("gateway_requests_total", outcome=name) for name in outcomes}
        return got.body, {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("path", "body", "events"),
    [
        ("/v1/chat/completions", CHAT, [LAST, DONE]),
        ("/v1/chat/completions", CHAT, [LAST + DONE]),
        ("/v1/chat/completions", CHAT, [LAST, b"data: [DO", b"NE]\n", b"\n"]),
        ("/v1/chat/completions", CHAT, [LAST, DONE.replace(b"\n", b"\r\n"), b": bye\n\n"]),
        ("/v1/completions", TEXT, [b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n', DONE]),
        ("/v1/messages", MESSAGES, [SAID, named("message_stop")]),
        ("/v1/responses", RESPONSES, [TOLD, COMPLETED[:60], COMPLETED[60:]]),
    ],
)
async def test_a_socket_held_open_after_the_end_mark_does_not_hold_the_client(
    path: str, body: object, events: list[bytes]
) -> None:
    """SSE-03, SSE-09: a client without an SDK gets the body's end soon after `[DONE]`, and the answer is whole."""
    assert await relayed(stream(*events, finish=False), path, body, held=True) == (b"".join(events), {"ok": 1})


@pytest.mark.parametrize("done", [DONE.strip(), DONE[:-1]])
async def test_an_end_mark_without_its_blank_line_reaches_the_client(done: bytes) -> None:
    """SSE-02: what is held of the last line goes out at the end, in good order or not."""
    assert await relayed(stream(LAST, done), "/v1/chat/completions", CHAT) == (LAST + done, {"ok": 1})


@pytest.mark.parametrize("held", [False, True], ids=["done follows", "held"])
@pytest.mark.parametrize(
    "pieces",
    [
        [b'data: {"object":"error","message":"died","type":"x","param":null,"code":503}\n\n'],
        [b'data: {"object": "error", "message": "died"}\r\n\r\n'],
        [b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'],
        [b"data:  " + ERROR[6:]],
        [b'data: {\ndata:   "error": {\ndata:     "code": 500\ndata:   }\ndata: }\n\n'],
        [b"data: {\r\n", b'data:   "object":\r\ndata: "error"\r\n', b"data: }\r\n\r\n"],
    ],
)
async def test_an_error_in_the_middle_is_seen_in_every_form(pieces: list[bytes], held: bool) -> None:
    """SSE-09, ERROR-07: the answer counts as the back end's error, and a held socket does not hold the client."""
    events = [delta("a"), *pieces, *([] if held else [DONE])]
    got = await relayed(stream(*events, finish=not held), "/v1/chat/completions", CHAT, held=held)

    assert got == (b"".join(events), {"backend_error": 1})


@pytest.mark.parametrize("at", [3, 9, 12, 30])
async def test_an_error_that_comes_in_two_pieces_is_seen(at: int) -> None:
    """SSE-09: wherever the back end's writes cut its error event."""
    gate = asyncio.Event()
    answer = stream(delta("a") + ERROR[:at], ERROR[at:], DONE, gate=gate)
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await client.send("/v1/chat/completions", json.dumps(CHAT).encode())
        await client.head()
        assert await asyncio.wait_for(client.chunk(), 60) == delta("a")
        gate.set()
        while await asyncio.wait_for(client.chunk(), 60):
            pass

        assert running.counted("gateway_requests_total", outcome="backend_error") == 1


@pytest.mark.parametrize("at", [1, 30, len(ERROR) - 2])
async def test_a_cut_within_an_error_event_is_told_as_a_cut(at: int) -> None:
    """SSE-02, SSE-09: no reader acts on half an event, so without one of the gateway's the answer would look whole."""
    got, counts = await relayed(cut_stream(delta("a"), ERROR[:at]), "/v1/chat/completions", CHAT)

    assert got.startswith(delta("a") + b'\ndata: {"error": {"message": "the back end closed')
    assert (got.count(b"data: "), got[-2:], counts) == (2, b"\n\n", {"truncated": 1})


async def test_a_cut_below_an_error_events_name_is_told_as_well() -> None:
    """SSE-02, SSE-09: a name without data is no event, so the gateway's own follows."""
    got, counts = await relayed(cut_stream(SAID, b'event: error\ndata: {"type": "err'), "/v1/messages", MESSAGES)

    assert got.startswith(SAID + b"event: error\n\nevent: error\ndata: {")
    assert (got.endswith(b"}\n\n"), counts) == (True, {"backend_error": 1})


@pytest.mark.parametrize("error", [ERROR.strip(), ERROR[:-1], ERROR[:-2] + b"\r\n"])
async def test_an_error_event_that_is_the_last_thing_is_made_whole(error: bytes) -> None:
    """SSE-09: readers drop an event without its blank line, and the half answer before it would look whole."""
    got, counts = await relayed(stream(delta("a"), error), "/v1/chat/completions", CHAT)

    assert got.startswith(delta("a") + error)
    assert got.endswith(b"\n\n")
    assert counts == {"backend_error": 1}


@pytest.mark.parametrize(
    ("path", "body", "events"),
    [
        ("/v1/messages", MESSAGES, [SAID, named("message_stop")]),
        ("/v1/responses", RESPONSES, [TOLD, COMPLETED]),
    ],
)
async def test_events_that_only_their_data_names_end_a_stream(path: str, body: object, events: list[bytes]) -> None:
    """SSE-06: without `event:` lines a whole answer is whole, since SDKs read the data's type."""
    bare = [b"".join(line for line in event.splitlines(True) if not line.startswith(b"event:")) for event in events]
    broken = [event.replace(b"{", b"{\ndata: ", 1) for event in bare]

    for form in (bare, broken):
        assert await relayed(stream(*form), path, body) == (b"".join(form), {"ok": 1})


async def test_text_that_looks_like_an_end_or_an_error_is_text() -> None:
    """SSE-06: inside a JSON string line ends are escaped, so that neither is ever taken for one."""
    events = [delta('data: [DONE]\n\ndata: {"error": 1}'), delta('\ndata: {"object":"error"}'), LAST]
    # In lines, and in an event of its own, where nothing but what it stands in tells it from an error.
    events += [
        b'data: {\ndata: "choices": [], "x": {"error": 1}}\n\n',
        b'data: {\ndata: "error":\ndata: null}\n\n',
        DONE,
    ]

    assert await relayed(stream(*events), "/v1/chat/completions", CHAT) == (b"".join(events), {"ok": 1})
