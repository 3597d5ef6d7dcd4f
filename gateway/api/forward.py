"""Hops 5 to 7 for any request, routed or passed through: attempts, then relay, under one deadline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import lru_cache, partial
from math import inf
from re import Pattern, compile, escape
from types import TracebackType

from gateway.api.core import Core
from gateway.api.early import EarlyBeats
from gateway.api.exchange import Exchange
from gateway.api.handler import Incoming, own_headers
from gateway.api.relay import Rewrite, StreamRelay, relay_whole
from gateway.api.usage import UsageHider, asking_for_usage
from gateway.errors import Forbidden, UpstreamTimeout
from gateway.policy.schema import Model, Policy
from gateway.records import keyword_record
from gateway.routing.cost import longest_decode, prompt_of, work_of
from gateway.types import Decision, Result, Trace
from gateway.upstream.call import Call, Opened
from gateway.upstream.client import Headers
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.headers import downstream_response_headers, own_location, upstream_request_headers
from gateway.upstream.lease import Lease
from gateway.upstream.prefill import Prompt
from gateway.upstream.proxy import Attempts

BodyFor = Callable[[str], bytes | AsyncIterator[bytes]]
Forward = Callable[[Core, Incoming, "Plan"], Awaitable[None]]
"""Hops 5 to 7: `forward`, or what stands in its place where another program carries the bytes."""

_NO_NAMES: frozenset[bytes] = frozenset()
_PACKED = frozenset({b"content-encoding"})


@keyword_record
class Plan:
    """What is to be sent, and where it may go."""

    model: Model
    asked: str | None
    """The model's name in the client's body; None where it has none."""
    pools: Sequence[str]
    """Allowed pools, best first."""
    body: BodyFor
    """From the name that the back end serves, the body to send."""
    usage_open: bool = False
    """The request is a stream whose client does not say whether it wants usage: the gateway may ask for itself."""
    exclude: frozenset[str] = frozenset()
    """URLs of endpoints that can't serve the request."""
    again: Callable[[], bool] = lambda: True
    """Whether `body` can be asked for once more."""


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
    asked: set[str] = set()
    early = _early_beats(core, incoming)
    call = _call(core, incoming, plan, asked, early)
    try:
        async with TimeLeft(deadline, core.clock):
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
    if pool in asked and opened.streams:
        rewrite = after(UsageHider(), rewrite)
    try:
        if incoming.down.early and early is not None and not opened.streams:
            async with TimeLeft(deadline, core.clock):
                return await early.tell(opened)
        await relay(core, incoming, opened, rewrite, deadline)
    finally:
        # A client that closes at the end mark cancels the relay of a whole answer, which teaches as much.
        if plan.usage_open and pool not in asked and (exchange.whole or exchange.result is Result.OK):
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
        await stream.run(headers, partial(TimeLeft, deadline, core.clock))
    elif opened.response.ended:
        # The whole answer has come. What is left takes no time that is worth a limit.
        await relay_whole(exchange, down, opened, headers, dialect, rewrite, core.clock)
    else:
        async with TimeLeft(deadline, core.clock):
            await relay_whole(exchange, down, opened, headers, dialect, rewrite, core.clock)


def request_headers(incoming: Incoming, endpoint: Endpoint) -> Headers:
    """What goes to an endpoint of the client's headers."""
    headers = upstream_request_headers(
        incoming.scope["headers"],
        api_key=endpoint.api_key,
        request_id=incoming.exchange.request_id.encode(),
        drop=_PACKED if incoming.head.unpacked else _NO_NAMES,
        read=incoming.exchange.features is not None,
    )
    trace = incoming.exchange.trace
    return headers if trace is None else trace.onward(headers, endpoint.url)


def _retried(core: Core, trace: Trace, pool: str, error_class: str) -> None:
    core.metrics.retried(pool, error_class)
    trace.retried(error_class)


def request_target(incoming: Incoming) -> bytes:
    """Path and query as the client wrote them."""
    target: bytes = incoming.scope["raw_path"]
    query: bytes = incoming.scope["query_string"]
    return target + b"?" + query if query else target


def _early_beats(core: Core, incoming: Incoming) -> EarlyBeats | None:
    every, exchange = incoming.active.policy.server.heartbeat, incoming.exchange
    if every is None and incoming.down.early:
        # A reload switched them off while the request waited: its answer still has to go into the stream that began.
        every = inf
    if every is None or exchange.features is None or not exchange.features.stream:
        return None
    own = partial(own_headers, core, incoming.active, exchange)
    return EarlyBeats(incoming.down, exchange, incoming.dialect, every, own)


def _call(core: Core, incoming: Incoming, plan: Plan, asked: set[str], early: EarlyBeats | None) -> Call:
    """`asked` will hold the pools whose attempt was asked for usage."""
    scope, policy, key = incoming.scope, incoming.active.policy, incoming.exchange.key
    decision, features = incoming.exchange.decision, incoming.exchange.features
    stream = features is not None and features.stream

    def body(pool: str) -> bytes | AsyncIterator[bytes]:
        sent = plan.body(served_name(policy, plan.model, pool))
        if plan.usage_open and isinstance(sent, bytes) and core.usage_habits.asks(pool):
            asked.add(pool)
            return asking_for_usage(sent)
        return sent

    return Call(
        method=scope["method"].encode(),
        target=request_target(incoming),
        headers=partial(request_headers, incoming),
        body=body,
        pools=plan.pools,
        exclude=plan.exclude,
        again=plan.again,
        attempts=max(policy.pools[plan.pools[0]].retry.attempts - incoming.exchange.attempts, 1),
        wait_for_first=policy.server.heartbeat is None or early is not None,
        work=partial(work_of, decision),
        endpoint=decision.endpoint if decision else None,
        first=partial(_first, incoming.exchange),
        extra=None if stream or decision is None else partial(_extra, core, incoming.exchange, decision),
        prompt=partial(prompt_for, incoming.exchange),
        stream=stream,
        json=features is not None,
        key=key.name if key else None,
        priority=key.priority if key else 0,
    )


def _first(exchange: Exchange) -> float:
    """Expected seconds to the first byte in the chosen pool: a stream's first token, else all of the answer."""
    decision, features = exchange.decision, exchange.features
    terms = decision.terms(decision.pool) if decision is not None else None
    if terms is None or features is None:
        return inf
    return terms.wait + terms.first + (0.0 if features.stream else terms.decode)


def prompt_for(exchange: Exchange, lease: Lease) -> Prompt | None:
    """What the lease's engine has to compute before the first token; None where the request is passed on unread."""
    features = exchange.features
    if features is None:
        return None
    return prompt_of(exchange.decision, features.input_tokens, lease.pool, lease.endpoint.url, stream=features.stream)


def _extra(core: Core, exchange: Exchange, decision: Decision) -> float:
    """Seconds that a whole answer's first byte may take beyond a stream's: all its tokens come before it."""
    estimate, features = exchange.estimate, exchange.features
    if estimate is None or features is None:
        return 0.0
    return longest_decode(decision, estimate, features, core.learned.routing.curves)


def served_name(policy: Policy, model: Model, pool: str) -> str:
    """The name under which a pool's engines serve the model."""
    return policy.pools[pool].model or model.name


class TimeLeft:
    """Limits a block to what is left until the request's deadline. Raises UpstreamTimeout (phase `total`)."""

    __slots__ = ("_timeout",)

    def __init__(self, deadline: float | None, clock: Callable[[], float]) -> None:
        self._timeout = None if deadline is None else asyncio.timeout(deadline - clock())

    async def __aenter__(self) -> None:
        if self._timeout is not None:
            await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timeout is None:
            return
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise UpstreamTimeout("the request's total time (timeouts.total) ran out", phase="total") from None


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
