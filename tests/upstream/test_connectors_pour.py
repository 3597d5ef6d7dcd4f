"""What both connectors promise about pouring: the same bytes and ends as reading, at the taker's pace."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import ConnectionLost, UpstreamTimeout
from gateway.upstream.client import Connector, Response, Take, Timeouts
from gateway.upstream.lean import LeanConnector
from tests.answers import Flood, cut_stream, stream
from tests.stub import Stub
from tests.upstream.exchange import GUARD, closed, send, until

EVENTS = [b"data: %d\n\n" % n for n in range(5)]


async def pour(response: Response, take: Take) -> bool:
    return await asyncio.wait_for(response.pour(take), GUARD)


class Taken:
    """A taker that notes what it gets, and is content until it has had `most` bytes."""

    def __init__(self, most: int = 10**12) -> None:
        self.most = most
        self.pieces: list[bytes] = []
        self.came = asyncio.Event()

    def __call__(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        self.came.set()
        return len(self.bytes) < self.most

    @property
    def bytes(self) -> bytes:
        return b"".join(self.pieces)


async def test_all_is_poured_in_order(connector: Connector, stub: Stub) -> None:
    """A body goes to the taker byte for byte, and its end is told."""
    stub.answer = stream(*EVENTS)
    response, taken = await send(connector), Taken()

    assert await pour(response, taken) is False
    assert taken.bytes == b"".join(EVENTS)
    assert response.ended
    await until(lambda: connector.statistics().idle == 1)


async def test_a_piece_passes_while_the_next_is_awaited(connector: Connector, stub: Stub) -> None:
    """A piece is taken as it comes."""
    gate = asyncio.Event()
    stub.answer = stream(b"one", b"two", gate=gate)
    response, taken = await send(connector), Taken()
    pouring = asyncio.create_task(pour(response, taken))
    await asyncio.wait_for(taken.came.wait(), GUARD)

    assert taken.pieces == [b"one"]
    gate.set()
    assert await pouring is False
    assert taken.bytes == b"onetwo"


async def test_a_taker_that_wants_no_more_gets_no_more(connector: Connector, stub: Stub) -> None:
    """Once it has said so pouring ends, what comes meanwhile waits, and is poured or read on."""
    gate = asyncio.Event()
    stub.answer = stream(*EVENTS, gate=gate)
    response, first, second = await send(connector), Taken(1), Taken(1)

    assert await pour(response, first) is True
    gate.set()
    assert await pour(response, second) is True
    rest = b""
    while piece := await asyncio.wait_for(response.read(), GUARD):
        rest += piece

    assert len(first.pieces) == len(second.pieces) == 1
    assert first.bytes + second.bytes + rest == b"".join(EVENTS)


async def test_a_taker_that_wants_no_more_stops_the_back_end(connector: Connector, stub: Stub) -> None:
    """MEM-01: a back end that goes on sending is not read from while the taker wants nothing, and then is again."""
    flood = Flood(b"x" * 2**20)
    stub.answer = flood
    response = await send(connector)
    assert await pour(response, Taken(1)) is True
    await asyncio.wait_for(flood.stuck.wait(), GUARD)

    sent = flood.sent
    while flood.sent == sent:
        assert await pour(response, Taken(1)) is True
    response.close()
    await until(lambda: connector.statistics().active == 0)


@pytest.mark.parametrize("with_reset", [False, True])
async def test_a_cut_is_raised_after_what_came_before(connector: Connector, stub: Stub, with_reset: bool) -> None:
    """SSE-05: a cut amid pouring is an error and never an end."""
    stub.answer = cut_stream(*EVENTS, with_reset=with_reset)
    response, taken = await send(connector), Taken()

    with pytest.raises(ConnectionLost):
        await pour(response, taken)

    if not with_reset:
        assert taken.bytes == b"".join(EVENTS)
    await until(lambda: connector.statistics().active == 0)


async def test_silence_meets_the_idle_limit(connector: Connector, stub: Stub) -> None:
    """SSE-11: silence between two poured pieces is noticed though no task wakes for the pieces."""
    gate = asyncio.Event()
    stub.answer = stream(*EVENTS, gate=gate, gate_before=1, finish=False)
    response, taken = await send(connector, timeouts=Timeouts(first_byte=None, idle=1.5)), Taken()
    pouring = asyncio.create_task(pour(response, taken))
    await asyncio.wait_for(taken.came.wait(), GUARD)
    gate.set()

    with pytest.raises(UpstreamTimeout) as timeout:
        await pouring

    assert timeout.value.phase == "idle"
    assert taken.bytes == b"".join(EVENTS)
    await closed(stub)


async def test_a_fault_of_the_taker_is_raised_to_who_pours(connector: Connector, stub: Stub) -> None:
    """What the taker raises is no failure of the back end, and the connection is given up."""
    gate = asyncio.Event()
    stub.answer = stream(b"a", b"b", gate=gate, finish=False)
    response, taken = await send(connector), Taken()

    def take(piece: bytes) -> bool:
        if taken.pieces:
            raise ZeroDivisionError
        return taken(piece)

    pouring = asyncio.create_task(pour(response, take))
    await asyncio.wait_for(taken.came.wait(), GUARD)
    gate.set()

    with pytest.raises(ZeroDivisionError):
        await pouring
    response.close()
    await closed(stub)


async def test_cancelled_pouring_closes(connector: Connector, stub: Stub) -> None:
    """CANCEL-01: a cancelled task that pours gives its connection up, and nothing is taken any more."""
    stub.answer = stream(b"a", finish=False)
    response, taken = await send(connector), Taken()
    pouring = asyncio.create_task(response.pour(taken))
    await asyncio.wait_for(taken.came.wait(), GUARD)

    pouring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pouring

    await closed(stub)
    await until(lambda: connector.statistics().active == 0)


async def test_close_ends_pouring(connector: Connector, stub: Stub) -> None:
    """A task that pours while another one closes is told so."""
    stub.answer = stream(b"a", finish=False)
    response, taken = await send(connector), Taken()
    pouring = asyncio.create_task(pour(response, taken))
    await asyncio.wait_for(taken.came.wait(), GUARD)

    response.close()

    with pytest.raises(ConnectionLost):
        await pouring


async def test_pieces_amid_a_stream_wake_no_task(stub: Stub) -> None:
    """The lean connector hands pieces over from the transport's callback."""
    gate, tasks = asyncio.Event(), []
    stub.answer = stream(b"a", *EVENTS, gate=gate, finish=False)
    connector = LeanConnector("127.0.0.1", stub.port)
    response, taken = await send(connector), Taken()
    await asyncio.wait_for(response.read(), GUARD)

    def take(piece: bytes) -> bool:
        tasks.append(asyncio.current_task())
        return taken(piece)

    pouring = asyncio.create_task(response.pour(take))
    await asyncio.sleep(0)
    gate.set()
    await until(lambda: taken.bytes == b"".join(EVENTS))

    assert set(tasks) == {None}
    pouring.cancel()
    await asyncio.wait([pouring])
    await connector.aclose()
