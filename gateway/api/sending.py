"""What a request of the gateway's clients is at a back end: its head, its body, and what is known of its times."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from math import inf

from gateway.api.core import Core
from gateway.api.exchange import Exchange
from gateway.api.handler import Incoming
from gateway.api.usage import asking_for_usage
from gateway.policy.schema import Model, Policy
from gateway.records import keyword_record
from gateway.routing.cost import longest_decode, prompt_of, work_of
from gateway.upstream.call import Call
from gateway.upstream.client import Extra, Headers
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.fair import Work
from gateway.upstream.headers import upstream_request_headers
from gateway.upstream.lease import Lease
from gateway.upstream.prefill import Prompt

BodyFor = Callable[[str], bytes | AsyncIterator[bytes]]

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
    again: Callable[[], bool] | None = None
    """Whether `body` can be asked for once more; None: always."""


class PlannedCall(Call):
    """A plan as the attempt loop sees it."""

    def __init__(self, core: Core, incoming: Incoming, plan: Plan, *, wait_for_first: bool) -> None:
        scope, exchange, policy = incoming.scope, incoming.exchange, incoming.active.policy
        self._core, self._plan, self._incoming = core, plan, incoming
        self.asked: set[str] = set()
        """The pools whose attempt was asked for usage."""
        self.method = scope["method"].encode()
        self.target = request_target(incoming)
        self.pools, self.exclude = plan.pools, plan.exclude
        self.attempts = max(policy.pools[plan.pools[0]].retry.attempts - exchange.attempts, 1)
        self.wait_for_first = wait_for_first
        if (features := exchange.features) is not None:
            self.json, self.stream = True, features.stream
        if (decision := exchange.decision) is not None:
            self.endpoint = decision.endpoint
        if (key := exchange.key) is not None:
            self.key, self.priority = key.name, key.priority

    def headers(self, endpoint: Endpoint) -> Headers:
        return request_headers(self._incoming, endpoint)

    def body(self, pool: str) -> bytes | AsyncIterator[bytes]:
        plan = self._plan
        sent = plan.body(served_name(self._incoming.active.policy, plan.model, pool))
        if plan.usage_open and isinstance(sent, bytes) and self._core.usage_habits.asks(pool):
            self.asked.add(pool)
            return asking_for_usage(sent)
        return sent

    def again(self) -> bool:
        return self._plan.again is None or self._plan.again()

    def work(self) -> Work:
        return work_of(self._incoming.exchange.decision)

    def first(self) -> float:
        """In the chosen pool: a stream's first token, else all of the answer."""
        decision, features = self._incoming.exchange.decision, self._incoming.exchange.features
        terms = decision.terms(decision.pool) if decision is not None else None
        if terms is None or features is None:
            return inf
        return terms.wait + terms.first + (0.0 if features.stream else terms.decode)

    def extra(self) -> Extra | None:
        exchange = self._incoming.exchange
        decision, estimate, features = exchange.decision, exchange.estimate, exchange.features
        if decision is None or estimate is None or features is None or features.stream:
            return None
        # Without the exchange, which has the lease that will hold this: neither is to wait for a garbage collection.
        return partial(longest_decode, decision, estimate, features, self._core.learned.routing.curves)

    def prompt(self, lease: Lease) -> Prompt | None:
        return prompt_for(self._incoming.exchange, lease)


def prompt_for(exchange: Exchange, lease: Lease) -> Prompt | None:
    """What the lease's engine has to compute before the first token; None where the request is passed on unread."""
    features = exchange.features
    if features is None:
        return None
    return prompt_of(exchange.decision, features.input_tokens, lease.pool, lease.endpoint.url, stream=features.stream)


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


def request_target(incoming: Incoming) -> bytes:
    """Path and query as the client wrote them."""
    target: bytes = incoming.scope["raw_path"]
    query: bytes = incoming.scope["query_string"]
    return target + b"?" + query if query else target


def served_name(policy: Policy, model: Model, pool: str) -> str:
    """The name under which a pool's engines serve the model."""
    return policy.pools[pool].model or model.name
