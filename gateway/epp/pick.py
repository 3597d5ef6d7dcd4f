"""Hops 5 to 7 when Envoy carries the bytes: a slot is taken as usual, Envoy is told where, the response is watched.

`Picker.forward` takes the place of the proxy's `forward`. Slots, queues, limits, learning and the judgement of the end
are the proxy's own code; what differs is that Envoy makes the attempts. It gets the picked endpoint first and then the
fallbacks, which must accept the very same bytes: endpoints whose engines know the model under the same name and require
the same key. If the data plane reports which one served the request, the lease moves there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gateway.api.core import Core
from gateway.api.exchange import Exchange
from gateway.api.forward import after, rewriting
from gateway.api.handler import Incoming, own_headers
from gateway.api.relay import Rewrite, StreamRelay, relay_whole, result_of
from gateway.api.sending import Plan, prompt_for, served_name
from gateway.api.usage import UsageHider, asking_for_usage
from gateway.epp.addresses import Addresses
from gateway.epp.sides import Body
from gateway.epp.talk import Talk
from gateway.epp.wire import BodyMode, Changes, ResponseHead
from gateway.errors import NothingAvailable, TooManyRequests
from gateway.routing.cost import work_of
from gateway.types import Result
from gateway.upstream.call import Opened
from gateway.upstream.client import Headers
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.headers import is_event_stream
from gateway.upstream.lease import Lease, heed_refusal
from gateway.upstream.pool import NOTHING, Pool
from gateway.upstream.verdict import fault_of

CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})
HINTS = frozenset({b"x-gateway-pool", b"x-gateway-task", b"x-gateway-output-tokens", b"x-gateway-session"})
"""Hints of clients to routing; other `x-gateway-` names belong to the data plane."""


class Picker:
    """Decides where one request goes, and watches it to its end."""

    def __init__(self, talk: Talk, addresses: Addresses) -> None:
        self._talk = talk
        self._addresses = addresses

    async def forward(self, core: Core, incoming: Incoming, plan: Plan) -> None:
        """Picks, tells Envoy, and judges the answer. Raises GatewayError while that can still be the answer."""
        exchange = incoming.exchange
        exclude = self._excluded(core, plan)
        lease = exchange.lease = await _place(core, incoming, plan, exclude)
        prefill, prompt, key = lease.endpoint.prefill, prompt_for(exchange, lease), exchange.key
        if prompt is not None and not prefill.take(lease, prompt):
            await prefill.wait(lease, prompt, key.priority if key else 0, key.name if key else None)
            lease.sent = core.clock()
        served = served_name(incoming.active.policy, plan.model, lease.pool)
        body: Body = plan.body(served)
        asked = self._may_ask(plan) and isinstance(body, bytes) and core.usage_habits.asks(lease.pool)
        if asked and isinstance(body, bytes):
            body = asking_for_usage(body)
        others = list(_others(core, incoming, plan, lease, exclude))
        order = (lease.endpoint, *(endpoint for _, endpoint in others))
        destination = ",".join([address for e in order if (address := self._addresses.of(e.url)) is not None])
        if not destination:
            # Given back here: whoever decides the request anew takes another place.
            exchange.lease = None
            lease.release(Result.REJECTED)
            raise NothingAvailable("no endpoint for this request has an address now", retry_after=1)
        exchange.endpoint, exchange.attempts, exchange.sent_upstream = lease.endpoint.url, 1, core.clock()
        await self._talk.go(_changes(incoming, lease.endpoint, destination), body)
        head = await self._talk.answered()
        exchange.lease = lease = self._served_by(core, exchange, lease, head, others)
        exchange.went_to(lease.pool)
        _heed(lease, head, core.clock())
        rewrite = rewriting(incoming.active.policy, plan.asked, served)
        if rewrite is not None:
            exchange.served = served
        response = self._talk.response(head, own := own_headers(core, incoming.active, exchange))
        if response is None:
            await self._talk.answer_head_only(own)
            exchange.status, exchange.result = head.status, result_of(head.status)
            return
        exchange.response = response
        opened = Opened(lease, response, None, is_event_stream(head.headers))
        response.on_first = partial(_begun, core, opened, exchange.features is not None)
        if head.ended:
            response.on_first(b"")
        if asked and opened.streams:
            rewrite = after(UsageHider(), rewrite)
        try:
            await _relay(core, incoming, opened, own, rewrite)
        except Exception:
            # Whatever it is, the frame around this will want to answer it.
            self._talk.take_back()
            raise
        finally:
            if plan.usage_open and not asked and (exchange.whole or exchange.result is Result.OK):
                core.usage_habits.learn(lease.pool, told=exchange.usage is not None)

    def _may_ask(self, plan: Plan) -> bool:
        """Whether usage may be asked for: only if the extra chunk can be removed from the response."""
        return plan.usage_open and self._talk.modes.response is not BodyMode.NONE

    def _excluded(self, core: Core, plan: Plan) -> frozenset[str]:
        """URLs that cannot be picked: without an address, or not among those that the data plane allows."""
        subset, of = self._talk.head.subset, self._addresses.of
        found = set(plan.exclude)
        for name in plan.pools:
            if (pool := core.pools.find(name)) is not None:
                for endpoint in pool.endpoints:
                    address = of(endpoint.url)
                    if address is None or (subset is not None and address not in subset):
                        found.add(endpoint.url)
        return frozenset(found) if found else NOTHING

    def _served_by(
        self,
        core: Core,
        exchange: Exchange,
        lease: Lease,
        head: ResponseHead,
        others: Sequence[tuple[Pool, Endpoint]],
    ) -> Lease:
        """The lease at the endpoint that served the request, which is not the picked one if Envoy fell back."""
        if head.served is None or head.served == self._addresses.of(lease.endpoint.url):
            return lease
        for number, (pool, endpoint) in enumerate(others, start=2):
            if self._addresses.of(endpoint.url) != head.served:
                continue
            core.metrics.retried(lease.pool, "connect")
            lease.release(Result.BACKEND_ERROR)
            exchange.endpoint, exchange.attempts = endpoint.url, number
            return Lease(pool, endpoint, core.clock())
        return lease


async def _relay(core: Core, incoming: Incoming, opened: Opened, headers: Headers, rewrite: Rewrite | None) -> None:
    """Hop 7, with the proxy's own judgement of the end. How long all of it may take is for Envoy's route to say."""
    exchange, down, dialect, clock = incoming.exchange, incoming.down, incoming.dialect, core.clock
    if opened.streams:
        relay = StreamRelay(exchange, down, opened, dialect, rewrite, clock, heartbeat=None)
        await relay.run(headers, core.deadlines.until(None))
    else:
        await relay_whole(exchange, down, opened, headers, dialect, rewrite, clock)


async def _place(core: Core, incoming: Incoming, plan: Plan, exclude: frozenset[str]) -> Lease:
    """A slot, waiting for one if that makes sense.

    Raises NothingAvailable (503) if no endpoint is up, TooManyRequests (429) if all are full.
    """
    exchange, admission, order = incoming.exchange, core.pools.admission, tuple(plan.pools)
    decision, key = exchange.decision, exchange.key
    lease = admission.take(order, exclude, decision.endpoint if decision else None)
    if lease is None:
        began = core.clock()
        try:
            lease = await admission.wait(
                order,
                work_of(decision),
                key.priority if key else 0,
                key.name if key else None,
                exclude=exclude,
            )
        except NothingAvailable as full:
            if any(pool.ready and pool.could_take(exclude) for name in order if (pool := core.pools.find(name))):
                raise TooManyRequests(full.message, retry_after=full.retry_after) from None
            raise
        finally:
            exchange.waited = core.clock() - began
    if (pool := core.pools.find(lease.pool)) is not None:
        pool.budget.deposit(lease.since)
    return lease


def _others(
    core: Core, incoming: Incoming, plan: Plan, lease: Lease, exclude: frozenset[str]
) -> Iterator[tuple[Pool, Endpoint]]:
    """The fallbacks, best first, as many as the policy's `retry.attempts` allow."""
    policy, found = incoming.active.policy, 0
    most = policy.pools[plan.pools[0]].retry.attempts - 1 if plan.pools[0] in policy.pools else 0
    first, served = lease.endpoint, served_name(policy, plan.model, lease.pool)
    for name in (lease.pool, *(name for name in plan.pools if name != lease.pool)):
        pool = core.pools.find(name)
        if pool is None or name not in policy.pools or served_name(policy, plan.model, name) != served:
            continue
        for endpoint in sorted(pool.endpoints, key=lambda e: (e.in_flight + 1) / (e.weight or 1e-9)):
            if found >= most:
                return
            fit = endpoint.ready and endpoint.room() and endpoint.api_key == first.api_key
            if fit and endpoint is not first and endpoint.url not in exclude:
                found += 1
                yield pool, endpoint


def _changes(incoming: Incoming, endpoint: Endpoint, destination: str) -> Changes:
    """Changes to the request's head for the back end. This gateway's keys are removed, as in the proxy."""
    access = incoming.active.policy.access
    ours = HINTS | (CREDENTIALS if (access and access.keys) or endpoint.api_key else frozenset())
    if incoming.head.unpacked:
        ours |= {b"content-encoding"}
    put: Headers = []
    if incoming.head.request_id is None:
        put.append((b"x-request-id", incoming.exchange.request_id.encode()))
    if endpoint.api_key is not None:
        put.append((b"authorization", b"Bearer " + endpoint.api_key))
        ours -= {b"authorization"}
    present = dict.fromkeys(name for name, _ in incoming.scope["headers"] if name in ours)
    return Changes(put, [name.decode("latin-1") for name in present], destination=destination)


def _heed(lease: Lease, head: ResponseHead, now: float) -> None:
    lease.refused = head.status >= 500
    if head.status in (429, 503):
        heed_refusal(lease, head.status, head.headers, now)


def _begun(core: Core, opened: Opened, json: bool, first: bytes) -> None:
    """Called with the beginning of the body, of which a stream may begin with an error and any other may be a page."""
    lease = opened.lease
    opened.fault = fault = fault_of(opened.response, first, streams=opened.streams, json=json)
    if not lease.refused and not lease.answered and (opened.streams or fault is None):
        lease.first_byte(core.clock())
    if fault is not None:
        lease.refused = True
        lease.client_fault = 400 <= fault < 500
