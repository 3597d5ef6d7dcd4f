"""OpenTelemetry spans of requests, by its HTTP and GenAI conventions. Never the text of prompts or answers.

    request (server)
      estimate      from the body's end: features and length
      decide        the pool, a second opinion included
      queue         waiting for a slot, if it waited
      attempt       (client) each try upstream; the back end's own spans hang below it
      stream        first to last byte of a streamed answer

A request's ids are made when it begins, so that the back end can continue the trace, and all its spans when it ends,
from the `Outcome`. So spans are finished when they reach the SDK's batches, which a thread of the SDK sends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.otlp import OtlpExporter
from gateway.trace import Attempt, Trace
from gateway.types import Api, Features, Outcome, PoolCost, Result, Structure

SERVICE = "mtp-gateway"
CLOSE_SECONDS = 5.0
"""Seconds that the last batch may take when the gateway stops."""
MOST_TEXT = 256
"""Characters that are kept of text that a client chooses freely."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
OPERATIONS = {Api.CHAT: "chat", Api.COMPLETIONS: "text_completion", Api.RESPONSES: "chat", Api.MESSAGES: "chat"}
_FAILED = frozenset({Result.BACKEND_ERROR, Result.TRUNCATED, Result.TIMEOUT})
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

Attributes = dict[str, Any]


def exporter_named(name: str, env: Mapping[str, str]) -> SpanExporter:
    """`otlp` (over HTTP) or `console`."""
    return ConsoleSpanExporter() if name == "console" else OtlpExporter(env)


class Spans:
    """Call `start`, then `begin` for each request and `observe` with its outcome; `aclose` at the end."""

    def __init__(
        self,
        exporter: SpanExporter,
        env: Mapping[str, str],
        replica: str,
        clock: Callable[[], float],
        rng: Random,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._exporter = exporter
        self._clock = clock
        self._wall = wall
        self._rng = rng
        provider = TracerProvider(resource=_resource(env, replica), shutdown_on_exit=False)
        self._sampler, self._resource = provider.sampler, provider.resource
        self._context = TraceContextTextMapPropagator()
        self._scope = InstrumentationScope("gateway", __version__)
        self._out: BatchSpanProcessor | None = None

    def start(self) -> None:
        """Starts sending, in a thread of the SDK."""
        self._out = BatchSpanProcessor(self._exporter)

    async def aclose(self) -> None:
        """Sends what is left, once and for a few seconds at most, so that a dead collector does not delay the stop."""
        if (out := self._out) is None:
            return
        self._out = None
        if isinstance(self._exporter, OtlpExporter):
            self._exporter.hurry()
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            out.shutdown()  # type: ignore[no-untyped-call]
            # The loop may have ended meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        Thread(target=close, daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await done.wait()

    def begin(self, scope: Mapping[str, Any], started: float) -> Trace:
        """The ids of a request that arrived at `started`: the client's trace goes on, or a new one begins."""
        wall = self._wall() - round((self._clock() - started) * 1e9)
        carrier: dict[str, str] = {}
        for name, value in scope["headers"]:
            if name in (b"traceparent", b"tracestate"):
                text, known = value.decode("latin-1"), carrier.get(name.decode())
                carrier[name.decode()] = text if known is None else f"{known},{text}"
        context = self._context.extract(carrier, Context()) if carrier else Context()
        parent = get_current_span(context).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self._rng.getrandbits(128) or 1
        sampling = self._sampler.should_sample(context, trace_id, "request", SpanKind.SERVER)
        server = scope.get("server")
        return Trace(
            trace_id=trace_id,
            span_id=self._new_id(),
            sampled=sampling.decision.is_sampled(),  # type: ignore[no-untyped-call]
            method=scope["method"],
            path=scope["path"],
            wall=wall,
            clock=self._clock,
            new_id=self._new_id,
            parent_id=parent.span_id if parent.is_valid else None,
            state=sampling.trace_state.to_header() if sampling.trace_state else "",
            server=(server[0], server[1]) if server else None,
        )

    def observe(self, outcome: Outcome) -> None:
        """Makes the spans of a finished request."""
        trace, out = outcome.trace, self._out
        if trace is None or out is None or not trace.sampled:
            return
        state = TraceState.from_header([trace.state]) if trace.state else None
        for name, kind, began, ended, span_id, attributes, error in _spans(outcome, trace):
            whole = span_id == trace.span_id
            parent = trace.parent_id if whole else trace.span_id
            out.on_end(
                ReadableSpan(
                    name,
                    SpanContext(trace.trace_id, span_id, False, _SAMPLED, state),
                    None if parent is None else SpanContext(trace.trace_id, parent, whole, _SAMPLED, state),
                    self._resource,
                    attributes if error is None else {**attributes, "error.type": error},
                    kind=kind,
                    status=Status() if error is None else Status(StatusCode.ERROR),
                    start_time=_wall(trace, outcome, began),
                    end_time=_wall(trace, outcome, ended),
                    instrumentation_scope=self._scope,
                )
            )

    def _new_id(self) -> int:
        return self._rng.getrandbits(64) or 1


Span = tuple[str, SpanKind, float, float, int, Attributes, str | None]
"""Name, kind, from, to (seconds of the clock), id, attributes, error."""


def _spans(outcome: Outcome, trace: Trace) -> Iterator[Span]:
    attempts = trace.attempts or []
    error = (outcome.error or outcome.result.value) if outcome.result in _FAILED or outcome.status >= 500 else None
    yield _request_span(outcome, trace, error)
    inner, new_id = SpanKind.INTERNAL, trace.new_id
    if trace.read is not None and trace.estimated is not None:
        yield "estimate", inner, trace.read, trace.estimated, new_id(), _estimate(outcome), None
    if trace.admitted is not None and trace.decided is not None:
        yield "decide", inner, trace.admitted, trace.decided, new_id(), _decision(outcome), None
    if outcome.waited > 0.0:
        for began, ended in _gaps(trace, attempts, outcome.ended):
            yield "queue", inner, began, ended, new_id(), {}, None
    for number, attempt in enumerate(attempts):
        failed = attempt.error if attempt.ended is not None else error
        ended = outcome.ended if attempt.ended is None else attempt.ended
        yield "attempt", SpanKind.CLIENT, attempt.began, ended, attempt.span_id, _attempt(attempt, number), failed
    if outcome.first_byte is not None and outcome.features is not None and outcome.features.stream:
        yield "stream", inner, outcome.first_byte, outcome.ended, new_id(), {}, error


def _gaps(trace: Trace, attempts: list[Attempt], ended: float) -> Iterator[tuple[float, float]]:
    """When the request had been decided on and no attempt ran."""
    free = trace.decided or trace.read
    for attempt in attempts:
        if free is not None and attempt.began > free:
            yield free, attempt.began
        free = attempt.ended
    if not attempts and free is not None:
        yield free, ended


def _request_span(outcome: Outcome, trace: Trace, error: str | None) -> Span:
    features, usage, decision = outcome.features, outcome.usage, outcome.decision
    operation = OPERATIONS[features.api] if features else "embeddings" if trace.path.endswith("/embeddings") else None
    method = trace.method if trace.method in METHODS else "_OTHER"
    found: Attributes = {
        "http.request.method": method,
        "url.path": trace.path[:MOST_TEXT],
        "url.scheme": "http",
        "gateway.request_id": outcome.request_id,
        "gateway.result": outcome.result.value,
        "gateway.attempts": outcome.attempts,
    }
    if outcome.status:
        found["http.response.status_code"] = outcome.status
    if trace.server:
        found |= _address(*trace.server)
    if outcome.key:
        found["gateway.key"] = outcome.key
    if operation:
        found |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "vllm"}
    if features:
        found |= _asked(features)
    if decision:
        found |= {"gateway.model": decision.model, "gateway.pool": decision.pool}
    if usage:
        found["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        found["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens:
            found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if outcome.finish_reason:
        found["gen_ai.response.finish_reasons"] = (outcome.finish_reason,)
    # Names must be few: the policy's model, and never what a client wrote.
    name = f"{operation} {decision.model}" if operation and decision else operation or method
    return name, SpanKind.SERVER, outcome.started, outcome.ended, trace.span_id, found, error


def _asked(features: Features) -> Attributes:
    found: Attributes = {"gen_ai.request.model": features.model[:MOST_TEXT], "gen_ai.request.stream": features.stream}
    if features.explicit_cap and features.token_limit is not None:
        found["gen_ai.request.max_tokens"] = features.token_limit
    if features.n != 1:
        found["gen_ai.request.choice.count"] = features.n
    if features.structure is not Structure.NONE:
        found["gateway.structure"] = features.structure.value
    return found


def _estimate(outcome: Outcome) -> Attributes:
    features, estimate = outcome.features, outcome.estimate
    if features is None or estimate is None:
        return {}
    return {
        "gateway.input_tokens": features.input_tokens,
        "gateway.language": features.language,
        "gateway.task": estimate.task.value,
        "gateway.predicted_output_tokens": estimate.output_tokens,
        "gateway.confidence": estimate.confidence,
        "gateway.source": estimate.source,
    }


def _decision(outcome: Outcome) -> Attributes:
    decision = outcome.decision
    if decision is None:
        return {}
    found: Attributes = {"gateway.pool": decision.pool, "gateway.reason": decision.reason.value}
    if decision.detail:
        found["gateway.detail"] = decision.detail
    return found | {f"gateway.pools.{cost.pool}": _cost(cost) for cost in decision.costs}


def _cost(cost: PoolCost) -> float | str:
    """Expected seconds, or why the pool was out."""
    return cost.out or (cost.seconds if cost.seconds is not None else "unknown")


def _attempt(attempt: Attempt, number: int) -> Attributes:
    place = urlsplit(attempt.endpoint)
    found: Attributes = {"gateway.endpoint": attempt.endpoint, **_address(place.hostname or "", place.port)}
    return found | ({"http.request.resend_count": number} if number else {})


def _address(host: str, port: int | None) -> Attributes:
    return {"server.address": host} if port is None else {"server.address": host, "server.port": port}


def _wall(trace: Trace, outcome: Outcome, at: float) -> int:
    return trace.wall + round((at - outcome.started) * 1e9)


def _resource(env: Mapping[str, str], replica: str) -> Resource:
    """Who sends. What the operator's environment says wins."""
    own = {"service.version": __version__, "service.instance.id": replica}
    if not env.get("OTEL_SERVICE_NAME") and "service.name=" not in env.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        own["service.name"] = SERVICE
    return Resource.create(own)
