"""Classification without decoding: a pure choice among labels, answered through vLLM's `/v1/decisions`.

Off unless the policy says `decisions: true` for the model. The engine then reads the labels' probabilities off one
prefill, and no decoding loop runs. Pool, slot, key, limits and record are the ordinary request's:

    pure choice (`request.labels`) -> a pool that may read log probabilities and has the route -> one attempt
        200 and one of the labels      the gateway writes the completion
        anything else                  the request is decoded as if nothing had been asked

A pool has the route until one of its endpoints answers 404, 405 or 501 (older vLLM, or a model without a way to read
labels); then it is not asked for `ABSENT_SECONDS`. After any other failure but a refusal of this request (4xx) it is
not asked for `FAILED_SECONDS`. An attempt that failed counts as one of the request's attempts.

Nothing is learned from such an answer: its one token says nothing about the length or the speed of a decoded one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from gateway.api.core import Core
from gateway.api.handler import Incoming, own_headers
from gateway.api.label_answer import TARGET, Frame, completion, decision_body, event_stream, read_decision
from gateway.api.relay import result_of
from gateway.api.sending import request_headers, served_name
from gateway.errors import GatewayError, NothingAvailable, TooManyRequests
from gateway.policy.schema import Model
from gateway.request.labels import LabelQuestion, read_label_question
from gateway.request.parse import Body
from gateway.routing.cost import work_of
from gateway.types import Decision, Need, Reason, Result, Usage
from gateway.upstream.call import Call, Opened
from gateway.upstream.client import Headers
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.fair import Work
from gateway.upstream.proxy import Attempts

log = logging.getLogger("gateway.labels")

ABSENT_SECONDS = 600.0
FAILED_SECONDS = 30.0
FALLBACK = "decisions"
"""The class of such an attempt in `gateway_retries_total`."""
_ABSENT = frozenset({404, 405, 501})
_OURS = frozenset({b"accept", b"accept-encoding", b"content-encoding", b"content-type"})
"""Headers that describe the client's body and the answer that it gets, not the question asked here."""
_JSON = (b"content-type", b"application/json")
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

Tried = frozenset[str]
"""URLs of endpoints that have failed the request."""


class LabelDesk:
    """Answers the choices among labels that a pool can answer without decoding. One per process."""

    def __init__(self, core: Core, wall: Callable[[], float] = time.time) -> None:
        self._core = core
        self._wall = wall
        self._rests: dict[str, float] = {}
        """Until when an endpoint's pool is not asked, by the endpoint's URL."""

    async def answer(self, incoming: Incoming, model: Model, body: Body) -> Tried | None:
        """None once the client has its answer. Otherwise the request is to be decoded, preferably not where this was
        tried.

        Raises NothingAvailable or TooManyRequests if the pools that may decode would have no slot either.
        """
        exchange = incoming.exchange
        decision, estimate = exchange.decision, exchange.estimate
        if decision is None or estimate is None or body.cuts or exchange.features is None or exchange.features.thinking:
            return frozenset()
        pools = tuple(name for name in decision.order if self._may_ask(incoming, name))
        if pools != decision.order:
            # Waiting for these pools is not worth it: another pool may have a slot to decode the label sooner.
            pools = tuple(name for name in pools if not self._core.pools.load(name).full)
        question = read_label_question(body.data) if pools and model.reasoning != "always" else None
        if question is None:
            return frozenset()
        attempts = Attempts(self._core.pools, self._core.metrics.retried)
        try:
            with self._core.deadlines.until(self._deadline(incoming, pools[0])):
                opened = await attempts.open(LabelCall(incoming, model, question, pools, decision))
            exchange.lease, exchange.response = opened.lease, opened.response
        except (NothingAvailable, TooManyRequests):
            if attempts.count == 0 and pools == decision.order:
                raise
            return self._failed(attempts)
        except GatewayError:
            return self._failed(attempts)
        finally:
            exchange.attempts += attempts.count
            exchange.questions += attempts.count
            exchange.sent_upstream, exchange.endpoint = attempts.sent_at, attempts.endpoint
            exchange.waited += attempts.waited
        exchange.first_byte = self._core.clock()
        content, usage = self._read(opened, question)
        if usage is None:
            self._core.metrics.retried(opened.lease.pool, FALLBACK)
            exchange.lease = exchange.response = exchange.first_byte = None
            return frozenset()
        # The prompt differs from the conversation's, so no prefix of it is cached.
        exchange.decision = replace(decision, pool=opened.lease.pool, reason=Reason.DECISIONS, thread=0)
        exchange.features, exchange.usage, exchange.finish_reason = None, usage, "stop"
        frame = self._frame(incoming, model, body, opened.lease.pool)
        if body.stream:
            events = event_stream(frame, content, usage if question.include_usage else None)
            await self._send(incoming, events, _EVENTS)
        else:
            whole = completion(frame, content, usage)
            await self._send(incoming, whole, [_JSON, (b"content-length", b"%d" % len(whole))])
        return None

    def _may_ask(self, incoming: Incoming, name: str) -> bool:
        """Whether the pool may read log probabilities, and none of its endpoints is known to lack the route."""
        if Need.LOGPROBS in incoming.active.policy.pools[name].refuses:
            return False
        pool, now = self._core.pools.find(name), self._core.clock()
        return pool is not None and all(self._rests.get(e.url, 0.0) <= now for e in pool.endpoints)

    def _deadline(self, incoming: Incoming, pool: str) -> float | None:
        total = incoming.active.policy.pools[pool].timeouts.total
        return None if total is None else incoming.exchange.started + total

    def _read(self, opened: Opened, question: LabelQuestion) -> tuple[str, Usage | None]:
        """The content and its token counts. Without an answer there are no counts, and the lease is given back."""
        lease, status = opened.lease, opened.response.status
        problem = f"status {status}"
        if status == 200:
            try:
                return read_decision(opened.first or b"", question)
            except ValueError as error:
                problem = str(error)
        if status in _ABSENT:
            self._rest(lease.endpoint.url, ABSENT_SECONDS, problem)
        elif status in (200, 401, 403) or status >= 500:
            self._rest(lease.endpoint.url, FAILED_SECONDS, problem)
        lease.blameless = status in (200, 501)
        opened.response.close()
        lease.release(Result.BACKEND_ERROR if status == 200 else result_of(status))
        return "", None

    def _failed(self, attempts: Attempts) -> Tried:
        """After an attempt without an answer. If there is no other endpoint, the same one may be tried again."""
        if attempts.count == 0 or attempts.endpoint is None or attempts.pool is None:
            return frozenset()
        self._core.metrics.retried(attempts.pool, FALLBACK)
        self._rest(attempts.endpoint, FAILED_SECONDS, "no answer")
        tried = frozenset({attempts.endpoint})
        return tried if self._core.pools.admission.worth_waiting((attempts.pool,), tried) else frozenset()

    def _rest(self, url: str, seconds: float, why: str) -> None:
        now = self._core.clock()
        self._rests = {other: until for other, until in self._rests.items() if until > now}
        self._rests[url] = now + seconds
        log.warning(
            "labels are decoded for a while",
            extra={"fields": {"endpoint": url, "seconds": seconds, "why": why}},
        )

    def _frame(self, incoming: Incoming, model: Model, body: Body, pool: str) -> Frame:
        """What surrounds the answer. Where that has the client's name for the model, notes the served one."""
        policy, exchange = incoming.active.policy, incoming.exchange
        served = served_name(policy, model, pool)
        name = served if policy.server.answer_model == "served" else body.model or served
        if name != served:
            exchange.served = served
        return Frame(exchange.request_id, int(self._wall()), name)

    async def _send(self, incoming: Incoming, answer: bytes, headers: Headers) -> None:
        exchange, down = incoming.exchange, incoming.down
        own = own_headers(self._core, incoming.active, exchange)
        exchange.status, exchange.result = 200, Result.OK
        await down.answer(200, [*headers, *own], answer)


class LabelCall(Call):
    """The question that stands for the request, once."""

    target = TARGET

    def __init__(
        self, incoming: Incoming, model: Model, question: LabelQuestion, pools: tuple[str, ...], decision: Decision
    ) -> None:
        self._incoming, self._model, self._question, self._decision = incoming, model, question, decision
        self.pools, self.endpoint = pools, decision.endpoint
        if (key := incoming.exchange.key) is not None:
            self.key, self.priority = key.name, key.priority

    def headers(self, endpoint: Endpoint) -> Headers:
        return [*(pair for pair in request_headers(self._incoming, endpoint) if pair[0] not in _OURS), _JSON]

    def body(self, pool: str) -> bytes:
        return decision_body(self._question, served_name(self._incoming.active.policy, self._model, pool))

    def work(self) -> Work:
        return work_of(self._decision)
