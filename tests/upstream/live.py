"""Live pools for tests: on a clock that a test moves, with connectors that never connect, or on real sockets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from math import inf
from random import Random
from typing import Literal

from gateway.errors import GatewayError
from gateway.policy.load import parse_policy
from gateway.policy.schema import Policy
from gateway.types import Result
from gateway.upstream.call import Call, Opened
from gateway.upstream.client import Connector, ConnectorStatistics, Extra, Headers, Response, Timeouts
from gateway.upstream.connect import connect
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.pools import Pools
from gateway.upstream.proxy import Attempts


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class Nowhere:
    """A connector for tests that send nothing."""

    def __init__(self) -> None:
        self.closed = False

    async def send(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
        extra: Extra | None = None,
    ) -> Response:
        raise AssertionError("this test sends nothing")

    def statistics(self) -> ConnectorStatistics:
        return ConnectorStatistics(active=0, idle=0, opened=0)

    async def aclose(self) -> None:
        self.closed = True


def policy_of(pools: Mapping[str, Iterable[str]], extra: str = "", own: dict[str, str] | None = None) -> Policy:
    """Model `m` on these pools, probes off. `extra` is YAML at the top level, `own` is YAML in flow style per pool."""
    lines = ["defaults: {health: {interval: off}, telemetry: {interval: off}}"] if "defaults" not in extra else []
    lines += [extra, "pools:"]
    for name, urls in pools.items():
        listed = ", ".join(url if url.startswith("{") else f'"{url}"' for url in urls)
        lines.append(f"  {name}: {{endpoints: [{listed}]{(own or {}).get(name, '')}}}")
    lines.append(f"models: {{m: {{pools: [{', '.join(pools)}]}}}}")
    return parse_policy("\n".join(lines), "policy.yaml", {})


def still(policy: Policy, clock: Callable[[], float] | None = None) -> Pools:
    """Pools that send nothing."""
    pools = Pools(lambda endpoint, pool: Nowhere(), Random(7), clock or Clock())
    pools.apply(policy)
    return pools


@asynccontextmanager
async def wired(
    policy: Policy, clock: Callable[[], float] = time.monotonic, via: Literal["auto", "lean", "httpx"] = "auto"
) -> AsyncIterator[Pools]:
    """Pools on real sockets."""

    def make(endpoint: object, pool: object) -> Connector:
        return connect(endpoint.url, via=via, limit=pool.limits.connections)  # type: ignore[attr-defined]

    pools = Pools(make, Random(7), clock)
    pools.apply(policy)
    try:
        yield pools
    finally:
        await pools.aclose()


class Ask(Call):
    """An empty request."""

    target = b"/v1/chat/completions"
    first_seconds = inf
    more = 0.0

    def headers(self, endpoint: Endpoint) -> Headers:
        return []

    def body(self, pool: str) -> bytes:
        return b"{}"

    def first(self) -> float:
        return self.first_seconds

    def extra(self) -> Extra | None:
        return (lambda: self.more) if self.more else None


class Client:
    """Sends through `Attempts` and notes what was retried."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools
        self.retries: list[tuple[str, str]] = []
        self.last: Attempts | None = None

    async def open(
        self,
        attempts: int = 2,
        *,
        wait_for_first: bool = True,
        order: tuple[str, ...] = (),
        first: float = inf,
        stream: bool = False,
        more: float = 0.0,
    ) -> Opened:
        self.last = Attempts(self.pools, lambda pool, reason: self.retries.append((pool, reason)))
        call = Ask()
        call.pools, call.attempts, call.stream = order or tuple(pool.name for pool in self.pools), attempts, stream
        call.wait_for_first, call.first_seconds = wait_for_first, first
        call.more = more
        return await self.last.open(call)


def only(pools: Pools, pool: str = "p") -> Endpoint:
    (endpoint,) = pools[pool].endpoints
    return endpoint


async def ask(pools: Pools) -> int | str:
    """One request to its end: the status, or the error's class."""
    try:
        opened = await Client(pools).open()
    except GatewayError as error:
        return type(error).__name__
    status = opened.response.status
    while await opened.response.read():
        pass
    opened.lease.release(Result.OK if status == 200 else Result.BACKEND_ERROR)
    return status
