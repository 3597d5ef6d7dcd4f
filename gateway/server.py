"""uvicorn's HTTP protocol, which also tells a running request that its client's connection is lost.

ASGI tells it through `receive` alone, so that noticing takes a task of its own for each request; a callback costs next
to nothing. And an answer's head leaves together with the first bytes of its body, which saves a system call and a
packet. The application works without it, on any ASGI server, in ASGI's way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.api.downstream import CONNECTION, Scope


class HeldWrites:
    """A transport that can hold one write back until the next one, but never beyond the present turn of the loop."""

    __slots__ = ("_held", "_holding", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._holding = False
        self._held: bytes | None = None
        self.is_closing = transport.is_closing

    def hold(self) -> None:
        """Holds the next write back."""
        self._holding = True

    def write(self, data: bytes) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._transport.writelines((held, data))
        elif self._holding:
            self._holding, self._held = False, data
            asyncio.get_running_loop().call_soon(self._release)
        else:
            self._transport.write(data)

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._transport.write(held)

    def close(self) -> None:
        self._release()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ClientConnection(HttpToolsProtocol):
    """One client's connection; see `downstream.Connection`. Requests find it in their scope."""

    _on_lost: Callable[[], None] | None = None
    _lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        held = HeldWrites(transport)
        self.hold = held.hold
        super().connection_made(cast(asyncio.Transport, held))

    def watch(self, on_lost: Callable[[], None] | None) -> None:
        self._on_lost = on_lost
        if on_lost is not None:
            # A large body has paused the reading, without which no end is seen.
            self.flow.resume_reading()
            if self._lost:
                on_lost()

    def has_body(self) -> bool:
        # A later request's cycle, if there is one already, came after the whole of this one.
        return self.cycle is None or not self.cycle.more_body

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(Scope, self.scope)[CONNECTION] = self

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost = True
        if self._on_lost is not None:
            self._on_lost()
        # After a reset it would hold on to all this for as long as clients may keep idle connections.
        self._unset_keepalive_if_required()
        # A cycle knows its connection, by its scope: without these references each goes when the last of them is let
        # go, and none waits for a garbage collection.
        self.pipeline.clear()
        self.cycle = self.scope = None  # type: ignore[assignment]
