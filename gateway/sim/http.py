"""The little of HTTP that the simulated server needs above ASGI: a body, a JSON answer, a cut connection."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.sim.driver import ClientGone, Mailbox

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


def header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


async def read_body(receive: Receive) -> bytes:
    """The whole request body. Raises ClientGone."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def watch(receive: Receive, mailbox: Mailbox) -> None:
    """Closes the mailbox when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    mailbox.close()


class Reply:
    """Sends one answer, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.raw_send = send
        """For another reply to the same request."""
        self.status = 0

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": body})

    async def whole(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        await self.start(status, [(b"content-length", b"%d" % len(body)), *(headers or (JSON,))])
        await self.end(body)

    async def cut(self, receive: Receive, *, reset: bool) -> None:
        """Drops the connection under the answer and returns once it is gone.

        Raises RuntimeError under a server that does not let an application reach its transport (uvicorn does).
        """
        transport: Any = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is None:
            raise RuntimeError("the fault `cut` needs uvicorn")
        if reset:
            sock: socket.socket = transport.get_extra_info("socket")
            # A linger of zero seconds turns the close into a reset.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()
        while (await receive())["type"] != "http.disconnect":
            pass
