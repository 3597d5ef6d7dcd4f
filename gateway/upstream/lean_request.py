"""How a request's body goes out, and whether the server took it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator

MAX_WHOLE = 256 * 1024
"""A body above this is written in slices of this size, so that the transport never copies the whole."""

_TCP_CLOSE_WAIT = 8


async def framed(body: bytes | AsyncIterator[bytes]) -> AsyncGenerator[bytes | memoryview, None]:
    """Slices of bytes as they are, an iterator's pieces as HTTP chunks with the closing one."""
    if isinstance(body, bytes):
        view = memoryview(body)
        for start in range(0, len(body), MAX_WHOLE):
            yield view[start : start + MAX_WHOLE]
        return
    async for piece in body:
        if piece:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def request_was_taken(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the server, whose FIN has just come, had read the request; False if the system cannot tell.

    A server that closes with our bytes unread sends RST, and one that closed before they arrived has not acknowledged
    them. So a FIN after everything was acknowledged means that the server read the request and gave up on it: sending
    it again would be a second attempt, which only the caller may make.
    """
    if transport is None or not hasattr(socket, "TCP_INFO"):
        return False
    # struct tcp_info of Linux: tcpi_state is byte 0, tcpi_unacked the 32 bits at 24.
    info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
    return bool(info[0] == _TCP_CLOSE_WAIT and int.from_bytes(info[24:28], sys.byteorder) == 0)
