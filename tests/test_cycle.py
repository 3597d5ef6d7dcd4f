"""What becomes of an answer whose client or application goes before its end, and of one that has no body."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
from typing import cast
from urllib.parse import urlsplit

import pytest

from gateway.api.downstream import CONNECTION, App, Connection, Receive, Scope, Send
from gateway.cycle import Cycle
from gateway.server import ClientConnection
from tests.servers import serve_in_thread

SOON = 30.0
"""Seconds that no step here takes, on any machine."""
CHUNKED = {"type": "http.response.start", "status": 200, "headers": []}


def connected(url: str) -> socket.socket:
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=SOON)


def read_to_the_end(client: socket.socket) -> bytes:
    pieces = [client.recv(65_536)]
    while pieces[-1]:
        pieces.append(client.recv(65_536))
    return b"".join(pieces)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def until_lost(connection: Connection, watched: threading.Event) -> None:
    """Waits until the connection is lost, and for the turns of the loop after it."""
    lost = asyncio.Event()
    connection.watch(lost.set)
    watched.set()
    await lost.wait()
    connection.watch(None)
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_with_another_behind_it_knows_that_its_client_is_gone(
    begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written to the lost connection, and nothing of either request is left for a garbage collection."""
    watched, paths = threading.Event(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = cast(Connection, scope[CONNECTION])
        paths.append(scope["path"])
        if not begun:
            return await until_lost(connection, watched)
        await send(CHUNKED)
        write = connection.straight()
        await until_lost(connection, watched)
        assert write is not None
        assert write(b"more")
        await send({"type": "http.response.body", "body": b"rest"})

    gc.collect()
    gc.disable()
    try:
        with (
            serve_in_thread(app, loop="uvloop", http=ClientConnection, lifespan="off") as url,
            connected(url) as client,
        ):
            client.sendall(b"GET /one HTTP/1.1\r\n\r\nGET /two HTTP/1.1\r\n\r\n")
            assert watched.wait(SOON)
        left = [found for found in gc.get_objects() if isinstance(found, Cycle)]
    finally:
        gc.enable()

    assert paths == ["/one"]
    assert errors(caplog) == []
    assert left == []


def test_a_head_is_dropped_if_the_connection_is_lost_in_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    """A head that waits for its body when the connection goes is written to nobody."""
    running, gone, watched = threading.Event(), threading.Event(), threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        running.set()
        # The loop stands still until the client has gone, and hears of it in the turn in which the answer begins.
        gone.wait(SOON)
        await asyncio.sleep(0)
        await send(CHUNKED)
        await until_lost(cast(Connection, scope[CONNECTION]), watched)

    with serve_in_thread(app, loop="uvloop", http=ClientConnection, lifespan="off") as url:
        with connected(url) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert running.wait(SOON)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()
        assert watched.wait(SOON)

    assert errors(caplog) == []


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_half_an_answer_without_a_length_does_not_look_whole(loop: str) -> None:
    """For HTTP/1.0 the connection's end is the body's, so that a cut answer ends with a reset."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(CHUNKED)
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    with serve_in_thread(app, loop=loop, http=ClientConnection, lifespan="off") as url, connected(url) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            read_to_the_end(client)


def answering(status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def answers(app: App, requests: bytes) -> bytes:
    """All that comes back until the connection's end."""
    with serve_in_thread(app, loop="uvloop", http=ClientConnection, lifespan="off") as url, connected(url) as client:
        client.sendall(requests)
        return read_to_the_end(client)


@pytest.mark.parametrize("body", [b"", b"none of it"])
@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_may_tell_a_length(status: int, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A 304 may have the length of what did not change; it is whole without it, and the connection goes on."""
    get = b"GET / HTTP/1.1\r\n%b\r\n"
    got = answers(answering(status, [(b"content-length", b"10")], body), get % b"" + get % b"connection: close\r\n")

    assert got.count(b"HTTP/1.1 %d" % status) == 2
    assert got.endswith(b"content-length: 10\r\nconnection: close\r\n\r\n")
    assert errors(caplog) == []


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize(("status", "header"), [(200, (b"a", b"1\n2")), (999, (b"a", b"1"))])
def test_a_head_that_cannot_be_sent_is_an_error(status: int, header: tuple[bytes, bytes], version: bytes) -> None:
    """Its client gets a whole 500, and the connection ends."""
    got = answers(answering(status, [header]), b"GET / HTTP/%b\r\n\r\n" % version)

    assert got.startswith(b"HTTP/1.1 500 ")
    assert got.endswith(b"\r\n\r\nInternal Server Error")
