"""What both connectors promise about connections: reuse, limits, loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.errors import ConnectFailed, ConnectionLost, NothingAvailable, UpstreamTimeout
from gateway.upstream.client import Connector, Dropped, Timeouts
from tests.answers import close, hang, reset, stream, text
from tests.ports import free_port
from tests.stub import Answer, Call, Stub, ok
from tests.upstream.conftest import Open
from tests.upstream.exchange import closed, fetch, read, rest, send, until


async def test_sequential_requests_share_a_connection(connector: Connector, stub: Stub) -> None:
    """POOL-06: eight requests with different bodies on one kept connection all succeed."""
    for number in range(8):
        assert (await fetch(connector, b"%d" % number)).status == 200

    assert [request.body for request in stub.connections[0].requests] == [b"%d" % n for n in range(8)]
    assert (connector.statistics().opened, connector.statistics().idle) == (1, 1)


async def test_many_streams_at_once(connector: Connector, stub: Stub) -> None:
    """POOL-01: 150 open streams to one back end need no wait, because there is no default limit."""
    gate = asyncio.Event()
    stub.answer = stream(b"data: 1\n\n", b"data: 2\n\n", gate=gate)

    responses = [await send(connector) for _ in range(150)]
    assert [await read(response) for response in responses] == [b"data: 1\n\n"] * 150
    assert connector.statistics().active == 150
    gate.set()
    assert [await rest(response) for response in responses] == [b"data: 2\n\n"] * 150

    await until(lambda: connector.statistics().active == 0)


async def test_full_connector_refuses_at_once(open_connector: Open, stub: Stub) -> None:
    """POOL-01: with a limit, one more is refused without a wait and sends nothing; a freed slot serves again."""
    connector = open_connector(stub.url, limit=2)
    gate = asyncio.Event()
    stub.answer = stream(b"data: 1\n\n", b"data: 2\n\n", gate=gate)
    responses = [await send(connector) for _ in range(2)]

    with pytest.raises(NothingAvailable) as refusal:
        await send(connector)

    assert refusal.value.retry_after == 1
    assert len(stub.requests) == 2
    responses[0].close()
    await until(lambda: connector.statistics().active == 1)
    gate.set()
    assert await rest(await send(connector)) == b"data: 1\n\ndata: 2\n\n"


async def test_server_closes_after_an_answer(connector: Connector, stub: Stub) -> None:
    """`Connection: close` is honoured: the next request takes a new connection, and none fails."""
    stub.script.append(text(b"1", headers=[("connection", "close")]))

    assert (await fetch(connector)).body == b"1"
    assert connector.statistics().idle == 0
    assert (await fetch(connector)).status == 200
    assert len(stub.connections) == 2


async def test_server_has_closed_the_idle_connection(connector: Connector, stub: Stub) -> None:
    """POOL-04: a connection that the server closed while it was idle is not a failed request."""

    async def then_close(call: Call) -> None:
        await ok(call)
        call.connection.close()

    stub.script.append(then_close)
    await fetch(connector)
    await closed(stub)

    assert (await fetch(connector)).status == 200
    assert len(stub.requests) == 2


async def test_server_closes_an_instant_before_the_request(connector: Connector, stub: Stub) -> None:
    """POOL-04: a close that the connector had no chance to see is no failed request either."""
    await fetch(connector)
    stub.connections[0].close()

    assert (await fetch(connector)).status == 200
    assert [len(connection.requests) for connection in stub.connections] == [1, 1]


def closing_unread(reached: asyncio.Event) -> Answer:
    """Answers, then closes while the next request lies unread, as vLLM's server does at its keep-alive limit."""

    async def answer(call: Call) -> None:
        await call.connection.stop_reading()
        await ok(call)
        await call.connection.readable()
        reached.set()
        call.connection.close()

    return answer


async def test_request_crosses_the_servers_close(connector: Connector, stub: Stub) -> None:
    """POOL-04: a request that meets a connection just being closed is sent once more, invisibly."""
    crossed = asyncio.Event()
    stub.script.append(closing_unread(crossed))
    await fetch(connector)

    answer = await fetch(connector, b"second")

    assert answer.status == 200
    assert crossed.is_set()
    assert [request.body for request in stub.requests] == [b"{}", b"second"]
    assert connector.statistics().opened == 2


@pytest.mark.parametrize("end", [close, reset])
async def test_fresh_connection_is_never_retried(connector: Connector, stub: Stub, end: Answer) -> None:
    """RETRY-05, RETRY-08: a back end that takes a request and closes gets it once, and `send` fails."""
    stub.answer = end

    with pytest.raises(ConnectionLost):
        await send(connector)

    assert len(stub.requests) == 1
    assert connector.statistics().active == 0


async def test_request_that_was_taken_is_never_retried(connector: Connector, stub: Stub) -> None:
    """RETRY-05, POOL-04: a back end that read the request on a kept connection and closed in good order gets it once,
    and the caller learns that the connection was a kept one."""
    stub.script.extend([ok, close])
    await fetch(connector)

    with pytest.raises(Dropped):
        await send(connector)

    assert len(stub.requests) == 2


async def test_iterator_is_not_sent_twice(connector: Connector, stub: Stub) -> None:
    """A body that can be read once only is lost with its connection."""
    stub.script.append(closing_unread(asyncio.Event()))
    await fetch(connector)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    with pytest.raises(ConnectionLost):
        await send(connector, pieces())


async def test_refused_connection_fails_in_send(open_connector: Open, stub: Stub) -> None:
    """RETRY-07: a refused connection shows in `send`, before anything could have gone to the client."""
    with pytest.raises(ConnectFailed):
        await send(open_connector(f"http://127.0.0.1:{free_port()}"))


async def test_name_that_does_not_resolve(open_connector: Open) -> None:
    """An unknown name is a failed connection."""
    connector = open_connector("http://no-such-host.invalid:80")

    with pytest.raises(ConnectFailed):
        await send(connector)

    assert connector.statistics().active == 0


async def test_recovers_after_a_storm(connector: Connector, stub: Stub) -> None:
    """POOL-03, CANCEL-04, CANCEL-05: after a burst of timeouts, cuts and resets all is served and nothing is held."""
    stub.answer = hang
    short = Timeouts(first_byte=0.01)
    burst = [send(connector, timeouts=short) for _ in range(30)]
    results = await asyncio.gather(*burst, return_exceptions=True)
    assert {type(result) for result in results} == {UpstreamTimeout}

    for end in (close, reset):
        stub.answer = end
        results = await asyncio.gather(*(send(connector) for _ in range(10)), return_exceptions=True)
        assert {type(result) for result in results} == {ConnectionLost}

    stub.answer = ok
    await until(lambda: connector.statistics().active == 0)
    answers = await asyncio.gather(*(fetch(connector) for _ in range(30)))
    assert {answer.status for answer in answers} == {200}
    assert connector.statistics().active == 0
    await stub.until(lambda: stub.open == connector.statistics().idle)


async def test_resets_leave_nothing(connector: Connector, stub: Stub) -> None:
    """POOL-05: requests that all end in a reset leave no connection behind."""
    stub.answer = reset
    for _ in range(50):
        with pytest.raises(ConnectionLost):
            await send(connector)

    assert (connector.statistics().active, connector.statistics().idle, stub.open) == (0, 0, 0)


async def test_idle_connections_expire(open_connector: Open, stub: Stub) -> None:
    """POOL-04: a kept connection is given up before the server's own limit."""
    connector = open_connector(stub.url, keep_alive=0.05)
    await fetch(connector)
    await asyncio.sleep(0.1)

    assert (await fetch(connector)).status == 200
    assert len(stub.connections) == 2


async def test_closing_the_connector(open_connector: Open, stub: Stub) -> None:
    """Closing closes idle connections at once and lets a stream end first."""
    connector = open_connector(stub.url)
    gate = asyncio.Event()
    stub.answer = stream(b"data: 1\n\n", b"data: 2\n\n", gate=gate)
    response = await send(connector)
    await read(response)

    await connector.aclose()
    gate.set()

    assert await rest(response) == b"data: 2\n\n"
    await closed(stub)
    await until(lambda: connector.statistics().active == 0)
    assert connector.statistics().idle == 0
