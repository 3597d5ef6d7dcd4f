"""Hops 5 to 7 for any request, routed or passed through: attempts, then relay, under one deadline."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from math import inf
from re import Pattern, compile, escape

from gateway.api.core import Core
from gateway.api.early import EarlyBeats
from gateway.api.exchange import Exchange
from gateway.api.handler import Incoming, own_headers
from gateway.api.relay import Rewrite, StreamRelay, relay_whole
from gateway.api.sending import Plan, PlannedCall, served_name
from gateway.api.usage import UsageHider
from gateway.errors import Forbidden
from gateway.policy.schema import Model, Policy
from gateway.types import Result, Trace
from gateway.upstream.call import Opened
from gateway.upstream.headers import downstream_response_headers, own_location
from gateway.upstream.proxy import Attempts

Forward = Callable[[Core, Incoming, Plan], Awaitable[None]]
"""Hops 5 to 7: `forward`, or what stands in its place where another program carries the bytes."""


async def admit(
    core: Core, incoming: Incoming, model: Model, input_tokens: int, output_tokens: int, *, watch: bool = True
) -> None:
    """Lets the request in under its key's limits. Raises Forbidden or TooManyRequests.

    With `watch`, which needs a body that is read, a client that leaves cancels the request from here on.
    """
    if watch:
        incoming.down.watch()
    exchange = incoming.exchange
    settle(exchange, model)
    if (key := exchange.key) is None:
        return
    limits = core.limits
    exchange.ticket = limits.try_admit(key, input_tokens, output_tokens) or await limits.admit(
        key, input_tokens, output_tokens
    )


async def forward(core: Core, incoming: Incoming, plan: Plan) -> None:
    """Sends the request and relays the answer. Raises GatewayError while nothing but heartbeats has gone out."""
    policy, exchange = incoming.active.policy, incoming.exchange
    total = policy.pools[plan.pools[0]].timeouts.total
    deadline = None if total is None else exchange.started + total
    trace = exchange.trace
    attempts = Attempts(core.pools, core.metrics.retried if trace is None else partial(_retried, core, trace))
    early = _early_beats(core, incoming)
    call = PlannedCall(core, incoming, plan, wait_for_first=policy.server.heartbeat is None or early is not None)
    try:
        with core.deadlines.until(deadline):
            opened = await (attempts.open(call) if early is None else early.during(attempts.open(call)))
            # From here on the request's end gives the lease back, whatever comes between this and the relay.
            exchange.lease, exchange.response = opened.lease, opened.response
    finally:
        exchange.attempts += attempts.count
        exchange.sent_upstream = attempts.sent_at
        exchange.waited += attempts.waited
        exchange.endpoint = attempts.endpoint
        exchange.went_to(attempts.pool)
    served = served_name(policy, plan.model, opened.lease.pool)
    pool, rewrite = opened.lease.pool, rewriting(policy, plan.asked, served)
    if rewrite is not None:
        exchange.served = served
    if pool in call.asked and opened.streams:
        rewrite = after(UsageHider(), rewrite)
    try:
        if incoming.down.early and early is not None and not opened.streams:
            with core.deadlines.until(deadline):
                return await early.tell(opened)
        await relay(core, incoming, opened, rewrite, deadline)
    finally:
        # A client that closes at the end mark cancels the relay of a whole answer, which teaches as much.
        if plan.usage_open and pool not in call.asked and (exchange.whole or exchange.result is Result.OK):
            core.usage_habits.learn(pool, told=exchange.usage is not None)


def settle(exchange: Exchange, model: Model) -> None:
    """Notes the request's model. Raises Forbidden if its key may not use that."""
    exchange.model = model.name
    if (key := exchange.key) is not None and key.models is not None and model.name not in key.models:
        raise Forbidden(f"key {key.name!r} may not use the model `{model.name}`", param="model")


def left_behind(core: Core, incoming: Incoming) -> bool:
    """Whether a reload has taken away every pool that a request may go to, before anything of it was sent."""
    decision = incoming.exchange.decision
    return (
        core.active is not incoming.active
        and decision is not None
        and incoming.exchange.attempts == incoming.exchange.questions
        and all(core.pools.find(name) is None for name in decision.order)
    )


async def relay(
    core: Core, incoming: Incoming, opened: Opened, rewrite: Rewrite | None, deadline: float | None
) -> None:
    """Hop 7. Raises GatewayError while nothing has gone to the client."""
    policy, exchange, down, dialect = incoming.active.policy, incoming.exchange, incoming.down, incoming.dialect
    headers = downstream_response_headers(opened.response.headers, rewritten=rewrite is not None)
    if 300 <= opened.response.status < 400:
        headers = own_location(headers, opened.lease.endpoint.url)
    headers += own_headers(core, incoming.active, exchange)
    if opened.streams:
        stream = StreamRelay(exchange, down, opened, dialect, rewrite, core.clock, policy.server.heartbeat)
        await stream.run(headers, core.deadlines.until(deadline))
    elif opened.response.ended:
        # The whole answer has come. What is left takes no time that is worth a limit.
        await relay_whole(exchange, down, opened, headers, dialect, rewrite, core.clock)
    else:
        with core.deadlines.until(deadline):
            await relay_whole(exchange, down, opened, headers, dialect, rewrite, core.clock)


def _retried(core: Core, trace: Trace, pool: str, error_class: str) -> None:
    core.metrics.retried(pool, error_class)
    trace.retried(error_class)


def _early_beats(core: Core, incoming: Incoming) -> EarlyBeats | None:
    every, exchange = incoming.active.policy.server.heartbeat, incoming.exchange
    if every is None and incoming.down.early:
        # A reload switched them off while the request waited: its answer still has to go into the stream that began.
        every = inf
    if every is None or exchange.features is None or not exchange.features.stream:
        return None
    own = partial(own_headers, core, incoming.active, exchange)
    return EarlyBeats(incoming.down, exchange, incoming.dialect, every, own)


def after(first: Rewrite, then: Rewrite | None) -> Rewrite:
    """Both rewrites, in that order."""
    return first if then is None else lambda piece: then(first(piece))


def rewriting(policy: Policy, asked: str | None, served: str) -> Rewrite | None:
    """Puts the client's name for the model into the answer, where it differs from the served one."""
    if asked is None or asked == served or policy.server.answer_model == "served":
        return None
    pattern, name = _model_field(served), _json_string(asked)
    return lambda piece: pattern.sub(lambda found: found[1] + name, piece)


@lru_cache(maxsize=512)
def _model_field(served: str) -> Pattern[bytes]:
    # Quotes inside a JSON string are escaped, so this only ever matches a key and its value.
    names = {_json_string(served), json.dumps(served, ensure_ascii=False).encode("utf-8", "surrogatepass")}
    return compile(rb'("model"\s*:\s*)(?:' + b"|".join(map(escape, sorted(names))) + b")")


def _json_string(text: str) -> bytes:
    return json.dumps(text).encode()
