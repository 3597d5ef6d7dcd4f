"""A back end on a raw socket that does exactly what a test tells it, byte by byte.

An answer is a coroutine function taking a `Call`: it writes whatever bytes it likes, cut anywhere and paused on any
event, closes, resets or hangs. Ready-made ones are in `tests.answers`. `Stub.script` holds one answer per request to
come, and `Stub.answer` serves the rest:

    async with Stub(text(b"hello")) as stub:
        stub.script.append(reset)  # the first request meets a reset, later ones get the text
        ...
        await stub.connections[0].closed.wait()

A connection is served until an answer closes it or the client does, so keep-alive is the default.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Request:
    """What came in, as it came. `body` is unframed; with `Stub(read_body=False)` the answer fills it."""

    method: bytes
    target: bytes
    headers: RawHeaders
    body: bytes = b""

    def get(self, name: bytes) -> bytes | None:
        """The first header of that name, whatever its case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def names(self) -> set[bytes]:
        return {name.lower() for name, _ in self.headers}

    def json(self) -> object:
        return json.loads(self.body)


class Connection:
    """One accepted socket. A task reads ahead, so that the client's close is seen while an answer hangs."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed = asyncio.Event()
        """Set when either side has closed."""
        self.by_client = False
        """Whether the client was first to close."""
        self.requests: list[Request] = []
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self._reader = asyncio.create_task(self._read_ahead())

    async def _read_ahead(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._loop.sock_recv(self.sock, 65536):
                self._buffer += data
                self._more.set()
        if not self.closed.is_set():
            self.by_client = True
            self.closed.set()
        self._more.set()

    async def _take(self, enough: Callable[[bytearray], int]) -> bytes | None:
        """Takes bytes once `enough` gives their count, which is negative till then; None where the client closes."""
        while (size := enough(self._buffer)) < 0:
            if self.closed.is_set():
                return None
            self._more.clear()
            await self._more.wait()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _take_through(self, end: bytes) -> bytes | None:
        return await self._take(lambda buffer: at + len(end) if (at := buffer.find(end)) >= 0 else -1)

    async def _take_exactly(self, size: int) -> bytes | None:
        return await self._take(lambda buffer: size if len(buffer) >= size else -1)

    async def read_head(self) -> Request | None:
        head = await self._take_through(b"\r\n\r\n")
        if head is None:
            return None
        first, *lines = head[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ")
        pairs = [line.split(b":", 1) for line in lines]
        return Request(method, target, [(name, value.strip()) for name, value in pairs])

    async def read_body(self, request: Request) -> bool:
        """Reads the body into the request; False where the client closes before its end."""
        if request.get(b"transfer-encoding") is None:
            body = await self._take_exactly(int(request.get(b"content-length") or 0))
            request.body = body or b""
            return body is not None
        while (line := await self._take_through(b"\r\n")) is not None:
            chunk = await self._take_exactly(int(line, 16) + 2)
            if chunk is None:
                return False
            if chunk == b"\r\n":
                return True
            request.body += chunk[:-2]
        return False

    async def stop_reading(self) -> None:
        """Leaves what comes from now on unread in the kernel, as a server does that is about to close."""
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def readable(self) -> None:
        """Waits for bytes without reading them; only after `stop_reading`."""
        arrived = self._loop.create_future()
        self._loop.add_reader(self.sock, lambda: None if arrived.done() else arrived.set_result(None))
        try:
            await arrived
        finally:
            self._loop.remove_reader(self.sock)

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.closed.set()
        self._more.set()
        self._reader.cancel()
        if self.sock.fileno() >= 0:
            # A cancelled read leaves the loop's selector one step later, when the number may be another socket's.
            self._loop.remove_reader(self.sock)
            self._loop.remove_writer(self.sock)
        self.sock.close()


@dataclass(slots=True)
class Call:
    """One request and the means to answer it."""

    connection: Connection
    request: Request

    async def send(self, *pieces: bytes) -> None:
        """Writes raw bytes, each piece its own system call. Quiet when the client has gone."""
        for piece in pieces:
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(self.connection.sock, piece)

    async def head(self, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> None:
        lines = [f"HTTP/1.1 {status} Stub", *(f"{name}: {value}" for name, value in headers)]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.send(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def end(self, trailers: bytes = b"") -> None:
        """The zero chunk."""
        await self.send(b"0\r\n" + trailers + b"\r\n")

    async def hang(self) -> None:
        """Says nothing until the client closes."""
        await self.connection.closed.wait()


Answer = Callable[[Call], Awaitable[None]]


async def ok(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n" + b'{"ok":true}')


@dataclass(slots=True)
class Stub:
    """The server. Use as `async with Stub(answer) as stub`."""

    answer: Answer = field(default=ok)
    host: str = "127.0.0.1"
    read_body: bool = True
    """False calls the answer as soon as the head is there, as a server does that refuses a body early."""
    at_port: int = 0
    """0 is any free one."""
    script: deque[Answer] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    _listener: socket.socket = field(init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def open(self) -> int:
        """Connections that neither side has closed."""
        return sum(not connection.closed.is_set() for connection in self.connections)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; it is looked at after each connection, request and close."""
        while not condition():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 60)

    async def __aenter__(self) -> Stub:
        self._listener = socket.create_server(
            (self.host, self.at_port), family=socket.AF_INET6 if ":" in self.host else socket.AF_INET, backlog=1024
        )
        self._listener.setblocking(False)
        self._spawn(self._accept())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()
        for connection in self.connections:
            connection.close()
        if error is None:
            # A mistake in an answer must fail the test, not turn up as a lost connection.
            for result in results:
                if isinstance(result, Exception):
                    raise result

    def _spawn(self, work: Awaitable[None]) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock)
            self.connections.append(connection)
            self._changed.set()
            self._spawn(self._serve(connection))
            self._spawn(self._watch(connection))

    async def _watch(self, connection: Connection) -> None:
        await connection.closed.wait()
        self._changed.set()

    async def _serve(self, connection: Connection) -> None:
        while (request := await connection.read_head()) is not None:
            if self.read_body and not await connection.read_body(request):
                return
            self.requests.append(request)
            connection.requests.append(request)
            self._changed.set()
            await (self.script.popleft() if self.script else self.answer)(Call(connection, request))
            if connection.closed.is_set():
                break
        connection.close()
