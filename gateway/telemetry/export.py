"""Prometheus families of the telemetry, built from the live records at each collection.

Besides the MTP checklist this re-exports the back ends' speculative-decoding counters under vLLM's own names, summed
per served model over endpoints and engines, and never falling. A benchmark that reads `/metrics` before and after its
run and sums all label sets (`vllm bench serve`) can therefore point at the gateway. The gauges of a removed pool or
endpoint disappear with it. Every worker scrapes every endpoint, so these families must not be summed over workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.telemetry.checklist import MtpChecklist, MtpReport
from gateway.telemetry.mtp import MtpState
from gateway.telemetry.slices import SliceReport
from gateway.telemetry.view import TelemetryView
from gateway.telemetry.vllm import MAX_POSITIONS, position

_POOL = ("pool", "model")


class TelemetryCollector(Collector):
    """Register it in the gateway's registry: `registry.register(TelemetryCollector(view, checklist, clock))`."""

    def __init__(
        self,
        view: TelemetryView,
        checklist: MtpChecklist,
        clock: Callable[[], float],
        slices: Callable[[], Iterable[SliceReport]] = tuple,
    ) -> None:
        self._view = view
        self._checklist = checklist
        self._clock = clock
        self._slices = slices

    def describe(self) -> Iterator[Metric]:
        """The families without samples, which the registry checks for name clashes at registration."""
        yield from (*_mtp_families(), _slice_family(), *_endpoint_families(), *_spec_families())

    def collect(self) -> Iterator[Metric]:
        """All families with their samples."""
        yield from self._mtp()
        yield self._interference()
        yield from self._endpoints()
        yield from self._spec_decode()

    def _mtp(self) -> Iterator[Metric]:
        families = _mtp_families()
        for report in self._checklist.reports(by_load=False):
            _add_report(families, report)
        for found in self._view.disagreements():
            families[-1].add_metric((found.pool, found.url), 1)
        yield from families

    def _interference(self) -> Metric:
        family = _slice_family()
        for found in self._slices():
            (first, seat, factor), (second, other, back) = found.rows()
            family.add_metric((seat.pool, first, second), factor)
            family.add_metric((other.pool, second, first), back)
        return family

    def _endpoints(self) -> Iterator[Metric]:
        age, errors, restarts = families = _endpoint_families()
        now = self._clock()
        for url, endpoint in self._view.endpoints().items():
            if endpoint.snapshot:
                age.add_metric((url,), now - endpoint.snapshot.at)
            errors.add_metric((url,), endpoint.errors)
            restarts.add_metric((url,), endpoint.track.restarts)
        yield from families

    def _spec_decode(self) -> Iterator[Metric]:
        totals = self._view.spec_totals()
        if not totals:
            return
        drafts, draft_tokens, accepted, by_position = families = _spec_families()
        for model, counts in totals.items():
            drafts.add_metric((model,), counts.get("drafts", 0.0))
            draft_tokens.add_metric((model,), counts.get("draft_tokens", 0.0))
            accepted.add_metric((model,), counts.get("accepted_tokens", 0.0))
            for index in range(MAX_POSITIONS):
                if (count := counts.get(position(index))) is not None:
                    by_position.add_metric((model, str(index)), count)
        yield from families


def _add_report(families: list[GaugeMetricFamily], report: MtpReport) -> None:
    rate, length, by_position, improvement, state, _ = families
    labels = report.pool, report.model
    if found := report.acceptance:
        rate.add_metric(labels, found.rate)
        length.add_metric(labels, found.mean_length)
        for index, value in enumerate(found.positions):
            by_position.add_metric((*labels, str(index)), value)
    if report.gain:
        improvement.add_metric(labels, report.gain.gain)
    for each in MtpState:
        state.add_metric((*labels, each.value), each is report.state)


def _mtp_families() -> list[GaugeMetricFamily]:
    def gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"gateway_mtp_{name}", about, labels=labels)

    return [
        gauge("acceptance_rate", "Accepted over drafted tokens within the policy's window.", *_POOL),
        gauge("mean_acceptance_length", "Tokens per verify step, the target's own included.", *_POOL),
        gauge("position_acceptance_rate", "Share of steps that accept a draft position.", *_POOL, "position"),
        gauge(
            "tpot_improvement_ratio",
            "Share of the plain pool's time per output token that drafting saves at the present load, at equal length.",
            *_POOL,
        ),
        gauge("state", "1 for the present health state of a pool's drafting.", *_POOL, "state"),
        gauge("policy_mismatch", "1 where an engine drafts otherwise than the policy says.", "pool", "endpoint"),
    ]


def _slice_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "gateway_interference_ratio",
        "Step time of an engine while another one is busy over that while it is idle, of pairs that slow each other.",
        labels=("pool", "endpoint", "other"),
    )


def _endpoint_families() -> tuple[GaugeMetricFamily, CounterMetricFamily, CounterMetricFamily]:
    labels = ("endpoint",)
    return (
        GaugeMetricFamily("gateway_telemetry_age_seconds", "Age of the last page of metrics read.", labels=labels),
        CounterMetricFamily("gateway_telemetry_errors", "Pages of metrics that could not be read.", labels=labels),
        CounterMetricFamily("gateway_backend_restarts", "Engine restarts seen by falling counters.", labels=labels),
    )


def _spec_families() -> tuple[CounterMetricFamily, ...]:
    def counter(name: str, about: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"vllm:spec_decode_num_{name}", about, labels=("model_name", *labels))

    return (
        counter("drafts", "Drafts, summed over back ends."),
        counter("draft_tokens", "Drafted tokens, summed over back ends."),
        counter("accepted_tokens", "Accepted drafted tokens, summed over back ends."),
        counter("accepted_tokens_per_pos", "Accepted tokens by draft position, summed over back ends.", "position"),
    )
