"""The families that telemetry adds to the gateway's `/metrics`."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from gateway.telemetry.export import TelemetryCollector
from tests.telemetry.helpers import Rig, drafting, engine, pool, rig

A, B = "http://a", "http://b"


def _exported(r: Rig) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    registry = CollectorRegistry()
    registry.register(TelemetryCollector(r.view, r.checklist, r.clock))
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_no_name_clashes_with_the_gateways_own() -> None:
    """METRIC-05: all families fit into the gateway's one registry, and a clash is refused when it is made."""
    r = rig(pool("mtp", A, k=2))
    registry = CollectorRegistry()
    Metrics(registry)
    registry.register(TelemetryCollector(r.view, r.checklist, r.clock))
    names = [line.split()[2] for line in generate_latest(registry).decode().splitlines() if line.startswith("# TYPE")]

    assert len(names) == len(set(names))
    with pytest.raises(ValueError, match="Duplicated"):
        Counter("gateway_telemetry_errors", "Twice.", registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(TelemetryCollector(r.view, r.checklist, r.clock))


def test_the_figures_of_the_checklist() -> None:
    """Acceptance, length, positions and state per pool and model; the gain only once there is one."""
    r = rig(pool("plain", B), pool("mtp", A, k=2))
    r.page(A, drafting(0, 0.0, 0.0))
    r.clock.now += 1.0
    r.page(A, drafting(1000, 0.5, 0.3))
    before = _exported(r)
    for _ in range(30):
        r.checklist.observe_tpot("plain", "e4b", 100, 1, 0.010)
        r.checklist.observe_tpot("mtp", "e4b", 100, 1, 0.008)
    after = _exported(r)
    labels = (("model", "e4b"), ("pool", "mtp"))

    assert before["gateway_mtp_acceptance_rate"] == {labels: 0.4}
    assert before["gateway_mtp_mean_acceptance_length"] == {labels: 1.8}
    assert before["gateway_mtp_position_acceptance_rate"] == {
        (*labels, ("position", "0")): 0.5,
        (*labels, ("position", "1")): 0.3,
    }
    assert sum(before["gateway_mtp_state"].values()) == 1
    assert before["gateway_mtp_state"][(*labels, ("state", "healthy"))] == 1
    assert "gateway_mtp_tpot_improvement_ratio" not in before
    assert after["gateway_mtp_tpot_improvement_ratio"][labels] == pytest.approx(0.2)


def test_the_back_ends_counters_are_summed_by_served_model() -> None:
    """`vllm bench serve` sums every `vllm:spec_decode*_total` line before and after, and finds the fleet's figures."""
    r = rig(pool("mtp", A, B, k=2))
    r.page(A, drafting(100, 0.5, 0.25))
    r.page(B, drafting(300, 0.5, 0.25))
    first = _exported(r)
    r.page(A, drafting(10, 0.5, 0.25))
    second = _exported(r)
    model = (("model_name", "e4b"),)

    assert first["vllm:spec_decode_num_drafts_total"] == {model: 400}
    assert first["vllm:spec_decode_num_draft_tokens_total"] == {model: 800}
    assert first["vllm:spec_decode_num_accepted_tokens_total"] == {model: 300}
    assert first["vllm:spec_decode_num_accepted_tokens_per_pos_total"] == {
        (*model, ("position", "0")): 200,
        (*model, ("position", "1")): 100,
    }
    assert second["vllm:spec_decode_num_drafts_total"] == {model: 410}


def test_without_a_drafting_back_end_there_are_no_such_lines() -> None:
    """The benchmark skips its section where no line of that kind is there."""
    r = rig(pool("plain", A))
    r.page(A, engine(num_requests_running=1.0))

    assert not any(name.startswith("vllm:") for name in _exported(r))


def test_age_errors_restarts_and_mismatch_per_endpoint() -> None:
    """Telemetry's own health is visible, and goes with its endpoint."""
    r = rig(pool("plain", A), pool("mtp", B, k=2))
    r.page(A, drafting(5, 0.5))
    r.page(A, drafting(1, 0.5))
    r.view.endpoints()[B].fail("timeout")
    r.clock.now += 4.0
    found = _exported(r)
    del r.pools.pools[0]
    r.view.match()

    assert found["gateway_telemetry_age_seconds"] == {(("endpoint", A),): 4.0}
    assert found["gateway_telemetry_errors_total"] == {(("endpoint", A),): 0, (("endpoint", B),): 1}
    assert found["gateway_backend_restarts_total"][(("endpoint", A),)] == 1
    assert found["gateway_mtp_policy_mismatch"] == {(("endpoint", A), ("pool", "plain")): 1}
    assert "gateway_telemetry_age_seconds" not in _exported(r)
