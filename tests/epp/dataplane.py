"""A data plane for tests: a real gRPC client on loopback that says what Envoy says, in Envoy's order.

Expected answers are written in protobuf's text form and compared as bytes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from google.protobuf import text_format

from gateway.api.core import Core
from gateway.app import build
from gateway.epp.server import Listening, picking_app
from gateway.epp.wire import BodyMode, Modes
from gateway.policy.load import parse_policy
from gateway.settings import Settings
from gateway.types import Outcome
from gateway.upstream.endpoint import Endpoint

GUARD = 60.0
"""Seconds after which a test gives up on something that should have happened; never a measure of speed."""
DUPLEX = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
BUFFERED = Modes(BodyMode.BUFFERED, BodyMode.STREAMED)
LONG = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%b"}]}' % (b"word " * 200)
CHAT = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hello there"}]}'
STREAM = b'{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hello there"}]}'


class Exchange:
    """One HTTP exchange on one ext-proc stream."""

    def __init__(self, call: Any, modes: Modes | None) -> None:
        self.call = call
        self._modes = modes

    async def say(self, metadata: Mapping[str, Mapping[str, Any]] | None = None, **fields: Any) -> None:
        """One message; `metadata` is by namespace."""
        message = ProcessingRequest(**fields)
        for namespace, values in (metadata or {}).items():
            message.metadata_context.filter_metadata[namespace].update(values)
        if self._modes is not None:
            # Envoy tells its configuration with the first message alone.
            message.protocol_config.request_body_mode = self._modes.request.value
            message.protocol_config.response_body_mode = self._modes.response.value
            self._modes = None
        await asyncio.wait_for(self.call.write(message), GUARD)

    async def request_head(
        self,
        path: str = "/v1/chat/completions",
        *,
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
        ended: bool = False,
        subset: Any = None,
    ) -> None:
        fields = {":method": method, ":path": path, ":authority": "models", "x-request-id": "r-1", **(headers or {})}
        hint = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": subset}}
        await self.say(
            hint if subset is not None else None,
            request_headers={"headers": _headers(fields), "end_of_stream": ended},
        )

    async def request_body(self, body: bytes, *, ended: bool = True) -> None:
        await self.say(request_body={"body": body, "end_of_stream": ended})

    async def response_head(
        self,
        status: int = 200,
        kind: str = "application/json",
        *,
        headers: Mapping[str, str] | None = None,
        ended: bool = False,
        served: str | None = None,
    ) -> None:
        fields = {":status": str(status), "content-type": kind, **(headers or {})}
        await self.say(
            {"envoy.lb": {"x-gateway-destination-endpoint-served": served}} if served else None,
            response_headers={"headers": _headers(fields), "end_of_stream": ended},
        )

    async def response_body(self, body: bytes, *, ended: bool = False) -> None:
        await self.say(response_body={"body": body, "end_of_stream": ended})

    async def answer(self) -> ProcessingResponse:
        """The next answer. Fails where the stream has ended."""
        found = await asyncio.wait_for(self.call.read(), GUARD)
        assert found is not grpc.aio.EOF, "the stream ended"
        return found

    async def over(self) -> bool:
        """Waits for the stream's end in good order; False where another answer came."""
        return bool(await asyncio.wait_for(self.call.read(), GUARD) is grpc.aio.EOF)

    async def up_to_response(self, body: bytes = CHAT) -> None:
        """A buffered request and its answers, and the head of the back end's response."""
        await self.request_head()
        await self.answer()
        await self.request_body(body)
        await self.answer()
        await self.response_head()

    async def sent(self, body: bytes = CHAT, **head: Any) -> str:
        """Says the request in one piece and returns the destination; duplex alone."""
        await self.request_head(**head)
        if not head.get("ended"):
            await self.request_body(body)
        answer = await self.answer()
        if not head.get("ended"):
            await self.answer()
        return destination(answer)

    async def streamed(self, *events: bytes) -> bytes:
        """Answers with an event stream, says its parts, and returns what comes of them; duplex alone."""
        await self.response_head(kind="text/event-stream")
        await self.answer()
        for event in events:
            await self.response_body(event)
        await self.response_body(b"", ended=True)
        found: bytes = b""
        while True:
            part = (await self.answer()).response_body.response.body_mutation.streamed_response
            found += part.body
            if part.end_of_stream:
                return found


@dataclass(frozen=True, slots=True)
class Picker:
    """A running endpoint picker."""

    core: Core
    channel: Any
    port: int
    outcomes: list[Outcome]

    @property
    def in_flight(self) -> int:
        return sum(pool.in_flight for pool in self.core.pools)

    @asynccontextmanager
    async def exchange(self, modes: Modes | None = DUPLEX) -> AsyncIterator[Exchange]:
        method = self.channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            ProcessingRequest.SerializeToString,
            ProcessingResponse.FromString,
        )
        call = method()
        try:
            yield Exchange(call, modes)
        finally:
            call.cancel()

    async def until(self, what: Any) -> None:
        """Waits until the condition holds."""
        async with asyncio.timeout(GUARD):
            while not what():
                await asyncio.sleep(0.005)

    async def outcome(self) -> Outcome:
        """The outcome of the one exchange so far."""
        await self.until(lambda: self.outcomes)
        (found,) = self.outcomes
        return found


@asynccontextmanager
async def picker(policy: str, env: Mapping[str, str] | None = None, assumed: Modes = DUPLEX) -> AsyncIterator[Picker]:
    """Runs an endpoint picker on a free port, with its lifespan, as `gateway epp` does."""
    gateway = build(Settings(port=0), parse_policy(policy, "policy.yaml", env or {}), env={}, rng=random.Random(7))
    outcomes: list[Outcome] = []
    afterwards = gateway.core.afterwards
    afterwards.observers = (*afterwards.observers, outcomes.append)
    app, picking = picking_app(gateway, Listening("127.0.0.1:0", assumed))
    async with (
        app.router.lifespan_context(app),
        grpc.aio.insecure_channel(f"127.0.0.1:{picking.port}") as channel,
    ):
        yield Picker(gateway.core, channel, picking.port, outcomes)


def two_pools(extra: str = "", pools: str = "", objective: str = "static") -> str:
    """Model `m` on a plain pool of two endpoints and an MTP pool of one, nothing probed; short answers go plain."""
    return f"""
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}}}
server: {{decision_headers: false}}
pools:
  plain: {{endpoints: ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]{pools}}}
  mtp: {{endpoints: ["http://10.0.0.3:8000"], speculative: {{method: mtp, tokens: 2}}}}
models:
  m: {{pools: [plain, mtp], architecture: dense}}
routing: {{objective: {objective}, threshold: 64, exploration: 0}}
{extra}
"""


def one_endpoint(extra: str = "", pool: str = "", endpoint: str = '"http://10.0.0.1:8000"') -> str:
    """Model `m` on one endpoint. `pool` is more YAML for it, in flow style, starting with a comma."""
    return f"""
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}}}
server: {{decision_headers: false}}
pools:
  only: {{endpoints: [{endpoint}]{pool}}}
models:
  m: {{pools: [only]}}
{extra}
"""


async def held_behind(running: Picker, first: Exchange, second: Exchange) -> Endpoint:
    """Sends `first` a prompt of 200 words, then `second` one that is held behind it, at the endpoint of pool `only`."""
    await first.sent(LONG)
    await second.request_head()
    await second.request_body(LONG)
    (endpoint,) = running.core.pools["only"].endpoints
    await running.until(lambda: endpoint.held == 1)
    return endpoint


def destination(answer: ProcessingResponse) -> str:
    """Where a request is sent; the header and the metadata must agree."""
    kind = answer.WhichOneof("response")
    headers = getattr(answer, kind).response.header_mutation.set_headers
    values = [row.header.raw_value for row in headers if row.header.key == "x-gateway-destination-endpoint"]
    said = answer.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
    assert values == [said.encode()]
    return str(said)


def put(answer: ProcessingResponse) -> dict[str, str]:
    """Headers that a request's or a response's head gets."""
    common = getattr(answer, answer.WhichOneof("response")).response
    return {row.header.key: row.header.raw_value.decode() for row in common.header_mutation.set_headers}


def same(answer: ProcessingResponse, text: str) -> bool:
    """Whether an answer is, byte for byte, the message in text form."""
    expected = text_format.Parse(text, ProcessingResponse())
    return bool(answer.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True))


def _headers(fields: Mapping[str, str]) -> dict[str, Any]:
    return {"headers": [{"key": key, "raw_value": value.encode()} for key, value in fields.items()]}
