"""One ext-proc stream from its first message to its end: finds the handler for the path and lets it serve the talk.

The paths are those of the proxy. Paths that it does not have are refused, for Envoy's routes decide what comes here
and a back end's own routes (sleep, weights, adapters) must not be reachable by mistake. Nothing of a client's goes to a
back end from here, so that labels are decoded although the policy says `decisions: true`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import grpc

from gateway.api.body import read_body
from gateway.api.core import Core
from gateway.api.dialect import RESPONSES, Dialect
from gateway.api.downstream import App, ClientLeft
from gateway.api.forward import Forward, admit
from gateway.api.handler import Handler, Incoming
from gateway.api.passthrough import PATHS, PassThrough, check_path, named, plan_for
from gateway.api.responses import PREFIX, Homes
from gateway.api.routed import RoutedApi
from gateway.api.surface import ROUTED
from gateway.epp.addresses import Addresses
from gateway.epp.inbox import Inbox
from gateway.epp.pick import Picker
from gateway.epp.sides import Write
from gateway.epp.talk import NotSpoken, Talk
from gateway.epp.wire import Modes, RequestHead
from gateway.errors import NotFound

log = logging.getLogger("gateway.epp")


class Call(Protocol):
    """What is used of gRPC's context of one stream."""

    def read(self) -> Awaitable[Any]: ...

    def write(self, message: Any) -> Awaitable[None]: ...

    def abort(self, code: Any, details: str) -> Awaitable[None]: ...


class Processor:
    """`process` serves one stream."""

    def __init__(self, core: Core, addresses: Addresses, assumed: Modes) -> None:
        self._core = core
        self._addresses = addresses
        self._assumed = assumed
        self._homes = Homes()
        self._complaints: set[str] = set()

    async def process(self, call: Call) -> None:
        """Returns when the exchange is over. Is cancelled where Envoy resets the stream."""
        inbox = Inbox(call.read, grpc.aio.EOF)
        reader = asyncio.create_task(inbox.run())
        try:
            head = await inbox.take()
            if isinstance(head, RequestHead):
                await self._serve(Talk(head, inbox, _writing(call), self._assumed), inbox)
            elif head is not None:
                raise NotSpoken("request_header_mode must be SEND: a stream began with something else")
        except NotSpoken as error:
            self._complain(str(error))
            await call.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            reader.cancel()
            # A stream that breaks off is known by then to whoever waits for it.
            with suppress(asyncio.CancelledError, grpc.aio.UsageError, grpc.aio.BaseError):
                await reader

    async def _serve(self, talk: Talk, inbox: Inbox) -> None:
        """Serves in a task of its own: a reset is then the client's leaving, by the same way as any other."""
        scope = talk.scope()
        handler = self._handler(scope["path"], Picker(talk, self._addresses).forward)
        work = asyncio.ensure_future(handler(scope, talk.receive, talk.send))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            inbox.hang_up()
            await asyncio.wait((work,))
            raise

    def _handler(self, path: str, forward: Forward) -> App:
        core = self._core
        if (api := ROUTED.get(path)) is not None:
            return RoutedApi(core, api, self._homes, forward)
        if path.startswith(PREFIX):
            return Stored(core, self._homes, forward)
        return PassThrough(core, forward) if path.startswith("/v1/") or path in PATHS else Nowhere(core)

    def _complain(self, what: str) -> None:
        """Once each: a wrong filter is wrong for every request."""
        if what not in self._complaints:
            self._complaints.add(what)
            log.error("the data plane's filter is not configured as needed: %s", what)


def _writing(call: Call) -> Write:
    """Writes to a stream; one that is no more there has lost its client."""

    async def write(message: Any) -> None:
        try:
            await call.write(message)
        except grpc.aio.BaseError:
            raise ClientLeft from None

    return write


class Stored(Handler):
    """`/v1/responses/{id}`: where it is kept, if that is known here, else at any endpoint."""

    def __init__(self, core: Core, homes: Homes, forward: Forward) -> None:
        super().__init__(core)
        self._homes = homes
        self._forward = forward

    def dialect(self, path: str) -> Dialect:
        return RESPONSES

    async def serve(self, incoming: Incoming) -> None:
        scope, policy = incoming.scope, incoming.active.policy
        check_path(scope["raw_path"])
        raw = await read_body(incoming)
        home = self._homes.find(scope["path"].removeprefix(PREFIX).partition("/")[0], incoming.exchange.key)
        model = named(policy, home.model if home and home.model in policy.models else None)
        await admit(self.core, incoming, model, 0, 0)
        plan = plan_for(incoming, model, home.asked if home else None, lambda served: raw)
        if home is not None and home.pool in plan.pools:
            others = (e.url for e in self.core.pools[home.pool].endpoints if e.url != home.endpoint)
            plan = replace(plan, pools=(home.pool,), exclude=frozenset(others))
        await self._forward(self.core, incoming, plan)


class Nowhere(Handler):
    """A path that is not served."""

    async def serve(self, incoming: Incoming) -> None:
        raise NotFound("no such path")
