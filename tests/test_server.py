"""The server's side of a connection: what is held back, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import pytest

from gateway.api.downstream import CONNECTION, WHOLE, App, Connection, Receive, Scope, Send
from gateway.server import ClientConnection
from tests.servers import serve

GET = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


class _Noted:
    """A real transport that notes each write."""

    def __init__(self, below: asyncio.Transport, writes: list[bytes]) -> None:
        self._below = below
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._below.write(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def noting(writes: list[bytes]) -> type[ClientConnection]:
    """Our protocol on such a transport."""

    class Noting(ClientConnection):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(cast(asyncio.Transport, _Noted(transport, writes)))

    return Noting


async def exchanged(app: App, *, http: type[ClientConnection] = ClientConnection, request: bytes = GET) -> bytes:
    """All that comes back for a request, after which the client's side is closed as well."""
    async with serve(app, loop="asyncio", http=http) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


@pytest.mark.parametrize("whole", [False, True])
async def test_a_head_leaves_with_the_body_that_follows_it(whole: bool) -> None:
    """Head and body are one write, whether or not the application says that the body is the next message."""
    writes: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": [(b"Content-Length", b"4")]}
        await send({**start, WHOLE: True} if whole else start)
        await send({"type": "http.response.body", "body": b"done"})

    answer = await exchanged(app, http=noting(writes))
    assert writes == [answer]
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone")


async def test_only_the_first_piece_has_the_head_with_it() -> None:
    """Later pieces are written as they come."""
    writes: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    await exchanged(app, http=noting(writes))
    assert writes[0].endswith(b"\r\n\r\n3\r\none\r\n")
    assert writes[1:] == [b"3\r\ntwo\r\n", b"0\r\n\r\n"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cut_answer_still_has_its_head(fails: bool) -> None:
    """An application that ends, or fails, in the turn of its answer's head cuts the connection behind the head."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        if fails:
            raise ZeroDivisionError

    assert (await exchanged(app)).endswith(b"content-length: 4\r\nconnection: close\r\n\r\n")


async def test_an_application_that_says_nothing_is_an_error() -> None:
    """Its client gets 500, and not a connection that ends without a word."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        return

    assert (await exchanged(app)).startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize("header", [(b"a", b"1\r\nset-cookie: x"), (b"a\r\nb", b"1"), (b"a", b"1\n2"), (b"a", b"1\r2")])
async def test_no_header_is_two(header: tuple[bytes, bytes]) -> None:
    """A line break in a name or a value never reaches the client."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [header]})

    answer = await exchanged(app)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"cookie" not in answer


@pytest.mark.parametrize("body", [b"longer", b"sh"])
async def test_a_body_of_another_length_is_cut(body: bytes) -> None:
    """A body that is not as long as its Content-Length is an error of ours, and never looks whole."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": body})

    head, _, rest = (await exchanged(app)).partition(b"\r\n\r\n")
    assert b"content-length: 4" in head
    assert len(rest) < 4


async def test_a_slow_body_comes_after_its_head() -> None:
    """Over a real socket the client has the head while the application still waits for the body."""
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
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
        connection = cast(Connection, scope[CONNECTION])
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
        connection = cast(Connection, scope[CONNECTION])
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


def lingering(seconds: float) -> App:
    """Answers `/long` after so many seconds, and everything else at once."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/long":
            await asyncio.sleep(seconds)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    return app


@pytest.mark.parametrize("pipelined", [False, True])
async def test_an_idle_client_is_let_go_and_a_waiting_one_is_not(pipelined: bool) -> None:
    """The limit for idle connections runs from the last answer's end, and no timer of an earlier one ends a request."""
    idle = 1.0
    first, second = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serve(lingering(1.1 * idle), loop="asyncio", http=ClientConnection, timeout_keep_alive=idle) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first + second if pipelined else first)
        answers = await reader.readuntil(b"done")
        if not pipelined:
            writer.write(second)
        answers += await reader.read()
        writer.close()
        await writer.wait_closed()

    assert answers.count(b"HTTP/1.1 200") == 2
    assert answers.endswith(b"done")
    assert b"connection: close" not in answers


@pytest.mark.parametrize(
    ("request_", "later"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"\r\n"),
        (b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\nfirst", b"after"),
    ],
    ids=["blank line", "rest of a body"],
)
async def test_what_comes_behind_an_answer_and_is_no_request_keeps_no_client(request_: bytes, later: bytes) -> None:
    """A client that sends a blank line, or the rest of a body that was answered early, is idle after that."""
    async with serve(lingering(0), loop="asyncio", http=ClientConnection, timeout_keep_alive=1.0) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_)
        await reader.readuntil(b"done")
        writer.write(later)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("beginning", [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n"])
async def test_a_head_that_never_ends_keeps_no_client(beginning: bytes) -> None:
    """A client that sends nothing, or goes on with one head for ever, is let go: also behind a request of its own."""
    async with serve(lingering(0), loop="asyncio", http=ClientConnection, timeout_keep_alive=0.5) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(beginning)
        rest = asyncio.ensure_future(reader.read())
        async with asyncio.timeout(60):
            while not rest.done():
                if beginning:
                    writer.write(b"a: b\r\n")
                await asyncio.wait((rest,), timeout=0.1)
        assert rest.exception() is not None or rest.result().count(b"done") == beginning.count(b"\r\n\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_half_a_head_behind_a_request_does_not_end_its_answer() -> None:
    """A request that takes longer than the limit is answered though the next one's head has begun and does not end."""
    async with serve(lingering(1.0), loop="asyncio", http=ClientConnection, timeout_keep_alive=0.5) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /long HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n")
        assert (await reader.read()).endswith(b"done")
        writer.close()
        await writer.wait_closed()
