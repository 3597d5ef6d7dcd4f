"""Classification without decoding: a pure choice among labels, answered through vLLM's `/v1/decisions`.

Off unless the policy says `decisions: true` of the model. The engine then reads the label's probabilities off one
prefill; no decoding loop runs. It is the ordinary request's pool, place, key, limits and record, with another question:

    pure choice (`request.labels`) -> a pool that may read log probabilities and has the route -> one attempt
        200 and one of the labels      the gateway writes the completion
        anything else                  the request goes on as if nothing had been asked

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
from functools import partial

from gateway.api.core import Core
from gateway.api.forward import TimeLeft, request_headers, served_name
from gateway.api.handler import Incoming, own_headers
from gateway.api.label_answer import TARGET, Frame, completion, decision_body, event_stream, read_decision
from gateway.api.relay import result_of
from gateway.errors import GatewayError, NothingAvailable, TooManyRequests
from gateway.policy.schema import Model
from gateway.request.labels import LabelQuestion, read_label_question
from gateway.request.parse import Body
from gateway.routing.cost import work_of
from gateway.types import Decision, Need, Reason, Result, Usage
from gateway.upstream.client import Headers
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.proxy import Attempts, Call, Opened

log = logging.getLogger("gateway.labels")

ABSENT_SECONDS = 600.0
FAILED_SECONDS = 30.0
FALLBACK = "decisions"
"""The class of such an attempt among those that were followed by another, in metrics."""
_ABSENT = frozenset({404, 405, 501})
_OURS = frozenset({b"accept", b"accept-encoding", b"content-encoding", b"content-type"})
"""Headers that speak of the client's body and of the answer that it gets, not of this one."""
_JSON = (b"content-type", b"application/json")
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

Tried = frozenset[str]
"""URLs of endpoints that have failed the request."""


class LabelDesk:
    """Answers what it can; one per process."""

    def __init__(self, core: Core, wall: Callable[[], float] = time.time) -> None:
        self._core = core
        self._wall = wall
        self._rests: dict[str, float] = {}
        """Until when an endpoint's pool is not asked, by the endpoint's URL."""

    async def answer(self, incoming: Incoming, model: Model, body: Body) -> Tried | None:
        """None once the client has its answer; else the request is to go on, best without what has been tried.

        Raises NothingAvailable or TooManyRequests where no pool that may decode would have a place either.
        """
        exchange = incoming.exchange
        decision, estimate = exchange.decision, exchange.estimate
        if decision is None or estimate is None or body.cuts or exchange.features is None or exchange.features.thinking:
            return frozenset()
        pools = tuple(name for name in decision.order if self._may_ask(incoming, name))
        if pools != decision.order:
            # A label is worth no wait for its own pools: another one may have a place to decode it in sooner.
            pools = tuple(name for name in pools if not self._core.pools.load(name).full)
        question = read_label_question(body.data) if pools and model.reasoning != "always" else None
        if question is None:
            return frozenset()
        attempts = Attempts(self._core.pools, self._core.metrics.retried)
        try:
            async with TimeLeft(self._deadline(incoming, pools[0]), self._core.clock):
                opened = await attempts.open(self._call(incoming, model, question, pools, decision))
            exchange.lease, exchange.response = opened.lease, opened.response
        except (NothingAvailable, TooManyRequests):
            if attempts.count == 0 and pools == decision.order:
                raise
            return self._failed(attempts)
        except GatewayError:
            return self._failed(attempts)
        finally:
            exchange.attempts += attempts.count
            exchange.sent_upstream, exchange.endpoint = attempts.sent_at, attempts.endpoint
            exchange.waited += attempts.waited
        exchange.first_byte = self._core.clock()
        content, usage = self._read(opened, question)
        if usage is None:
            self._core.metrics.retried(opened.lease.pool, FALLBACK)
            exchange.lease = exchange.response = exchange.first_byte = None
            return frozenset()
        # Another prompt was read than the conversation's, so there is no prefix to come back to.
        exchange.decision = replace(decision, pool=opened.lease.pool, reason=Reason.DECISIONS, thread=0)
        exchange.features, exchange.usage, exchange.finish_reason = None, usage, "stop"
        await self._send(incoming, model, body, question, content)
        return None

    def _may_ask(self, incoming: Incoming, name: str) -> bool:
        """Whether the pool reads log probabilities well and all of it is thought to have the route."""
        if Need.LOGPROBS in incoming.active.policy.pools[name].refuses:
            return False
        pool, now = self._core.pools.find(name), self._core.clock()
        return pool is not None and all(self._rests.get(e.url, 0.0) <= now for e in pool.endpoints)

    def _deadline(self, incoming: Incoming, pool: str) -> float | None:
        total = incoming.active.policy.pools[pool].timeouts.total
        return None if total is None else incoming.exchange.started + total

    def _call(
        self, incoming: Incoming, model: Model, question: LabelQuestion, pools: tuple[str, ...], decision: Decision
    ) -> Call:
        policy, key = incoming.active.policy, incoming.exchange.key
        return Call(
            method=b"POST",
            target=TARGET,
            headers=partial(_headers, incoming),
            body=lambda pool: decision_body(question, served_name(policy, model, pool)),
            pools=pools,
            attempts=1,
            wait_for_first=True,
            work=work_of(decision),
            endpoint=decision.endpoint,
            key=key.name if key else None,
            priority=key.priority if key else 0,
        )

    def _read(self, opened: Opened, question: LabelQuestion) -> tuple[str, Usage | None]:
        """The content and its counts; no counts where this is no answer, whose lease is then given back."""
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
        """After an attempt without an answer. Where there is no other endpoint, the same one is tried once more."""
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

    async def _send(self, incoming: Incoming, model: Model, body: Body, question: LabelQuestion, content: str) -> None:
        exchange, down, policy = incoming.exchange, incoming.down, incoming.active.policy
        assert exchange.usage is not None
        assert exchange.lease is not None
        served = served_name(policy, model, exchange.lease.pool)
        name = served if policy.server.answer_model == "served" else body.model or served
        frame = Frame(exchange.request_id, int(self._wall()), name)
        own = own_headers(self._core, incoming.active, exchange)
        exchange.status, exchange.result = 200, Result.OK
        if body.stream:
            await down.start(200, [*_EVENTS, *own])
            await down.end(event_stream(frame, content, exchange.usage if question.include_usage else None))
            return
        whole = completion(frame, content, exchange.usage)
        await down.start(200, [_JSON, (b"content-length", b"%d" % len(whole)), *own])
        await down.end(whole)


def _headers(incoming: Incoming, endpoint: Endpoint) -> Headers:
    kept = [header for header in request_headers(incoming, endpoint) if header[0] not in _OURS]
    return [*kept, _JSON]
