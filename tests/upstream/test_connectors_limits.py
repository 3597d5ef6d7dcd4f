"""What both connectors promise about giving up: close, cancellation, time limits."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.errors import ConnectionLost, UpstreamTimeout
from gateway.upstream.client import Connector, Timeouts
from tests.answers import hang, stream
from tests.stub import Call, Stub
from tests.upstream.conftest import Open
from tests.upstream.exchange import GUARD, closed, fetch, read, rest, send, until


async def test_close_amid_a_stream(connector: Connector, stub: Stub) -> None:
    """CANCEL-01: closing a response that has not ended closes its connection."""
    stub.answer = stream(b"data: 1\n\n", finish=False)
    response = await send(connector)
    await read(response)

    response.close()
    response.close()

    await closed(stub)
    assert stub.connections[0].by_client
    await until(lambda: connector.statistics().active == 0)
    with pytest.raises(ConnectionLost):
        await read(response)


async def test_close_wakes_a_reader(connector: Connector, stub: Stub) -> None:
    """A reader that waits while another task closes is told so."""
    stub.answer = stream(b"data: 1\n\n", finish=False)
    response = await send(connector)
    await read(response)
    reader = asyncio.create_task(response.read())
    await asyncio.sleep(0)

    response.close()

    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(reader, GUARD)


async def test_close_after_the_end_keeps_the_connection(connector: Connector, stub: Stub) -> None:
    """A response that came whole gives its connection back, whether it was read or not."""
    response = await send(connector)
    await until(lambda: connector.statistics().idle == 1)
    response.close()

    assert (await fetch(connector)).status == 200
    assert len(stub.connections) == 1


async def test_cancel_while_waiting_for_the_head(connector: Connector, stub: Stub) -> None:
    """CANCEL-02: a cancelled `send` closes the connection of a back end that has not answered."""
    stub.answer = hang
    task = asyncio.create_task(send(connector))
    await stub.until(lambda: len(stub.requests) == 1)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await closed(stub)
    await until(lambda: connector.statistics().active == 0)


async def test_cancel_while_connecting(open_connector: Open) -> None:
    """A cancelled `send` leaves no half-open connection behind."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        connector = open_connector(f"http://127.0.0.1:{listener.getsockname()[1]}")
        tasks = [asyncio.create_task(send(connector)) for _ in range(5)]
        await until(lambda: connector.statistics().active == 5)

        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

        assert all(task.cancelled() for task in tasks)
        await until(lambda: connector.statistics().active == 0)


@pytest.mark.parametrize("yields", range(6))
async def test_cancel_twice(connector: Connector, stub: Stub, yields: int) -> None:
    """POOL-02, CANCEL-03: cancelling a stream, and again amid its clean-up, gives its connection up."""
    stub.answer = stream(b"data: 1\n\n", finish=False)

    async def consume() -> None:
        response = await connector.send(b"POST", b"/", [], b"{}", Timeouts())
        try:
            while await response.read():
                started.set()
        finally:
            response.close()

    for _ in range(3):
        started = asyncio.Event()
        task = asyncio.create_task(consume())
        await asyncio.wait_for(started.wait(), GUARD)
        task.cancel()
        for _ in range(yields):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    await until(lambda: connector.statistics().active == 0)
    await stub.until(lambda: stub.open == 0)


async def test_connect_limit_is_its_own(open_connector: Open) -> None:
    """TIMEOUT-04: an address that answers nothing gives up at the connect limit, whatever the others are."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        # A full backlog drops what comes, as a firewall does.
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        connector = open_connector(f"http://127.0.0.1:{address[1]}")

        with pytest.raises(UpstreamTimeout) as timeout:
            await send(connector, timeouts=Timeouts(connect=0.05, first_byte=None, idle=None))

        assert timeout.value.phase == "connect"
        assert connector.statistics().active == 0
        for filler in fillers:
            filler.close()


async def test_no_first_byte(connector: Connector, stub: Stub) -> None:
    """TIMEOUT-02: a back end that never answers meets the first-byte limit, and its connection is closed."""
    stub.answer = hang

    with pytest.raises(UpstreamTimeout) as timeout:
        await send(connector, timeouts=Timeouts(first_byte=0.05, idle=None))

    assert timeout.value.phase == "first_byte"
    await closed(stub)
    await until(lambda: connector.statistics().active == 0)


async def test_head_is_no_first_byte(connector: Connector, stub: Stub) -> None:
    """Headers that come early do not stop the first-byte limit: it is the body's first byte that counts."""
    stub.answer = stream(finish=False)
    response = await send(connector, timeouts=Timeouts(first_byte=1.0, idle=None))

    with pytest.raises(UpstreamTimeout) as timeout:
        await read(response)

    assert timeout.value.phase == "first_byte"
    await closed(stub)


async def test_silence_amid_the_body(connector: Connector, stub: Stub) -> None:
    """SSE-11: silence between two pieces meets the idle limit."""
    stub.answer = stream(b"data: 1\n\n", b"data: 2\n\n", finish=False)
    response = await send(connector, timeouts=Timeouts(first_byte=None, idle=0.05))

    with pytest.raises(UpstreamTimeout) as timeout:
        await rest(response)

    assert timeout.value.phase == "idle"
    await closed(stub)
    await until(lambda: connector.statistics().active == 0)


async def test_limits_do_not_add_up(connector: Connector, stub: Stub) -> None:
    """TIMEOUT-01: a stream may last longer than any of its limits as long as no silence does."""
    limit, sent = 1.5, 0

    async def slow(call: Call) -> None:
        nonlocal sent
        began = asyncio.get_running_loop().time()
        await call.head(200, [("transfer-encoding", "chunked")])
        while asyncio.get_running_loop().time() < began + 1.2 * limit:
            await asyncio.sleep(0.05)
            await call.chunk(b"x")
            sent += 1
        await call.end()

    stub.answer = slow

    limits = Timeouts(connect=limit, first_byte=limit, idle=limit)
    got = await rest(await send(connector, timeouts=limits))
    assert got == b"x" * sent


async def test_slow_reader_is_not_silence(connector: Connector, stub: Stub) -> None:
    """The limits count the time that a reader waits for the back end, not the time until it comes to read."""
    gate = asyncio.Event()
    stub.answer = stream(b"a", b"b", gate=gate)
    response = await send(connector, timeouts=Timeouts(first_byte=1.5, idle=1.5))
    await asyncio.sleep(1.6)

    assert await read(response) == b"a"
    gate.set()
    assert await rest(response) == b"b"


async def test_back_end_that_takes_no_body(open_connector: Open) -> None:
    """A back end that stops reading the request's body meets the idle limit."""

    async def stuck(call: Call) -> None:
        await call.connection.stop_reading()
        await asyncio.Event().wait()

    async with Stub(stuck, read_body=False) as stub:
        connector = open_connector(stub.url)

        with pytest.raises(UpstreamTimeout) as timeout:
            await send(connector, b"x" * 50_000_000, timeouts=Timeouts(first_byte=None, idle=0.1))

        assert timeout.value.phase == "idle"
        await until(lambda: connector.statistics().active == 0)
