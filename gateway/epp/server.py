"""The gRPC server of an endpoint picker, inside the lifespan of the gateway's own application.

So everything else is as in `gateway serve`: the policy is watched, back ends are probed and scraped, what is learned
is shared, a stop signal drains. The application's HTTP side has the operators' routes alone.

Health, by the Endpoint Picker Protocol: `liveness` always serves; `readiness`, the service's own name and the empty
one serve until draining begins. That no endpoint can take a request is an answer (503) and no lack of readiness.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from fastapi import FastAPI
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gateway.api.core import Core
from gateway.app import Gateway
from gateway.drain import background
from gateway.epp.addresses import Addresses
from gateway.epp.stream import Processor
from gateway.epp.wire import SERVICE, Modes, deserialize, serialize

log = logging.getLogger("gateway.epp")

LOOK_SECONDS = 0.1
STOP_SECONDS = 2.0
"""What is left running after draining has this long to end."""
MESSAGE_MARGIN = 1 << 20
"""What a message may have besides a body of the policy's limit."""
READINESS = ("", "readiness", SERVICE)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and how the gRPC server listens."""

    address: str
    """`host:port`; port 0 takes a free one."""
    assumed: Modes
    certificate: tuple[bytes, bytes] | None = None
    """Key and certificate chain, PEM; None for plain text."""


class Picking:
    """The server of one process. `port` is known once it listens."""

    def __init__(self, core: Core, how: Listening) -> None:
        self._core = core
        self._how = how
        self._addresses = Addresses(lambda: (e.url for pool in core.pools for e in pool.endpoints))
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listens for the length of the block. Raises OSError where the address can't be had."""
        server = grpc.aio.server(options=self._options())
        processor = Processor(self._core, self._addresses, self._how.assumed)

        async def process(_: Any, call: Any) -> None:
            await processor.process(call)

        method = grpc.stream_stream_rpc_method_handler(process, deserialize, serialize)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),))
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        self.port = self._listen(server)
        await self._addresses.look()
        await server.start()
        log.info("picking endpoints", extra={"fields": {"address": self._how.address, "port": self.port}})
        async with background([self._addresses.run(), self._keep_health(servicer)]):
            try:
                yield
            finally:
                await server.stop(STOP_SECONDS)

    def _listen(self, server: Any) -> int:
        address, certificate = self._how.address, self._how.certificate
        try:
            if certificate is None:
                return int(server.add_insecure_port(address))
            return int(server.add_secure_port(address, grpc.ssl_server_credentials([certificate])))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address} for gRPC") from error

    def _options(self) -> list[tuple[str, int]]:
        largest = self._core.active.policy.server.max_body_bytes + MESSAGE_MARGIN
        return [("grpc.max_receive_message_length", largest), ("grpc.so_reuseport", 0)]

    async def _keep_health(self, servicer: Any) -> None:
        status = health_pb2.HealthCheckResponse
        await servicer.set("liveness", status.SERVING)
        said: bool | None = None
        while True:
            if said is not self._core.draining:
                said = self._core.draining
                for name in READINESS:
                    await servicer.set(name, status.NOT_SERVING if said else status.SERVING)
            await asyncio.sleep(LOOK_SECONDS)


def picking_app(gateway: Gateway, how: Listening) -> tuple[FastAPI, Picking]:
    """The application to serve: the gateway's operator routes, with the gRPC server for as long as it runs."""
    frame, picking = gateway.frame, Picking(gateway.core, how)
    inner = frame.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state, picking.serving():
            yield state

    frame.router.lifespan_context = lifespan
    return frame, picking
