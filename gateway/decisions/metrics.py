"""Metrics of decisions after the fact: what choices won and lost, and what the shadow policy would change."""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import Counter, Gauge, Summary

from gateway.decisions.counterfactual import Verdict
from gateway.metrics import Metrics
from gateway.types import Outcome, Result
from gateway.words import NONE, OTHER


class DecisionMetrics:
    """Counters in the gateway's registry. Labels as everywhere: of the policies, else `other`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=metrics.registry)

        # Against the other pool at the decision's load: not a gain over a fleet of one kind, which would be loaded
        # otherwise.
        self._saved = counter(
            "gateway_routing_saved_seconds",
            "Time by which chosen pools were faster than the best other pool of this fleet for the same request.",
            "model",
            "reason",
        )
        self._lost = counter(
            "gateway_routing_lost_seconds",
            "Time by which the best other pool of this fleet would have been faster for the same request.",
            "model",
            "reason",
        )

    def regretted(self, outcome: Outcome, regret: float | None, stands_for: int = 1) -> None:
        """Counts what a choice won or lost, in seconds, for so many requests; see `routing.regret`."""
        decision = outcome.decision
        if regret is not None and decision is not None:
            counter = self._lost if regret > 0.0 else self._saved
            model = self._metrics.model_label(decision.model)
            self._metrics.count(counter, model, decision.reason).value += abs(regret) * stands_for


class ShadowMetrics:
    """Counters of the shadow policy; there are none without one."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pools: Collection[str] = ()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=metrics.registry)

        self._requests = counter("gateway_shadow_requests", "Requests that the shadow policy decided too.", "model")
        self._flips = counter("gateway_shadow_flips", "Those it would send elsewhere.", "model", "from", "to")
        self._saved = counter("gateway_shadow_saved_seconds", "Time that its flips would save.", "model")
        self._lost = counter("gateway_shadow_lost_seconds", "Time that its flips would cost.", "model")

    def allow(self, pools: Collection[str]) -> None:
        """The pools of the shadow policy."""
        self._pools = pools

    def shadowed(self, verdict: Verdict) -> None:
        """Counts one decision of the shadow policy."""
        model = self._metrics.model_label(verdict.model)
        self._requests.labels(model).inc()
        if not verdict.flips:
            return
        after = NONE if verdict.after is None else verdict.after if verdict.after in self._pools else OTHER
        self._flips.labels(model, self._metrics.pool_label(verdict.before), after).inc()
        gain = verdict.gain or 0.0
        (self._saved if gain >= 0.0 else self._lost).labels(model).inc(abs(gain))


class CanaryMetrics:
    """The canary policy beside the live one (`policy` is `live` or `canary`); there are none without one."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        registry = metrics.registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def summary(name: str, text: str) -> Summary:
            return Summary(name, text, ("policy",), registry=registry)

        self._requests = counter("gateway_canary_requests", "Routed requests, by who decided.", "policy", "outcome")
        self._seconds = summary("gateway_canary_request_seconds", "From arrival to the last byte, of whole answers.")
        self._regret = summary("gateway_canary_regret_seconds", "Time lost where another pool would have been faster.")
        self._flips = counter(
            "gateway_canary_flips", "The canary's requests that live would send elsewhere.", "model", "from", "to"
        )
        self._saved = counter("gateway_canary_saved_seconds", "Time that those flips saved.", "model")
        self._lost = counter("gateway_canary_lost_seconds", "Time that those flips cost.", "model")
        self.share = Gauge(
            "gateway_canary_share", "Share that the canary has now.", registry=registry, multiprocess_mode="livemax"
        )
        for policy in ("live", "canary"):
            self._requests.labels(policy, Result.OK.value)

    def counted(self, outcome: Outcome, regret: float | None) -> None:
        """Counts a routed request under the policy that decided it."""
        policy = "live" if outcome.canary is None else "canary"
        self._requests.labels(policy, outcome.result.value).inc()
        if outcome.result is Result.OK:
            self._seconds.labels(policy).observe(outcome.ended - outcome.started)
        if regret is not None:
            self._regret.labels(policy).observe(max(regret, 0.0))

    def judged(self, verdict: Verdict) -> None:
        """Counts what the live policy would have done with a request of the canary's."""
        if not verdict.flips:
            return
        model = self._metrics.model_label(verdict.model)
        live = NONE if verdict.after is None else self._metrics.pool_label(verdict.after)
        self._flips.labels(model, live, self._metrics.pool_label(verdict.before)).inc()
        # The verdict's gain is the live policy's.
        gain = -(verdict.gain or 0.0)
        (self._saved if gain >= 0.0 else self._lost).labels(model).inc(abs(gain))
