"""vLLM's `/metrics`, with its names, labels and buckets, written from the simulated engine's state.

`vllm:spec_decode_*` exist only on a drafting server: clients tell MTP back ends by their presence. Under drafting
`inter_token_latency_seconds` is per engine step, as in vLLM; `request_time_per_output_token_seconds` is per token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.sim.engine import Engine, Event
from gateway.sim.sequence import Sequence as Answered

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
         160.0, 640.0, 2560.0)  # fmt: skip
_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0)  # fmt: skip
_TOKENS = tuple(float(m * 10**e) for e in range(5) for m in (1, 2, 5))
_ITERATION = (1.0, 8.0, *(float(2**e) for e in range(4, 15)))
_N = (1.0, 2.0, 5.0, 10.0, 20.0)

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _TPOT),
    "request_time_per_output_token_seconds": ("Histogram of time_per_output_token_seconds per request.", _TPOT),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LATENCY),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LATENCY),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LATENCY),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LATENCY),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
    "request_max_num_generation_tokens": ("Histogram of maximum number of requested generation tokens.", _TOKENS),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", _TOKENS),
    "request_params_n": ("Histogram of the n request parameter.", _N),
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _ITERATION),
    "request_num_preemptions": ("Histogram of preemptions per request.", _N),
    "request_prefill_kv_computed_tokens": ("Histogram of new KV tokens computed during prefill.", _TOKENS),
}


class Histogram:
    """Counts by bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the text format wants them."""
        total = 0
        out: list[tuple[str, float]] = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            out.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return out


class Metrics(Collector):
    """One server's metrics."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._labels = {"model_name": model_name, "engine": "0"}
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self.rejections = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        self.responses: dict[tuple[str, str, str], int] = {}
        """By handler, method and status class."""
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)

    def count_response(self, handler: str, method: str, status: int) -> None:
        key = (handler, method, f"{status // 100}xx")
        self.responses[key] = self.responses.get(key, 0) + 1

    def observe(self, events: list[Event]) -> None:
        """Takes in one engine step."""
        histograms = self._histograms
        histograms["iteration_tokens_total"].observe(self._engine.last_step_tokens)
        intervals = histograms["inter_token_latency_seconds"]
        for event in events:
            if event.interval is not None:
                intervals.observe(event.interval)
            elif event.sequence.first_token is not None:
                waited = max(0.0, event.sequence.first_token - event.sequence.arrived)
                histograms["time_to_first_token_seconds"].observe(waited)
            if event.sequence.done:
                self._finished(event.sequence)

    def _finished(self, answer: Answered) -> None:
        if answer.scheduled is None or answer.first_token is None or answer.ended is None:
            return
        decode = answer.ended - answer.first_token
        observed = {
            "e2e_request_latency_seconds": answer.ended - answer.arrived,
            "request_queue_time_seconds": max(0.0, answer.scheduled - answer.arrived),
            "request_inference_time_seconds": answer.ended - answer.scheduled,
            "request_prefill_time_seconds": answer.first_token - answer.scheduled,
            "request_decode_time_seconds": decode,
            "request_time_per_output_token_seconds": decode / (answer.generated - 1) if answer.generated > 1 else 0.0,
            "request_prompt_tokens": answer.ask.prompt_tokens,
            "request_generation_tokens": answer.generated,
            "request_max_num_generation_tokens": answer.generated,
            "request_params_n": answer.ask.n,
            "request_num_preemptions": answer.preemptions,
            "request_prefill_kv_computed_tokens": answer.ask.prompt_tokens - answer.cached,
        }
        if answer.ask.max_tokens is not None:
            observed["request_params_max_tokens"] = answer.ask.max_tokens
        for name, value in observed.items():
            self._histograms[name].observe(value)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        yield from self._gauges()
        yield from self._counters()
        if self._engine.settings.k:
            yield from self._spec_decode()
        for name, histogram in self._histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", _HISTOGRAMS[name][0], labels=list(self._labels))
            family.add_metric(list(self._labels.values()), buckets=histogram.buckets(), sum_value=histogram.sum)
            yield family
        http = CounterMetricFamily(
            "http_requests",
            "Total number of requests by method, status and handler.",
            labels=("handler", "method", "status"),
        )
        for key, count in self.responses.items():
            http.add_metric(key, count)
        yield http

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", engine.running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", engine.waiting)
        reasons = {"capacity": engine.waiting, "deferred": 0}
        yield self._gauge("num_requests_waiting_by_reason", "Waiting requests by reason.", reasons, "reason")
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.kv.usage)
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._gauge("engine_sleep_state", "Engine sleep state.", states, "sleep_state")
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig",
            labels=("block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks", "engine"),
        )  # fmt: skip
        caching = str(engine.settings.prefix_caching)
        info.add_metric(("16", "auto", caching, str(engine.kv.total), "0"), 1)
        yield info

    def _counters(self) -> Iterator[Metric]:
        counts, kv = self._engine.counters, self._engine.kv
        yield self._counter("prefix_cache_queries", "Prefix cache queries, in queried tokens.", kv.queries)
        yield self._counter("prefix_cache_hits", "Prefix cache hits, in cached tokens.", kv.hits)
        yield self._counter("external_prefix_cache_queries", "External prefix cache queries, in tokens.", 0)
        yield self._counter("external_prefix_cache_hits", "External prefix cache hits, in tokens.", 0)
        yield self._counter("mm_cache_queries", "Multi-modal cache queries, in items.", 0)
        yield self._counter("mm_cache_hits", "Multi-modal cache hits, in items.", 0)
        yield self._counter("num_preemptions", "Cumulative number of preemptions from the engine.", counts.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", counts.prompt_tokens)
        computed = counts.prompt_tokens - counts.cached_prompt_tokens
        sources = {"local_compute": computed, "local_cache_hit": counts.cached_prompt_tokens, "external_kv_transfer": 0}
        yield self._counter("prompt_tokens_by_source", "Number of prompt tokens by source.", sources, "source")
        yield self._counter("prompt_tokens_cached", "Number of cached prompt tokens.", counts.cached_prompt_tokens)
        yield self._counter("generation_tokens", "Number of generation tokens processed.", counts.generation_tokens)
        finished = {**counts.finished, "error": 0, "repetition": 0}
        yield self._counter("request_success", "Count of successfully processed requests.", finished, "finished_reason")
        # The one family that vLLM labels by reason without an engine.
        rejected = CounterMetricFamily(
            "vllm:admission_rejections", "Requests refused before the engine.", labels=("model_name", "reason")
        )
        for reason, count in self.rejections.items():
            rejected.add_metric((self._labels["model_name"], reason), count)
        yield rejected

    def _spec_decode(self) -> Iterator[Metric]:
        spec = self._engine.counters.spec
        yield self._counter("spec_decode_num_drafts", "Number of spec decoding drafts.", spec.drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Number of draft tokens.", spec.draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", "Number of accepted tokens.", spec.accepted_tokens)
        by_position = {str(position): count for position, count in enumerate(spec.accepted_per_position)}
        yield self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens per draft position.", by_position, "position"
        )

    def _gauge(self, name: str, about: str, value: float | dict[str, int], label: str = "") -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", about, labels=self._names(label))
        return self._filled(family, value)

    def _counter(self, name: str, about: str, value: float | dict[str, int], label: str = "") -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", about, labels=self._names(label))
        return self._filled(family, value)

    def _names(self, label: str) -> Sequence[str]:
        return [*self._labels, label] if label else list(self._labels)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, value: float | dict[str, int]) -> Metric:
        labels = list(self._labels.values())
        if isinstance(value, dict):
            for key, count in value.items():
                family.add_metric([*labels, key], count)
        else:
            family.add_metric(labels, value)
        return family
