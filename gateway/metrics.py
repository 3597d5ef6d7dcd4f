"""Every Prometheus metric of the gateway, in one table, in a registry of its own.

Labels take values from the policy and from our own enums only; anything else is `other`, so that no client can make
series. Label children are looked up once per combination and kept, so that one request costs a few additions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.types import Outcome, Result

OTHER = "other"
NONE = "none"

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0)
LONG_SECONDS = (*SECONDS, 120.0, 300.0, 600.0, 1800.0)
TPOT_SECONDS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2)
OVERHEAD_SECONDS = (0.0001, 0.0002, 0.0004, 0.0008, 0.0015, 0.003, 0.006, 0.0125, 0.025, 0.05, 0.1, 0.5)
RATIOS = (0.1, 0.25, 0.5, 0.71, 0.83, 1.0, 1.2, 1.41, 2.0, 4.0, 10.0)


class Metrics:
    """The gateway's metrics. `observe` takes an `Outcome`; gauges are set by whoever owns the fact."""

    shown_endpoints: set[tuple[str, str]]
    """Pool and URL of every endpoint that has gauges."""
    shown_sources: set[str]
    """Pools whose gauges of discovery are not at rest."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._models: Collection[str] = ()
        self._pools: Collection[str] = ()
        self._children: dict[tuple[object, ...], Any] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, over_workers: Literal["livesum", "livemin", "livemax"], *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry, multiprocess_mode=over_workers)

        self.requests = counter("gateway_requests", "Requests by how they ended.", "model", "pool", "task", "outcome")
        self.request_seconds = histogram(
            "gateway_request_seconds",
            "From the request's arrival to the answer's last byte.",
            LONG_SECONDS,
            "model",
            "pool",
        )
        self.ttft = histogram(
            "gateway_time_to_first_token_seconds", "From sending to the first body byte.", SECONDS, "model", "pool"
        )
        self.tpot = histogram(
            "gateway_time_per_output_token_seconds",
            "Time after the first token by the tokens after it.",
            TPOT_SECONDS,
            "model",
            "pool",
        )
        self.overhead = histogram(
            "gateway_overhead_seconds",
            "Time spent in the gateway before the request went upstream, waiting in a queue not counted.",
            OVERHEAD_SECONDS,
        )
        self.output_tokens = counter("gateway_output_tokens", "Output tokens, as back ends reported.", "model", "pool")
        self.decisions = counter("gateway_decisions", "Routing decisions.", "model", "pool", "reason")
        self.predicted_ratio = histogram(
            "gateway_predicted_output_ratio", "Actual output tokens over predicted.", RATIOS, "task"
        )
        self.in_flight = gauge("gateway_in_flight", "Requests running now.", "livesum", "pool", "endpoint")
        self.endpoint_up = gauge("gateway_endpoint_up", "1 if it can take requests.", "livemin", "pool", "endpoint")
        self.language_ratio = histogram(
            "gateway_predicted_output_ratio_by_language", "Actual output tokens over predicted.", RATIOS, "language"
        )
        self.discovered = gauge("gateway_discovered_endpoints", "Endpoints found by discovery.", "livemax", "pool")
        self.discovery_failing = gauge("gateway_discovery_failing", "Sources that find nothing.", "livemax", "pool")
        self.waiting = gauge("gateway_waiting", "Requests waiting for a place.", "livesum", "pool")
        self.in_flight_limit = gauge("gateway_in_flight_limit", "Most requests in a pool; 0: any.", "livesum", "pool")
        self.state_connected = gauge("gateway_state_connected", "1 if shared state is reached.", "livemin", "home")
        self.retries = counter("gateway_retries", "Attempts that were followed by another.", "pool", "class")
        self.legacy_guided = counter("gateway_legacy_guided", "Requests with a guided_* field.", "action")
        self.policy_reloads = counter("gateway_policy_reload", "Policy reloads.", "result")
        self.shown_endpoints, self.shown_sources = set(), set()
        self.policy_version = gauge("gateway_policy_version", "Policies this process has had live.", "livemax")
        for result in ("ok", "failed"):
            self.policy_reloads.labels(result)

    def allow(self, models: Collection[str], pools: Collection[str]) -> None:
        """The label values that the live policy knows; all others become `other`."""
        self._models, self._pools = models, pools

    def retried(self, pool: str, error_class: str) -> None:
        self.child(self.retries, self.pool_label(pool), error_class).inc()

    def guided(self, action: str) -> None:
        self.child(self.legacy_guided, action).inc()

    def observe(self, outcome: Outcome) -> None:
        """Counts one finished request. Our enums' members are strings and serve as labels: `.value` is slow."""
        decision, estimate = outcome.decision, outcome.estimate
        exemplar = outcome.trace.exemplar if outcome.trace is not None else None
        model = OTHER
        if decision:
            model = self.model_label(decision.model)
        pool = self.pool_label(decision.pool) if decision else NONE
        task = estimate.task if estimate else NONE
        self.child(self.requests, model, pool, task, outcome.result).inc()
        self.child(self.request_seconds, model, pool).observe(outcome.ended - outcome.started, exemplar)
        if decision is None:
            return
        self.child(self.decisions, model, pool, decision.reason).inc()
        if outcome.sent_upstream is not None:
            if outcome.attempts == 1:
                # With more, the time before the last attempt is mostly the back ends' own.
                self.overhead.observe(outcome.sent_upstream - outcome.started - outcome.waited)
            if outcome.first_byte is not None:
                self.child(self.ttft, model, pool).observe(outcome.first_byte - outcome.sent_upstream, exemplar)
        if outcome.result is Result.OK:
            self._observe_tokens(outcome, model, pool, exemplar)

    def _observe_tokens(self, outcome: Outcome, model: str, pool: str, exemplar: dict[str, str] | None) -> None:
        usage = outcome.usage
        if usage is None:
            return
        tokens = usage.completion_tokens
        self.child(self.output_tokens, model, pool).inc(tokens)
        if (seconds := tpot_of(outcome)) is not None:
            self.child(self.tpot, model, pool).observe(seconds, exemplar)
        if outcome.estimate and outcome.features:
            predicted = max(outcome.estimate.output_tokens * outcome.features.n, 1.0)
            self.child(self.predicted_ratio, outcome.estimate.task).observe(tokens / predicted)
            self.child(self.language_ratio, outcome.features.language).observe(tokens / predicted)

    def model_label(self, name: str) -> str:
        return name if name in self._models else OTHER

    def pool_label(self, name: str) -> str:
        return name if name in self._pools else OTHER

    def child(self, metric: Any, *labels: str) -> Any:
        """`metric.labels(...)`, which takes a lock and builds a key; kept, since the set of labels is bounded."""
        key = (metric, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child


def tpot_of(outcome: Outcome) -> float | None:
    """Seconds per output token after the first, of a streamed answer; None where it cannot be told.

    A whole (non-stream) answer arrives at once, so its first byte says nothing about the first token.
    """
    usage, features = outcome.usage, outcome.features
    if usage is None or features is None or not features.stream or outcome.first_byte is None:
        return None
    following = usage.completion_tokens // max(features.n, 1) - 1
    return (outcome.ended - outcome.first_byte) / following if following > 0 else None
