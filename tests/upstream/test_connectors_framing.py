"""What both connectors promise about where an answer ends, and about answers that break the rules."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from gateway.errors import BadUpstreamResponse, ConnectionLost
from gateway.upstream.client import Connector
from tests.answers import dribble, raw, text, until_close
from tests.stub import Call, Stub
from tests.upstream.exchange import closed, fetch, read, rest, send

OK = b"HTTP/1.1 200 OK\r\n"


async def test_short_content_length_is_a_cut(connector: Connector, stub: Stub) -> None:
    """A body shorter than its Content-Length is an error, not an end."""
    stub.answer = raw(OK + b"content-length: 10\r\n\r\nabc", then_close=True)
    response = await send(connector)

    with pytest.raises(ConnectionLost):
        await rest(response)


async def test_body_until_close(connector: Connector, stub: Stub) -> None:
    """A body with neither length nor chunks ends with the connection, which is not kept."""
    stub.answer = until_close("終わり".encode())

    assert (await fetch(connector)).body == "終わり".encode()
    assert connector.statistics().idle == 0


async def test_dribbled_answer(connector: Connector, stub: Stub) -> None:
    """An answer that comes a byte at a time is the same answer."""
    stub.answer = dribble(
        OK + b"transfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nx-trailer: 1\r\n\r\n"
    )

    answer = await fetch(connector)

    assert answer.body == b"abcde"
    assert b"x-trailer" not in answer.headers
    assert connector.statistics().idle == 1


async def test_compressed_body_keeps_its_label(connector: Connector, stub: Stub) -> None:
    """HEADER-01: a gzip body is not unpacked, so that label, length and bytes agree."""
    packed = gzip.compress(b'{"a": 1}' * 25_000)
    stub.answer = text(packed, headers=[("content-encoding", "gzip")])

    answer = await fetch(connector, headers=[(b"accept-encoding", b"gzip")])

    assert answer.body == packed
    assert answer.headers[b"content-encoding"] == b"gzip"
    assert answer.headers[b"content-length"] == str(len(packed)).encode()
    assert stub.requests[0].get(b"accept-encoding") == b"gzip"


async def test_odd_json_passes_byte_for_byte(connector: Connector, stub: Stub) -> None:
    """HEADER-02, BODY-07: odd spacing, escapes and -Infinity come through as they are."""
    body = b'{ "a":\t"\\u00e9\\ud83d" ,"b" : -Infinity }\n'
    stub.answer = text(body)

    answer = await fetch(connector)

    assert answer.body == body
    assert int(answer.headers[b"content-length"]) == len(body)


@pytest.mark.parametrize("status", [204, 304])
async def test_status_without_a_body(connector: Connector, stub: Stub, status: int) -> None:
    """204 and 304 have no body whatever their headers say, and keep the connection."""
    stub.answer = raw(b"HTTP/1.1 %d X\r\netag: 1\r\n\r\n" % status)

    for _ in range(2):
        answer = await fetch(connector)

        assert (answer.status, answer.body) == (status, b"")
    assert connector.statistics().opened == 1


async def test_head_has_no_body(connector: Connector, stub: Stub) -> None:
    """The answer to HEAD announces a length and ends without it."""
    stub.script.append(raw(OK + b"content-length: 5\r\n\r\n"))

    answer = await fetch(connector, b"", method=b"HEAD")

    assert (answer.status, answer.headers[b"content-length"], answer.body) == (200, b"5", b"")
    assert (await fetch(connector)).status == 200


async def test_interim_answers_are_skipped(connector: Connector, stub: Stub) -> None:
    """100 and 103 come before the answer and are not it."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    stub.answer = raw(interim, OK + b"content-length: 2\r\n\r\nhi")

    answer = await fetch(connector)

    assert (answer.status, answer.headers, answer.body) == (200, {b"content-length": b"2"}, b"hi")


BROKEN = {
    "not HTTP": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "length and chunked": OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "two lengths": OK + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "negative length": OK + b"content-length: -3\r\n\r\nabc",
    "coding other than chunked": OK + b"transfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "switch of protocols": b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nabc",
    "endless headers": OK + b"x-a: " + b"a" * 300_000,
    "line that is no header": OK + b"what is this\r\n\r\n",
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
async def test_broken_head(connector: Connector, stub: Stub, answer: bytes) -> None:
    """An answer whose end can't be known for certain, or that isn't HTTP, is refused and its connection closed."""
    stub.answer = raw(answer)

    with pytest.raises(BadUpstreamResponse):
        await send(connector)

    await closed(stub, 0)
    assert connector.statistics().active == 0


@pytest.mark.parametrize("fields", [b"connection: upgrade\r\nupgrade: websocket\r\n", b""])
async def test_a_switch_of_protocols_is_told_as_such(connector: Connector, stub: Stub, fields: bytes) -> None:
    """A 101 is no interim answer, and a person who reads of it can tell what the back end did."""
    stub.answer = raw(b"HTTP/1.1 101 Switching Protocols\r\n" + fields + b"\r\n")

    with pytest.raises(BadUpstreamResponse, match=r"switched to another protocol \(status 101\)"):
        await send(connector)


async def test_a_status_that_http_does_not_have(connector: Connector, stub: Stub) -> None:
    """No server can repeat such a status to the client, so it is the back end's fault before it is an answer."""
    stub.answer = raw(b"HTTP/1.1 600 Odd\r\ncontent-length: 2\r\n\r\n{}")

    with pytest.raises(BadUpstreamResponse, match="there is no status 600"):
        await send(connector)


async def test_broken_chunk(connector: Connector, stub: Stub) -> None:
    """A broken chunk ends the body with an error."""
    stub.answer = raw(OK + b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n")
    response = await send(connector)

    with pytest.raises(BadUpstreamResponse):
        await rest(response)

    assert connector.statistics().active == 0


async def test_slow_reader_holds_the_back_end_back(connector: Connector, stub: Stub) -> None:
    """Memory is bounded: while nobody reads, the back end's writes stop; all arrives once somebody does."""
    written = 0
    total = 64 * 2**20

    async def answer(call: Call) -> None:
        nonlocal written
        await call.head(200, [("content-length", str(total))])
        for _ in range(total // 2**20):
            await call.send(b"x" * 2**20)
            written += 2**20

    stub.answer = answer
    response = await send(connector)
    # Two equal looks in a row: sockets, kernel and buffers are full.
    before = -1
    while written != before:
        before = written
        await asyncio.sleep(0.1)

    assert written < total
    size = 0
    while piece := await read(response):
        size += len(piece)
        assert len(piece) <= 2**20
    assert size == total
