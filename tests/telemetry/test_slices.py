"""What operators are told of engines that slow each other."""

from __future__ import annotations

from random import Random

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.policy.load import parse_policy
from gateway.routing.state import RoutingState
from gateway.simulate.world import no_connector
from gateway.telemetry.advice import Code, Severity
from gateway.telemetry.neighbours import Slowing
from gateway.telemetry.slices import Seat, slice_report
from gateway.telemetry.vllm import PageReader
from gateway.upstream.pools import Pools
from gateway.watch import Watch
from tests.telemetry.helpers import Clock, engine

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
FOUND = Slowing(A, B, 1.9, 2.1, 80.0, 100.0)


@pytest.mark.parametrize(
    ("first", "second", "cap", "severity", "words"),
    [
        (None, None, 0, Severity.WARNING, "share a GPU: declare them as one `slice`"),
        ("g0", None, 0, Severity.WARNING, "share a GPU: declare them as one `slice`"),
        ("g0", "g1", 8, Severity.WARNING, "in slices of their own (g0, g1)"),
        ("g0", "g0", 0, Severity.INFO, "no cap: set `slices: {g0: {in_flight: N}}`"),
        ("g0", "g0", 8, None, ""),
    ],
)
def test_advice_is_what_is_left_to_do(
    first: str | None, second: str | None, cap: int, severity: Severity | None, words: str
) -> None:  # fmt: skip
    """Undeclared: declare them; declared: cap them; both done: nothing. The figures are told in any case."""
    row = slice_report(FOUND, {A: Seat("plain", first, cap), B: Seat("mtp", second, cap)}, 160.0)
    assert row is not None

    assert (row.advice.severity if row.advice else None) is severity
    assert row.advice is None or (row.advice.code is Code.SHARED and words in row.advice.message)
    assert row.as_dict()["seconds"] == 60.0
    assert [url for url, _, _ in row.rows()] == [A, B]


def test_a_pair_without_a_pool_is_not_told() -> None:
    """A reload may have removed one of them a moment ago."""
    assert slice_report(FOUND, {A: Seat("plain", None, 0)}, 160.0) is None


@pytest.mark.parametrize("slowed", [1.0, 1.6])
def test_from_pages_to_the_metric(slowed: float) -> None:
    """Two engines' counters, page by page: what slows each other is advice and a metric, what does not is neither."""
    clock, rng, reader = Clock(), Random(3), PageReader()
    policy = parse_policy(
        f'version: 1\npools: {{one: {{endpoints: ["{A}"]}}, two: {{endpoints: ["{B}"]}}}}\n'
        "models: {e4b: {pools: [one, two]}}",
        "p",
        {},
    )
    pools = Pools(lambda *_: no_connector(), rng, clock)
    pools.apply(policy)
    watch = Watch(pools, policy.models.values, lambda: policy.mtp, RoutingState(clock, rng).curves, clock)
    watch.tick()
    loads, seconds, steps = {A: 4.0, B: 4.0}, {A: 0.0, B: 0.0}, {A: 0.0, B: 0.0}
    for _ in range(400):
        clock.now += 1.0
        loads = {url: rng.choice((0.0, 4.0)) if rng.random() < 0.2 else load for url, load in loads.items()}
        for url, other in ((A, B), (B, A)):
            step = 0.01 * (slowed if loads[other] else 1.0) * rng.uniform(0.98, 1.02)
            seconds[url] += loads[url]
            steps[url] += loads[url] / step
            page = engine(
                num_requests_running=loads[url],
                inter_token_latency_seconds_sum=seconds[url],
                inter_token_latency_seconds_count=steps[url],
            )
            watch.view.accept(url, reader.read(page.encode(), clock()), 0)
        watch.tick()
    registry = CollectorRegistry()
    registry.register(watch.collector())
    metrics = generate_latest(registry).decode()

    if slowed == 1.0:
        assert watch.slices() == []
        assert "gateway_interference_ratio{" not in metrics
    else:
        (row,) = watch.slices()
        assert row.advice is not None
        assert row.slowing.first_factor == pytest.approx(slowed, rel=0.1)
        assert f'gateway_interference_ratio{{endpoint="{A}",other="{B}",pool="one"}} 1.' in metrics
