"""Every Prometheus metric of the gateway, in one table, in a registry of its own.

Labels take values from the policy and from our own enums only; anything else is `other`, so that no client can make
series. What requests add to is found by one look-up per request and counted in plain numbers, see `gateway.tally`.
Whoever shows the registry calls `settle` before; with several workers each does so after every few requests besides,
since another one may show what it counts.

A counter's series that an alert may wait for is there at 0 before its first event, since `rate` sees no increase in a
series that begins at 1: what the policy bounds to a few (`allow`); and every outcome and reason of a model and pool
beside the first that they have, so that what a policy has and nobody uses makes no pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.samples import Exemplar

from gateway.tally import Count, Series, Spread, Tallies
from gateway.types import Outcome, Reason, Result
from gateway.words import NONE, OK, OTHER

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0)
LONG_SECONDS = (*SECONDS, 120.0, 300.0, 600.0, 1800.0)
TPOT_SECONDS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2)
OVERHEAD_SECONDS = (0.0001, 0.0002, 0.0004, 0.0008, 0.0015, 0.003, 0.006, 0.0125, 0.025, 0.05, 0.1, 0.5)
RETRY_CLASSES = (
    *("connect", "connections", "lost", "moved", "hung", "overdue", "late"),
    *("status_502", "status_503", "error_event", "no_answer", "decisions"),
)
"""Of attempts that are followed by another, see `upstream.retry`; the last is `api.labels`' own."""
GUIDED_ACTIONS = ("translate", "refuse", "pass")
OPINIONS = ("answered", "failed")
RATIOS = (0.1, 0.25, 0.5, 0.71, 0.83, 1.0, 1.2, 1.41, 2.0, 4.0, 10.0)


@dataclass(slots=True)
class _Alike:
    """What requests add to that are alike in model, pool, reason, task and result."""

    requests: Count
    seconds: Spread
    decisions: Count
    ttft: Spread
    tpot: Spread
    output_tokens: Count


class Metrics:
    """The gateway's metrics. `observe` takes an `Outcome`; gauges are set by whoever owns the fact."""

    shown_endpoints: set[tuple[str, str]]
    """Pool and URL of every endpoint that has gauges."""
    shown_pools: set[str]
    """Every pool that has gauges."""
    shown_sources: set[str]
    """Pools whose gauges of discovery are not at rest."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._models: Collection[str] = ()
        self._pools: Collection[str] = ()
        self._children: dict[tuple[object, ...], Any] = {}
        self._tallies = Tallies()
        self._alike: dict[tuple[str | None, ...], _Alike] = {}
        self._ratios: dict[tuple[str, str], tuple[Spread, Spread]] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            made = Histogram(name, text, labels, buckets=buckets, registry=registry)
            self._tallies.add(made, name, buckets, labels)
            return made

        place = ("model", "pool")
        self.requests = counter("gateway_requests", "Requests by how they ended.", "model", "pool", "task", "outcome")
        self.request_seconds = histogram(
            "gateway_request_seconds", "From the request's arrival to the answer's last byte.", LONG_SECONDS, *place
        )
        self.ttft = histogram(
            "gateway_time_to_first_token_seconds", "From sending to the first body byte of a stream.", SECONDS, *place
        )
        self.tpot = histogram(
            "gateway_time_per_output_token_seconds",
            "Time after the first token by the tokens after it.",
            TPOT_SECONDS,
            *place,
        )
        self.overhead = histogram(
            "gateway_overhead_seconds",
            "Time spent in the gateway before the request went upstream, waiting in a queue not counted.",
            OVERHEAD_SECONDS,
        )
        self._overhead = self._tallies.spread(self.overhead, ())
        self.output_tokens = counter("gateway_output_tokens", "Output tokens, as back ends reported.", "model", "pool")
        self.decisions = counter("gateway_decisions", "Routing decisions.", "model", "pool", "reason")
        self.predicted_ratio = histogram(
            "gateway_predicted_output_ratio", "Actual output tokens over predicted.", RATIOS, "task"
        )
        self.language_ratio = histogram(
            "gateway_predicted_output_ratio_by_language", "Actual output tokens over predicted.", RATIOS, "language"
        )
        self.retries = counter("gateway_retries", "Attempts that were followed by another.", "pool", "class")
        self.legacy_guided = counter("gateway_legacy_guided", "Requests with a guided_* field.", "action")
        self.opinions = counter("gateway_second_opinions", "Second opinions that were asked for.", "result")
        self.policy_reloads = counter("gateway_policy_reload", "Policy reloads.", "result")
        self.shown_endpoints, self.shown_pools, self.shown_sources = set(), set(), set()
        for result in ("ok", "failed"):
            self.policy_reloads.labels(result)
        for action in GUIDED_ACTIONS:
            self.legacy_guided.labels(action)
        for result in OPINIONS:
            self.opinions.labels(result)
        self._add_gauges()

    def _add_gauges(self) -> None:
        def gauge(name: str, text: str, over_workers: Literal["livesum", "livemin", "livemax"], *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=over_workers)

        self.in_flight = gauge("gateway_in_flight", "Requests running now.", "livesum", "pool", "endpoint")
        self.endpoint_up = gauge("gateway_endpoint_up", "1 if it can take requests.", "livemin", "pool", "endpoint")
        self.discovered = gauge("gateway_discovered_endpoints", "Endpoints found by discovery.", "livemax", "pool")
        self.discovery_failing = gauge("gateway_discovery_failing", "Sources that find nothing.", "livemax", "pool")
        self.waiting = gauge("gateway_waiting", "Requests waiting for a place.", "livesum", "pool")
        self.held = gauge("gateway_prefill_waiting", "Requests held until an engine gets to them.", "livesum", "pool")
        self.in_flight_limit = gauge("gateway_in_flight_limit", "Most requests in a pool; 0: any.", "livesum", "pool")
        self.state_connected = gauge("gateway_state_connected", "1 if shared state is reached.", "livemin", "home")
        self.policy_version = gauge("gateway_policy_version", "Policies this process has had live.", "livemax")

    def allow(self, models: Mapping[str, Collection[str]], pools: Collection[str]) -> None:
        """The label values that the live policy knows, its models each with its pools; all others become `other`."""
        self._models, self._pools = models, pools
        self._alike.clear()
        for pool in pools:
            for error_class in RETRY_CLASSES:
                self.child(self.retries, pool, error_class)
        for model, served_by in models.items():
            # Those that no pool was chosen for: refused by a limit, turned away at the door.
            self._outcomes(model, NONE, NONE)
            for pool in served_by:
                self.output_tokens.labels(model, pool)

    def retried(self, pool: str, error_class: str) -> None:
        self.child(self.retries, self.pool_label(pool), error_class).inc()

    def guided(self, action: str) -> None:
        self.child(self.legacy_guided, action).inc()

    def opinion(self, *, answered: bool) -> None:
        self.child(self.opinions, OPINIONS[0] if answered else OPINIONS[1]).inc()

    def observe(self, outcome: Outcome) -> None:
        """Counts one finished request. Our enums' members are strings and serve as labels: `.value` is slow."""
        decision, estimate, trace = outcome.decision, outcome.estimate, outcome.trace
        task = estimate.task if estimate else NONE
        key: tuple[str | None, ...] = (outcome.model, None, None, task, outcome.result)
        if decision is not None:
            key = decision.model, decision.pool, decision.reason, task, outcome.result
        alike = self._alike.get(key) or self._find(key)
        exemplar = trace.exemplar if trace is not None else None
        started, sent, first = outcome.started, outcome.sent_upstream, outcome.first_byte
        alike.requests.value += 1
        alike.seconds.observe(outcome.ended - started, exemplar)
        if decision is None:
            return
        alike.decisions.value += 1
        if sent is not None:
            if outcome.attempts == 1:
                # With more, the time before the last attempt is mostly the back ends' own.
                self._overhead.observe(sent - started - outcome.waited)
            if first is not None and outcome.features is not None and outcome.features.stream:
                # A whole answer's first byte comes with its last token.
                alike.ttft.observe(first - sent, exemplar)
        if outcome.result is OK and outcome.usage is not None:
            self._observe_tokens(outcome, alike, outcome.usage.completion_tokens, exemplar)

    def _observe_tokens(self, outcome: Outcome, alike: _Alike, tokens: int, exemplar: dict[str, str] | None) -> None:
        alike.output_tokens.value += tokens
        if (seconds := tpot_of(outcome)) is not None:
            alike.tpot.observe(seconds, exemplar)
        estimate, features = outcome.estimate, outcome.features
        if estimate and features:
            key = estimate.task, features.language
            by_task, by_language = self._ratios.get(key) or self._find_ratios(key)
            ratio = tokens / max(estimate.output_tokens * features.n, 1.0)
            by_task.observe(ratio)
            by_language.observe(ratio)

    def _find(self, key: tuple[str | None, ...]) -> _Alike:
        model, pool, reason, task, result = key
        spread = self._tallies.spread
        place = (
            OTHER if model is None else self.model_label(model),
            NONE if pool is None else self.pool_label(pool),
        )
        self._outcomes(*place, task or NONE)
        if pool is not None:
            for each in Reason:
                self.decisions.labels(*place, each)
        found = self._alike[key] = _Alike(
            requests=self.count(self.requests, *place, task or NONE, result or NONE),
            seconds=spread(self.request_seconds, place),
            decisions=self.count(self.decisions, *place, reason or NONE),
            ttft=spread(self.ttft, place),
            tpot=spread(self.tpot, place),
            output_tokens=self.count(self.output_tokens, *place),
        )
        return found

    def _outcomes(self, model: str, pool: str, task: str) -> None:
        """All ends that such requests can have, at 0 where none had it yet."""
        for result in Result:
            self.requests.labels(model, pool, task, result)

    def _find_ratios(self, key: tuple[str, str]) -> tuple[Spread, Spread]:
        task, language = key
        found = self._ratios[key] = (
            self._tallies.spread(self.predicted_ratio, (task,)),
            self._tallies.spread(self.language_ratio, (language,)),
        )
        return found

    def count(self, metric: Counter, *labels: str) -> Count:
        """The series of a counter to add to."""
        return self._tallies.count(metric, labels)

    def settle(self) -> None:
        """Puts what was counted into the registry. In the thread that counts."""
        self._tallies.settle()

    def exemplars(self) -> Mapping[Series, Exemplar]:
        """This process's, by histogram and bucket."""
        return self._tallies.exemplars()

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
