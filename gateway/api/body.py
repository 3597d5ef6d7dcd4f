"""A request's body as the gateway needs it: whole, within the limit, and unpacked where the client has packed it.

vLLM does not unpack request bodies, so a packed one is inflated here and goes upstream as it is then, without its
label. Inflating stops at the limit for bodies, whatever the stream still holds, so that no bomb costs more than that.
"""

from __future__ import annotations

import asyncio
import zlib

from gateway.api.handler import Incoming
from gateway.api.head import Head
from gateway.errors import BadRequest, BodyTooLarge, UnsupportedEncoding

_STEP = 65_536
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 47}
"""zlib's window size: 31 is gzip, 47 tells gzip and zlib by their heads."""


async def read_body(incoming: Incoming) -> bytes:
    """The whole body. Raises BodyTooLarge, BadRequest, UnsupportedEncoding, RequestTimeout or ClientLeft."""
    head, limit = incoming.head, incoming.active.policy.server.max_body_bytes
    _window(head)  # What cannot be unpacked is refused before it is read.
    return await unpacked(head, await incoming.down.body(limit, head.content_length), limit)


async def unpacked(head: Head, raw: bytes, limit: int) -> bytes:
    """The body without the client's packing. Raises BodyTooLarge, BadRequest or UnsupportedEncoding."""
    window = _window(head)
    if window is None or not raw:
        return raw
    head.unpacked = True
    # In a thread: fifty megabytes take a tenth of a second, in which other requests would stand still.
    return await asyncio.to_thread(inflate, raw, window, limit)


def _window(head: Head) -> int | None:
    """None for a body that is not packed. Raises UnsupportedEncoding."""
    if not head.content_encoding:
        return None
    if (window := _WINDOWS.get(head.content_encoding)) is None:
        raise UnsupportedEncoding("request bodies may be uncompressed, gzip or deflate")
    return window


def inflate(raw: bytes, window: int, limit: int) -> bytes:
    """Unpacks one or more gzip members, or a zlib stream. Raises BadRequest or BodyTooLarge."""
    pieces: list[bytes] = []
    size = 0
    rest = raw
    try:
        while rest:
            stream = zlib.decompressobj(window)
            while not stream.eof:
                piece = stream.decompress(rest, min(_STEP, limit + 1 - size))
                rest = stream.unused_data if stream.eof else stream.unconsumed_tail
                size += len(piece)
                if size > limit:
                    raise BodyTooLarge(f"the decompressed body has over {limit} bytes (server.max_body_bytes)")
                pieces.append(piece)
                if not piece and not rest and not stream.eof:
                    raise BadRequest("the compressed body ends too early")
    except zlib.error:
        raise BadRequest("the body is not compressed as its Content-Encoding says") from None
    return b"".join(pieces)
