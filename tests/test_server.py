"""The server's side of a connection: what is held back, and for how long."""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.api.downstream import Receive, Scope, Send
from gateway.server import ClientConnection, HeldWrites
from tests.servers import serve


class _Written(asyncio.Transport):
    """A transport that notes each write, and what it was told besides."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return name


async def test_a_head_leaves_with_the_body_that_follows_it() -> None:
    """What is held goes out in one write with the next bytes, and later writes are not held."""
    below = _Written()
    held = HeldWrites(below)
    held.hold()
    held.write(b"head ")
    assert below.writes == []
    held.write(b"body")
    held.write(b"more")
    assert b"".join(below.writes) == b"head bodymore"
    assert below.writes[0].startswith(b"head ")
    assert below.writes[-1] == b"more"
    await asyncio.sleep(0)
    assert b"".join(below.writes) == b"head bodymore"


async def test_a_head_does_not_wait_for_a_later_body() -> None:
    """A head whose body is not there yet leaves at the end of the loop's turn."""
    below = _Written()
    held = HeldWrites(below)
    held.hold()
    held.write(b"head")
    await asyncio.sleep(0)
    assert below.writes == [b"head"]


async def test_closing_loses_nothing_that_is_held() -> None:
    """A connection that is closed in the turn of its head still sends the head."""
    below = _Written()
    held = HeldWrites(below)
    held.hold()
    held.write(b"head")
    held.close()
    assert below.writes == [b"head"]
    assert held.is_closing()
    assert held.get_extra_info("peername") == "peername"


async def test_a_slow_body_comes_after_its_head() -> None:
    """Over a real socket the client has the head while the application still waits for the body."""
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = cast(ClientConnection, scope["gateway.connection"])
        connection.hold()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"done", "more_body": False})

    async with serve(app, loop="asyncio", http=ClientConnection) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        go_on.set()
        assert await reader.readexactly(4) == b"done"
        writer.close()
        await writer.wait_closed()


async def test_pieces_of_a_chunked_answer_can_be_written_straight() -> None:
    """They go out in order with what is sent in ASGI's way; answers in other framings have to be sent that way."""
    straight: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = cast(ClientConnection, scope["gateway.connection"])
        connection.hold()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        write = connection.straight()
        straight.append(write is not None)
        if write is not None:
            assert write(b"one")
            await connection.drain()
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        if write is not None:
            assert write(b"three" * 10)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with serve(app, loop="asyncio", http=ClientConnection) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        bodies = []
        for request in (
            b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
            b"HEAD / HTTP/1.1\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request + (b"connection: close\r\n\r\n" if request.endswith(b"1.1\r\n") else b""))
            bodies.append((await reader.read()).partition(b"\r\n\r\n")[2])
            writer.close()
            await writer.wait_closed()

    assert bodies == [b"3\r\none\r\n3\r\ntwo\r\n32\r\n" + b"three" * 10 + b"\r\n0\r\n\r\n", b"two", b""]
    assert straight == [True, False, False]


async def test_an_answer_goes_on_straight_when_another_request_comes_behind_it() -> None:
    """A pipelined request waits; the pieces of the answer before it keep their framing and their place."""
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = cast(ClientConnection, scope["gateway.connection"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        write = connection.straight()
        assert write is not None
        write(b"a")
        await go_on.wait()
        write(scope["raw_path"])
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with serve(app, loop="asyncio", http=ClientConnection) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /one HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"1\r\na\r\n")
        writer.write(b"GET /two HTTP/1.1\r\nconnection: close\r\n\r\n")
        await asyncio.sleep(0)
        go_on.set()
        rest = await reader.read()
        writer.close()
        await writer.wait_closed()

    first, _, second = rest.partition(b"0\r\n\r\n")
    assert first == b"4\r\n/one\r\n"
    assert second.startswith(b"HTTP/1.1 200")
    assert second.endswith(b"\r\n\r\n1\r\na\r\n4\r\n/two\r\n0\r\n\r\n")
