"""A stream's heartbeats before there is anything to relay: while the request is queued, or its back end says nothing.

The first heartbeat settles the status: 200, and an event stream. What comes instead of one, an error of ours or the
back end's, is then told within the stream. Until then nothing is different, and before the first byte of an answer
other back ends are tried as ever: comments are no answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

from gateway.api.dialect import Dialect
from gateway.api.downstream import Downstream
from gateway.api.exchange import Exchange
from gateway.api.relay import HEARTBEAT, result_of
from gateway.errors import GatewayError, UpstreamError
from gateway.upstream.call import Opened
from gateway.upstream.client import Headers
from gateway.upstream.proxy import GATHER_BYTES

_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
    (b"cache-control", b"no-cache"),
]


class EarlyBeats:
    """Comments to one client, every `every` seconds from now on, until its answer is found."""

    def __init__(
        self, down: Downstream, exchange: Exchange, dialect: Dialect, every: float, headers: Callable[[], Headers]
    ) -> None:
        """`headers` are the gateway's own, of that moment."""
        self._down = down
        self._exchange = exchange
        self._dialect = dialect
        self._every = every
        self._headers = headers

    async def during(self, opening: Coroutine[Any, Any, Opened]) -> Opened:
        beats = asyncio.create_task(self._beat())
        try:
            return await opening
        finally:
            # Not waited for: a cancelled task writes nothing more, and a client that leaves amid a wait here would
            # lose the answer that was just opened, and its lease with it.
            beats.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            if not self._down.started:
                self._down.early, self._exchange.status = True, 200
                await self._down.start(200, [*_STREAM, *self._headers()])
            await self._down.piece(HEARTBEAT)

    async def tell(self, opened: Opened) -> None:
        """Puts a whole answer, most likely an error, into the stream that has begun."""
        response = opened.response
        body = opened.first or b""
        while len(body) <= GATHER_BYTES and (piece := await response.read()):
            body += piece
        self._exchange.status, self._exchange.result = response.status, result_of(response.status, opened.fault)
        if response.status < 400 and opened.fault is None:
            await self._down.end(b"data: " + body.replace(b"\r", b"").replace(b"\n", b"") + b"\n\n")
        else:
            await self._down.end(self._dialect.event(_told(opened.fault or response.status, body), b""))


def _told(status: int, body: bytes) -> GatewayError:
    """A back end's error, to be put into a dialect's form."""
    what = f"status {status}" if status >= 400 else "what is no answer"
    error = UpstreamError(f"the back end answered with {what}")
    error.status = status
    with suppress(ValueError):
        data = json.loads(body)
        inner = data.get("error", data) if isinstance(data, dict) else data
        if isinstance(inner, dict):
            error.message = str(inner.get("message") or error.message)
            # vLLM's codes are numbers, and go on as such.
            error.type, error.code = str(inner.get("type") or error.type), cast(str, inner.get("code", status))
            error.param = inner.get("param") if isinstance(inner.get("param"), str) else None
        elif isinstance(inner, str):
            error.message = inner
    return error
