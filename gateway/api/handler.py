"""The frame around every proxied request: one place where it begins and one where it ends.

A handler is an ASGI application. It fills an `Exchange` while it serves. However `serve` ends (an answer, an error of
ours, the client leaving, the server stopping), the `finally` here ends the request exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import lru_cache
from urllib.parse import quote

from gateway.access.headers import rate_limit_headers
from gateway.api.core import Active, Core
from gateway.api.dialect import OPENAI, Dialect
from gateway.api.downstream import CONNECTION, ClientLeft, Downstream, Receive, Scope, Send, send_error
from gateway.api.exchange import Exchange
from gateway.api.head import Head, read_head
from gateway.errors import (
    GatewayError,
    HeadersTooLarge,
    InternalError,
    NothingAvailable,
    RequestTimeout,
    TooManyRequests,
    UpstreamTimeout,
    clear_tracebacks,
)
from gateway.records import record
from gateway.types import Result
from gateway.upstream.client import Headers

log = logging.getLogger("gateway.request")

STOPPING = "this gateway is stopping; another replica will serve this"
HEADER_BYTES = 65_536
"""Far more than any client sends, and less than a back end's own server accepts."""


@record
class Incoming:
    """One request on its way in: its head and client, the policy that it keeps to its end, and its record."""

    scope: Scope
    head: Head
    active: Active
    exchange: Exchange
    down: Downstream
    dialect: Dialect = OPENAI


def as_if_now(core: Core, incoming: Incoming) -> Incoming:
    """The request under the live policy, for one that is decided anew. Its key keeps what it has paid."""
    active, exchange = core.active, incoming.exchange
    policy, key = active.policy, exchange.key
    exchange.policy, exchange.canary, exchange.decision = policy, None, None
    if key is not None and policy.access is not None:
        exchange.key = next((one for one in policy.access.keys if one.name == key.name), key)
    # The policy's conditions may look at other headers.
    matched = read_head(incoming.scope["headers"], active.header_names).matched
    return replace(incoming, active=active, head=replace(incoming.head, matched=matched))


class Handler:
    """Subclasses implement `serve`, which answers the request or raises."""

    def __init__(self, core: Core) -> None:
        self.core = core

    async def serve(self, incoming: Incoming) -> None:
        raise NotImplementedError

    def dialect(self, path: str) -> Dialect:
        """The format of errors and streams on a path."""
        return OPENAI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        core, active = self.core, self.core.active
        head = read_head(scope["headers"], active.header_names)
        exchange = Exchange(head.request_id or core.new_id(), core.clock(), core.ended)
        if core.tracer is not None:
            exchange.trace = core.tracer.begin(scope, exchange.started)
        down = Downstream(receive, send, scope.get(CONNECTION))
        dialect = self.dialect(scope["path"])
        core.running += 1
        try:
            if core.draining:
                core.turned_away += 1
                raise NothingAvailable(STOPPING, retry_after=1)
            core.pools.shedder.check(core.running)
            if head.size > HEADER_BYTES:
                raise HeadersTooLarge(f"the headers have {head.size} bytes; this gateway accepts {HEADER_BYTES}")
            exchange.key = active.keyring.check(head.credential)
            await self.serve(Incoming(scope, head, active, exchange, down, dialect))
        except GatewayError as error:
            await _answer(core, active, exchange, down, dialect, error, closing=core.draining)
            clear_tracebacks(error)
        except ClientLeft:
            exchange.result = Result.CLIENT_CLOSED
        except asyncio.CancelledError:
            if not down.absorb_cancel():
                await _cut(core, active, exchange, down, dialect)
                raise
            exchange.result = Result.OK if exchange.whole else Result.CLIENT_CLOSED
        except Exception:
            # A fault of ours: the traceback shows code and never the body; the client gets an error in the usual shape.
            log.exception("request %s failed inside the gateway", exchange.request_id)
            failed = InternalError("the gateway failed on this request; see its log")
            await _answer(core, active, exchange, down, dialect, failed)
        finally:
            down.unwatch()
            exchange.finish(core.clock())
            core.running -= 1


async def _answer(
    core: Core,
    active: Active,
    exchange: Exchange,
    down: Downstream,
    dialect: Dialect,
    error: GatewayError,
    *,
    closing: bool = False,
) -> None:
    """Answers with an error of ours if the status has not been sent; otherwise returning cuts the connection.

    A stream of which only heartbeats have been sent gets the error as an event.
    """
    exchange.error = error.code
    exchange.result = _result_of(error)
    if down.started:
        if down.early:
            await down.end(dialect.event(error, b""))
        elif exchange.result is Result.BACKEND_ERROR:
            exchange.result = Result.TRUNCATED
        return
    exchange.status = error.status
    headers = own_headers(core, active, exchange)
    if closing:
        headers.append((b"connection", b"close"))
    await send_error(down, error, dialect.body(error), headers)


async def _cut(core: Core, active: Active, exchange: Exchange, down: Downstream, dialect: Dialect) -> None:
    """Ends a request that the server's stop has cut: neither its client nor its back end is to blame."""
    if exchange.lease is not None:
        exchange.lease.blameless = True
    if down.started and exchange.lease is not None:
        # A stream's relay has told its client; a whole answer's connection is cut.
        exchange.result, exchange.error = Result.TRUNCATED, "nothing_available"
        return
    await _answer(core, active, exchange, down, dialect, NothingAvailable(STOPPING, retry_after=1), closing=True)


def _result_of(error: GatewayError) -> Result:
    if isinstance(error, UpstreamTimeout):
        return Result.TIMEOUT
    if isinstance(error, NothingAvailable | TooManyRequests):
        return Result.REJECTED
    if isinstance(error, RequestTimeout):
        return Result.TIMEOUT
    return Result.CLIENT_ERROR if error.status < 500 else Result.BACKEND_ERROR


@lru_cache(maxsize=1024)
def _in_ascii(name: str) -> bytes:
    """A model's name as a header's value: what is not ASCII is percent-encoded UTF-8."""
    return quote(name, safe="/:@+,=()[]").encode()


def own_headers(core: Core, active: Active, exchange: Exchange) -> Headers:
    """The headers that the gateway adds to every answer of a proxied request."""
    headers = [(b"x-request-id", exchange.request_id.encode())]
    decision, estimate, policy = exchange.decision, exchange.estimate, exchange.policy or active.policy
    if exchange.key:
        headers += rate_limit_headers(core.limits.standing(exchange.key))
    if not policy.server.decision_headers:
        return headers
    headers.append((b"x-gateway-policy", (exchange.canary or policy.version_hash).encode()))
    if exchange.translated:
        headers.append((b"x-gateway-translated", ", ".join(exchange.translated).encode()))
    if decision:
        pool = exchange.lease.pool if exchange.lease else decision.pool
        headers.append((b"x-gateway-pool", pool.encode()))
        headers.append((b"x-gateway-reason", decision.reason.encode()))
    if exchange.served is not None:
        headers.append((b"x-gateway-model", _in_ascii(exchange.served)))
    if estimate:
        headers.append((b"x-gateway-task", estimate.task.encode()))
        headers.append((b"x-gateway-predicted-output-tokens", b"%d" % round(estimate.output_tokens)))
    return headers
