"""The gateway's metrics: that plain sums come to what prometheus-client itself counts, and exemplars over workers."""

from __future__ import annotations

import inspect
import random
import re
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.samples import Exemplar

from gateway.api.labels import FALLBACK
from gateway.exposition import WithExemplars, page
from gateway.metrics import RETRY_CLASSES, SECONDS, Metrics
from gateway.tally import Count, Spread, Tallies
from gateway.types import Api, Decision, Estimate, Features, Outcome, Reason, Result, Task, Usage
from gateway.upstream import retry

LABELS = {"trace_id": "ab", "span_id": "cd"}


Key = tuple[str, tuple[tuple[str, str], ...]]


def samples(registry: CollectorRegistry) -> dict[Key, tuple[float, Exemplar | None]]:
    """Every sample's value and exemplar."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): (sample.value, sample.exemplar)
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def ended(result: Result = Result.OK, model: str = "m", pool: str = "p") -> Outcome:
    return Outcome(
        request_id="r",
        result=result,
        status=200,
        started=1.0,
        ended=2.0,
        features=Features(api=Api.CHAT, model=model, stream=True, language="ja"),
        estimate=Estimate(task=Task.CHAT, output_tokens=10.0, p50=10.0, p90=20.0, confidence=0.5, source="x"),
        decision=Decision(model=model, pool=pool, reason=Reason.FASTER),
        usage=Usage(prompt_tokens=3, completion_tokens=11),
        sent_upstream=1.25,
        first_byte=1.5,
        attempts=1,
    )


class TestSums:
    def test_a_spread_comes_to_what_a_histogram_counts(self) -> None:
        """Buckets, count and sum, for amounts within, at, below and above the bounds; and in several settlements."""
        ours, theirs = CollectorRegistry(), CollectorRegistry()
        made = [Histogram("h", "Text.", ("a",), buckets=SECONDS, registry=registry) for registry in (ours, theirs)]
        spread, rng = Spread(made[0], SECONDS, {"a": "b"}), random.Random(3)
        amounts = [*SECONDS, -1.0, 0.0, 1e9, *(rng.expovariate(1.0) for _ in range(500))]
        for number, amount in enumerate(amounts):
            spread.observe(amount)
            made[1].labels("b").observe(amount)
            if number % 100 == 0:
                spread.settle()
        spread.settle()

        told, expected = samples(ours), samples(theirs)
        total = ("h_sum", (("a", "b"),))
        assert told.pop(total)[0] == pytest.approx(expected.pop(total)[0])
        assert told == expected

    def test_an_exemplar_is_in_the_bucket_that_counts_it(self) -> None:
        """With the amount and the time of its request."""
        registry = CollectorRegistry()
        spread = Spread(Histogram("h", "Text.", buckets=SECONDS, registry=registry), SECONDS, {}, wall=lambda: 5.0)
        spread.observe(0.3, LABELS)
        spread.settle()

        found = {key: exemplar for key, (_, exemplar) in samples(registry).items() if exemplar}
        assert found == {("h_bucket", (("le", "0.5"),)): Exemplar(LABELS, 0.3, 5.0)}

    def test_nothing_counted_makes_no_series(self) -> None:
        """Neither before, nor for settling twice."""
        registry = CollectorRegistry()
        count = Count(Counter("c", "Text.", ("a",), registry=registry), ("b",))
        spread = Spread(Histogram("h", "Text.", ("a",), buckets=SECONDS, registry=registry), SECONDS, {"a": "b"})
        for each in (count, spread):
            each.settle()
        assert samples(registry) == {}

        count.value += 2
        count.settle()
        count.settle()
        assert samples(registry) == {("c_total", (("a", "b"),)): (2.0, None)}


class TestMetrics:
    def test_every_end_is_counted_once(self) -> None:
        """Under its model, pool, task and result, and nowhere else."""
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        metrics.allow({"m": ["p", "q"], "n": ["p", "q"]}, {"p", "q"})
        for model, pool, result in product("mn", "pq", Result):
            metrics.observe(ended(result, model, pool))
        metrics.settle()

        told = {key: value for key, (value, _) in samples(registry).items()}
        requests = [value for key, value in told.items() if key[0] == "gateway_requests_total" and value]
        assert requests == [1.0] * (4 * len(Result))
        place = (("model", "m"), ("pool", "q"))
        assert told["gateway_request_seconds_count", place] == len(Result)
        assert told["gateway_output_tokens_total", place] == 11
        assert told["gateway_time_per_output_token_seconds_sum", place] == pytest.approx(0.05)
        assert told["gateway_decisions_total", (*place, ("reason", "faster"))] == len(Result)
        assert told["gateway_predicted_output_ratio_by_language_sum", (("language", "ja"),)] == pytest.approx(4.4)
        assert told["gateway_overhead_seconds_count", ()] == 4 * len(Result)

    def test_a_whole_answer_says_nothing_about_first_tokens(self) -> None:
        """Its first byte comes when its last token is there; an alert on first tokens would ring for long answers."""
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        metrics.allow({"m": ["p"]}, {"p"})
        streamed = ended()
        assert streamed.features is not None
        for outcome in (streamed, replace(streamed, features=replace(streamed.features, stream=False))):
            metrics.observe(outcome)
        metrics.observe(replace(streamed, features=None))
        metrics.settle()

        told = {name: value for (name, labels), (value, _) in samples(registry).items() if "le" not in dict(labels)}
        assert told["gateway_time_to_first_token_seconds_count"] == 1
        assert told["gateway_request_seconds_count"] == 3

    def test_names_that_the_policy_does_not_know_are_other(self) -> None:
        """Also those that a reload took away, and no longer those that it brought."""
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        metrics.observe(ended(model="hostile", pool="made up"))
        metrics.allow({"hostile": ["made up"]}, {"made up"})
        metrics.observe(ended(model="hostile", pool="made up"))
        metrics.observe(replace(ended(Result.REJECTED), decision=None, estimate=None))
        metrics.settle()

        told = [
            tuple(value for _, value in labels)
            for (name, labels), (value, _) in samples(registry).items()
            if name == "gateway_requests_total" and value
        ]
        assert sorted(told) == [
            ("hostile", "ok", "made up", "chat"),
            ("other", "ok", "other", "chat"),
            ("other", "rejected", "none", "none"),
        ]


class TestBeforeTheFirstEvent:
    def test_counters_that_alerts_wait_for_are_there(self) -> None:
        """At 0, for what the policy has and what a reload brings; what was counted stays."""
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        metrics.allow({"m": ["p"]}, ["p"])
        told = {key: value for key, (value, _) in samples(registry).items()}
        assert set(told.values()) == {0.0}
        of_retries = {dict(labels)["class"] for name, labels in told if name == "gateway_retries_total"}
        assert of_retries == set(RETRY_CLASSES)
        place = (("model", "m"), ("pool", "p"))
        assert ("gateway_output_tokens_total", place) in told
        refused = (("model", "m"), ("outcome", "rejected"), ("pool", "none"), ("task", "none"))
        assert ("gateway_requests_total", refused) in told

        metrics.retried("p", "lost")
        metrics.allow({"m": ["p", "q"]}, ["p", "q"])
        told = {key: value for key, (value, _) in samples(registry).items()}
        lost = [told["gateway_retries_total", (("class", "lost"), ("pool", pool))] for pool in "pq"]
        assert lost == [1.0, 0.0]

    def test_a_failure_after_an_answer_is_an_increase(self) -> None:
        """Every outcome and reason beside the first ones of a model and pool; none of tasks that never came."""
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        metrics.allow({"m": ["p"]}, ["p"])
        metrics.observe(ended())
        metrics.settle()

        told = {
            dict(labels)["outcome"]: value
            for (name, labels), (value, _) in samples(registry).items()
            if name == "gateway_requests_total" and dict(labels)["pool"] == "p"
        }
        assert told == {result.value: float(result is Result.OK) for result in Result}
        spilt = (("model", "m"), ("pool", "p"), ("reason", "spill"))
        assert samples(registry)["gateway_decisions_total", spilt][0] == 0.0

    def test_every_class_of_retries_is_known(self) -> None:
        """What the attempt loop can name, in its own words, and the question for a label."""
        named = {
            found
            for function in (retry.class_of, retry.class_of_answer)
            for found in re.findall(r'"([a-z_]+)"', "".join(re.findall(r"return .*", inspect.getsource(function))))
        }
        statuses = {f"status_{status}" for status in retry.RETRY_STATUSES}
        assert {*named, *statuses, FALLBACK} == set(RETRY_CLASSES)


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/plain;version=0.0.4", "text/plain; version=1.0.0", "text/html", "application/json"]
)
def test_the_text_format_is_called_by_the_name_that_every_reader_knows(accept: str) -> None:
    """METRIC-05: readers of the Go library take no text but version 0.0.4's; vLLM's page is called that too."""
    registry = CollectorRegistry()
    Counter("vllm:x", "Text.", registry=registry).inc()

    body, kind = page(registry, (), accept, ())

    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert b"vllm:x_total 1.0\n" in body


def test_sums_over_workers_carry_the_exemplars_of_the_one_that_answers() -> None:
    """In the bucket that counts them, and in no other family's."""
    name = "gateway_time_to_first_token_seconds"
    tallies, metric = Tallies(), Histogram(name, "Text.", ("model", "pool"), buckets=SECONDS, registry=None)
    tallies.add(metric, name, SECONDS, ("model", "pool"))
    tallies.spread(metric, ("m", "p")).observe(0.3, LABELS)

    class Sums:
        def collect(self) -> list[HistogramMetricFamily]:
            buckets = [(str(bound), 2.0) for bound in (0.25, 0.5)] + [("+Inf", 3.0)]
            families = [HistogramMetricFamily(one, "Text.", labels=("model", "pool")) for one in (name, "other")]
            for family in families:
                family.add_metric(("m", "p"), buckets, 1.0)
            return families

    found = [
        (sample.name, sample.labels["le"], sample.exemplar.value)
        for family in WithExemplars(Sums(), tallies.exemplars()).collect()
        for sample in family.samples
        if sample.exemplar
    ]
    assert found == [("gateway_time_to_first_token_seconds_bucket", "0.5", 0.3)]
