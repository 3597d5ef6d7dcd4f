"""What the lean connector promises beyond the common part."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.errors import BadUpstreamResponse, UpstreamTimeout
from gateway.upstream.client import Timeouts
from gateway.upstream.lean import LeanConnector
from gateway.upstream.lean_protocol import LeanConnection
from tests.answers import raw, stream, text
from tests.stub import Call, Stub, ok
from tests.upstream.exchange import closed, fetch, read, rest, send, until

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
async def lean(stub: Stub) -> AsyncIterator[LeanConnector]:
    connector = LeanConnector("127.0.0.1", stub.port)
    yield connector
    await connector.aclose()


async def test_answer_before_the_body_is_sent() -> None:
    """A back end that refuses before it has read the body is heard, and its connection is not used again."""
    async with Stub(text(b"too large", 413), read_body=False) as stub:
        connector = LeanConnector("127.0.0.1", stub.port)

        async def pieces() -> AsyncIterator[bytes]:
            yield b"abc"
            await asyncio.Event().wait()

        answer = await fetch(connector, pieces())

        assert (answer.status, answer.body) == (413, b"too large")
        await closed(stub, 0)
        assert (connector.statistics().active, connector.statistics().idle) == (0, 0)


async def test_answer_amid_a_large_body() -> None:
    """The same for a body that is known whole but too large for the socket's buffers."""

    async def refuse(call: Call) -> None:
        await call.connection.stop_reading()
        await text(b"too large", 413)(call)
        await asyncio.Event().wait()

    async with Stub(refuse, read_body=False) as stub:
        connector = LeanConnector("127.0.0.1", stub.port)

        answer = await fetch(connector, b"x" * 50_000_000)

        assert (answer.status, answer.body) == (413, b"too large")
        assert (connector.statistics().active, connector.statistics().idle) == (0, 0)


async def test_bytes_after_an_answer_never_meet_the_next_request(lean: LeanConnector, stub: Stub) -> None:
    """A second answer to one request costs the connection, and nobody reads it."""
    stub.script.append(raw(OK + b"content-length: 1\r\n\r\na" + OK + b"content-length: 1\r\n\r\nX"))

    assert (await fetch(lean)).body == b"a"
    assert (await fetch(lean)).body == b'{"ok":true}'
    assert len(stub.connections) == 2


async def test_bytes_on_an_idle_connection_close_it(lean: LeanConnector, stub: Stub) -> None:
    """What comes unasked, such as a 408 page, is not the answer to the next request."""

    async def then_more(call: Call) -> None:
        await ok(call)
        await more.wait()
        await call.send(b"HTTP/1.1 408 Too Slow\r\ncontent-length: 0\r\n\r\n")

    more = asyncio.Event()
    stub.script.append(then_more)
    await fetch(lean)
    assert lean.statistics().idle == 1
    more.set()
    await until(lambda: lean.statistics().idle == 0)

    assert (await fetch(lean)).status == 200


async def test_pieces_that_came_together_are_read_together(lean: LeanConnector, stub: Stub) -> None:
    """Coalescing joins what has arrived, so a late reader makes one call for many events."""
    stub.answer = stream(b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n")
    response = await send(lean)
    await until(lambda: lean.statistics().idle == 1)

    assert await read(response) == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"
    assert response.ended


async def test_small_request_is_one_write(lean: LeanConnector, stub: Stub) -> None:
    """Head and body go out together and without Nagle's delay."""
    await fetch(lean)

    connection = next(iter(lean._free))
    assert connection._transport is not None
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_latest_connection_is_used_first(lean: LeanConnector, stub: Stub) -> None:
    """Free connections are a stack, so that the surplus can expire."""
    await asyncio.gather(*(fetch(lean) for _ in range(3)))
    last: LeanConnection = list(lean._free)[-1]

    await fetch(lean)

    assert list(lean._free)[-1] is last


async def test_idle_connection_closes_itself(stub: Stub) -> None:
    """POOL-04: a free connection expires by its own timer, without a request coming by."""
    connector = LeanConnector("127.0.0.1", stub.port, keep_alive=0.02)
    await fetch(connector)

    await closed(stub, 0)

    assert stub.connections[0].by_client
    assert connector.statistics().idle == 0


async def test_connection_outlives_its_own_timer(stub: Stub) -> None:
    """The keep-alive limit counts from the last answer, and a request under way is not idle."""
    connector = LeanConnector("127.0.0.1", stub.port, keep_alive=1.5)
    await fetch(connector)
    gate = asyncio.Event()
    stub.answer = stream(b"a", b"b", gate=gate)
    response = await send(connector)
    assert await read(response) == b"a"
    await asyncio.sleep(1.6)
    gate.set()

    assert await rest(response) == b"b"
    assert (connector.statistics().opened, connector.statistics().idle) == (1, 1)
    await connector.aclose()


async def test_timer_is_moved_not_made_anew(lean: LeanConnector, stub: Stub) -> None:
    """A connection has one timer however many requests and pieces it carries."""
    await fetch(lean)
    connection = next(iter(lean._free))
    timer = connection._timer
    stub.answer = stream(*[b"data: 1\n\n"] * 50)

    for _ in range(3):
        await fetch(lean)

    assert connection._timer is timer


@pytest.mark.parametrize(
    "flood",
    [
        b"HTTP/1.1 100 Continue\r\nx-a: 1\r\n\r\n" * 5_000,
        OK + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 200_000,
        OK + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x-a: 1\r\n" * 20_000,
        OK + b"x-a: 1\r\n" * 12_000 + b"content-length: 1\r\n\r\na",
    ],
    ids=["interim answers", "chunk extension", "trailers", "headers"],
)
async def test_bytes_that_are_no_body_are_bounded(lean: LeanConnector, stub: Stub, flood: bytes) -> None:
    """No amount of framing fills the memory."""
    stub.answer = raw(flood)

    with pytest.raises(BadUpstreamResponse):
        await rest(await send(lean))

    assert lean.statistics().active == 0


async def test_cancelled_read_closes(lean: LeanConnector, stub: Stub) -> None:
    """A cancelled `read` gives the connection up, whether or not anybody closes the response."""
    stub.answer = stream(b"a", finish=False)
    response = await send(lean)
    await read(response)
    task = asyncio.create_task(response.read())
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert lean.statistics().active == 0


async def test_error_is_raised_after_the_timeout_too(lean: LeanConnector, stub: Stub) -> None:
    """A response that failed stays failed; it never turns into an end."""
    stub.answer = stream(b"a", finish=False)
    response = await send(lean, timeouts=Timeouts(idle=0.01))
    await read(response)
    with pytest.raises(UpstreamTimeout):
        await read(response)

    with pytest.raises(Exception, match="closed"):
        await read(response)


async def test_repr_shows_the_state(lean: LeanConnector, stub: Stub) -> None:
    """A connector can be read in a log."""
    await fetch(lean)

    assert repr(lean) == (f"<LeanConnector 127.0.0.1:{stub.port} ConnectorStatistics(active=0, idle=1, opened=1)>")
