"""What both connectors promise about one exchange: bytes, framing, streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.errors import ConnectionLost
from gateway.upstream.client import Connector
from tests.answers import cut_stream, stream, text
from tests.stub import Call, Stub
from tests.upstream.conftest import Open
from tests.upstream.exchange import closed, fetch, read, rest, send

OK = b"HTTP/1.1 200 OK\r\n"


async def test_request_arrives_as_given_and_answer_comes_back(connector: Connector, stub: Stub) -> None:
    """Method, target, headers and body reach the back end unchanged; status, headers and body come back."""
    stub.answer = text("こんにちは".encode(), 201, [("X-Mixed-Case", "a b")])

    answer = await fetch(connector, b'{"a": 1}', target=b"/v1/x?q=%E3%81%82&r=/", headers=[(b"x-one", b"1")])

    assert (answer.status, answer.body) == (201, "こんにちは".encode())
    assert answer.headers[b"x-mixed-case"] == b"a b"
    request = stub.requests[0]
    assert (request.method, request.target, request.body) == (b"POST", b"/v1/x?q=%E3%81%82&r=/", b'{"a": 1}')
    assert request.get(b"x-one") == b"1"


async def test_no_header_is_added(connector: Connector, stub: Stub) -> None:
    """HEADER-03: beside what is given, only the back end's own Host and the length are sent."""
    await fetch(connector, headers=[(b"x-one", b"1")])

    assert stub.requests[0].names() == {b"host", b"content-length", b"x-one"}
    assert stub.requests[0].get(b"host") == f"127.0.0.1:{stub.port}".encode()


@pytest.mark.parametrize(("method", "length"), [(b"GET", None), (b"POST", b"0")])
async def test_empty_body(connector: Connector, stub: Stub, method: bytes, length: bytes | None) -> None:
    """An empty body is announced where one is expected."""
    await fetch(connector, b"", method=method)

    assert stub.requests[0].get(b"content-length") == length


async def test_path_of_the_url_goes_before_every_target(open_connector: Open, stub: Stub) -> None:
    """A back end may live below a path."""
    await fetch(open_connector(stub.url + "/engine-a/"), target=b"/v1/models")

    assert stub.requests[0].target == b"/engine-a/v1/models"


async def test_ipv6_literal(open_connector: Open) -> None:
    """An IPv6 literal works as an address and is bracketed in Host."""
    async with Stub(host="::1") as stub:
        answer = await fetch(open_connector(stub.url))

        assert answer.status == 200
        assert stub.requests[0].get(b"host") == f"[::1]:{stub.port}".encode()


@pytest.mark.parametrize("part", [b"x\r\ny: 1", b"x\ny: 1", b"x\ry"])
async def test_line_break_in_a_header_is_refused(connector: Connector, stub: Stub, part: bytes) -> None:
    """No header value can smuggle in another header."""
    with pytest.raises(ValueError, match="line break"):
        await send(connector, headers=[(b"x-one", part)])

    assert stub.connections == []
    assert connector.statistics().active == 0


async def test_large_body_is_sent_whole(connector: Connector, stub: Stub) -> None:
    """BODY-01: a body of 10 MB arrives."""
    body = bytes(range(256)) * 40_000

    assert (await fetch(connector, body)).status == 200
    assert stub.requests[0].body == body


async def test_iterator_is_sent_in_chunks(connector: Connector, stub: Stub) -> None:
    """A body of unknown length goes out chunked, as it comes; an empty piece doesn't end it."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"abc", b"", b"d" * 300_000):
            yield piece

    assert (await fetch(connector, pieces())).status == 200
    assert stub.requests[0].body == b"abc" + b"d" * 300_000
    assert stub.requests[0].get(b"transfer-encoding") == b"chunked"
    assert stub.requests[0].get(b"content-length") is None
    assert connector.statistics().active == 0


async def test_error_of_the_iterator_is_the_senders(connector: Connector, stub: Stub) -> None:
    """What the body's source raises comes out of `send`, and the connection is closed."""

    class Gone(Exception):
        pass

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        raise Gone

    with pytest.raises(Gone):
        await send(connector, pieces())

    await closed(stub, 0)
    assert connector.statistics().active == 0


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
async def test_stream_is_relayed_byte_for_byte(connector: Connector, stub: Stub, newline: bytes) -> None:
    """SSE-12, SSE-13, SSE-14: whatever ends the lines, and U+2028 in the text, the bytes pass unchanged."""
    events = [b"data:{" + "a\u2028\u0085b".encode() + b"}" + newline * 2, b"data: [DONE]" + newline * 2]
    stub.answer = stream(*events)

    assert (await fetch(connector)).body == b"".join(events)


async def test_character_cut_by_a_write(connector: Connector, stub: Stub) -> None:
    """SSE-01: a character cut in two by the back end's writes arrives whole."""
    event = 'data: {"content": "你好🙂"}\n\n'.encode()
    cut = event.index("你".encode()) + 1
    gate = asyncio.Event()
    stub.answer = stream(event[:cut], event[cut:], gate=gate)

    response = await send(connector)
    first = await read(response)
    gate.set()

    assert first == event[:cut]
    assert first + await rest(response) == event


async def test_event_passes_at_once(connector: Connector, stub: Stub) -> None:
    """SSE-19: an event is handed over while the next one is not yet written, and the stream lives to its end."""
    gate = asyncio.Event()
    stub.answer = stream(b"data: 1\n\n", b"data: 2\n\n", gate=gate)

    response = await send(connector)

    assert await read(response) == b"data: 1\n\n"
    assert not response.ended
    gate.set()
    assert await rest(response) == b"data: 2\n\n"
    assert response.ended


async def test_huge_event(connector: Connector, stub: Stub) -> None:
    """SSE-15: an event of 1 MiB passes."""
    event = b"data: " + b"x" * 2**20 + b"\n\n"
    stub.answer = stream(event)

    assert (await fetch(connector)).body == event


@pytest.mark.parametrize("with_reset", [False, True])
async def test_cut_stream_is_never_an_end(connector: Connector, stub: Stub, with_reset: bool) -> None:
    """SSE-06, SSE-07: a chunked body without its last chunk is an error, by FIN and by RST."""
    gate = asyncio.Event()

    async def answer(call: Call) -> None:
        await call.head(200, [("transfer-encoding", "chunked")])
        await call.chunk(b"data: 1\n\n")
        await gate.wait()
        (call.connection.reset if with_reset else call.connection.close)()

    stub.answer = answer
    response = await send(connector)
    assert await read(response) == b"data: 1\n\n"
    gate.set()

    with pytest.raises(ConnectionLost):
        await read(response)

    assert connector.statistics().active == 0


async def test_pieces_before_a_cut_are_handed_out_first(connector: Connector, stub: Stub) -> None:
    """SSE-06: what came before the cut is not lost with it."""
    stub.answer = cut_stream(b"data: 1\n\n")
    response = await send(connector)
    await closed(stub, 0)

    assert await read(response) == b"data: 1\n\n"
    with pytest.raises(ConnectionLost):
        await read(response)
