"""`gateway bench breakeven`: crossovers, the fit of the step-time model, the profile that a policy takes at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.bench.breakeven_report import crossover
from gateway.bench.fit import Point, falling, fit_decode, fit_prefill, least_squares, profile_text
from gateway.bench.probes import Cell
from gateway.bench.rows import Row
from gateway.bench.stall import JOINS
from gateway.cli import run
from gateway.policy.load import load_policy
from gateway.profiles import get_profile, parse_catalog
from gateway.routing.router import Router
from gateway.types import Api, Estimate, Features, Hints, PoolLoad, Task
from tests.bench.engines import engines, undisturbed_command

POLICY = """
version: 1
pools:
  plain: {endpoints: ["http://127.0.0.1:1"], profile: mine.yaml}
  mtp: {endpoints: ["http://127.0.0.1:2"], speculative: {method: mtp, tokens: 2}, profile: mine.yaml}
models: {gemma-4-e4b: {pools: [plain, mtp]}}
routing: {objective: expected_time, exploration: 0}
"""


class Idle:
    def load(self, pool: str) -> PoolLoad:
        return PoolLoad(up=1)


def pool_for(router: Router, tokens: float) -> str:
    """Where an idle fleet sends an answer of so many tokens."""
    model = router.policy.models["gemma-4-e4b"]
    features = Features(model="gemma-4-e4b", api=Api.CHAT, input_tokens=200)
    estimate = Estimate(task=Task.CHAT, output_tokens=tokens, p50=tokens, p90=tokens, confidence=1.0, source="hint")
    facts = router.facts(model, features, estimate)
    return router.route(model, features, estimate, Idle(), facts, Hints()).pool


def stall_of(report: dict[str, Any]) -> float:
    """Milliseconds, of the profile that was written."""
    return float(report["profile"]["hardware"]["measured"]["models"]["e4b"]["prefill"]["stall"])


def test_what_it_measures_becomes_a_profile_that_routes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The written file stands in a policy, which by its times sends long answers to MTP."""
    out = tmp_path / "mine.yaml"
    with engines(0, 2) as (plain, mtp):
        report = undisturbed_command(
            capsys,
            lambda report: report["fit"]["worst"] < 0.25 and stall_of(report) > 0,
            *("breakeven", "--plain", plain, "--mtp", mtp, "--lengths", "1,16,96", "--concurrency", "1,3"),
            *("--runs", "1", "--prompt", "64", "--temperature", "0.7", "--profile", str(out)),
        )
    (tmp_path / "policy.yaml").write_text(POLICY, "utf-8")

    assert report["k"] == 2
    assert {(cell["concurrency"], cell["tokens"]) for cell in report["cells"]} == {
        (c, n) for c in (1, 3) for n in (1, 16, 96)
    }
    assert set(report["crossovers"]) == {"1", "3"}
    assert report["fit"]["worst"] < 0.25
    assert (
        report["acceptance"]["code"]["mean_acceptance_length"] > report["acceptance"]["prose"]["mean_acceptance_length"]
    )
    assert "SIMULATED" in out.read_text("utf-8")
    assert "temperature 0.7" in " ".join(out.read_text("utf-8").split())
    assert "joining prompt stalls running answers" in " ".join(out.read_text("utf-8").split())
    assert report["stalls"]["plain"]["joins"] == report["stalls"]["mtp"]["joins"] == JOINS
    assert stall_of(report) > 0
    router = Router(load_policy(tmp_path / "policy.yaml", {}))
    assert {curve.profile.hardware for curve in router.state.curves} == {"measured"}
    assert pool_for(router, 600.0) == "mtp"


def test_a_profile_must_be_named_as_policies_know_files(capsys: pytest.CaptureFixture[str]) -> None:
    """A name without .yaml would be taken for built-in hardware."""
    assert run(["bench", "breakeven", "--plain", "http://a", "--mtp", "http://b", "--profile", "mine"]) == 2
    assert "must end in .yaml" in capsys.readouterr().err


def test_least_squares_solves_what_has_a_solution() -> None:
    """y = 2 + 3x, exactly."""
    assert least_squares([[1.0, x] for x in (0.0, 1.0, 4.0)], [2.0, 5.0, 14.0]) == pytest.approx([2.0, 3.0])


@pytest.mark.parametrize(("hardware", "model"), [("h200", "e4b"), ("h200", "26b-a4b"), ("g4-slice", "e4b")])
def test_the_fit_meets_the_model_that_made_the_points(hardware: str, model: str) -> None:
    """Steps made by a known profile are met within 3 %, dense and MoE, and so are batches between those measured."""
    truth = get_profile(hardware, model)
    points = [
        Point(k, float(batch), context, truth.step_seconds(batch, k, context))
        for k in (0, 2)
        for batch in (1, 2, 4, 8, 16, 32)
        for context in (288.0, 320.0, 384.0, 512.0)
    ]
    fitted = fit_decode(points, truth)
    text = profile_text(
        "ours", model, "invented", fitted.decode, truth.prefill, truth.attention,
        {name: [0.5, 0.2] for name in ("prose", "math", "code", "json")},
    )  # fmt: skip
    found = parse_catalog(text).get("ours", model)

    assert fitted.worst < 0.03
    for batch in (3, 12, 24):
        for k in (0, 2):
            assert found.step_seconds(batch, k, 400) == pytest.approx(truth.step_seconds(batch, k, 400), rel=0.04)


def test_a_fit_of_one_batch_leaves_out_what_it_cannot_tell() -> None:
    """One stream says nothing about a batch's cost; no term is negative."""
    truth = get_profile("h200", "e4b")
    points = [Point(k, 1.0, c, truth.step_seconds(1, k, c)) for k in (0, 2) for c in (300.0, 400.0)]
    decode = fit_decode(points, truth).decode

    assert decode.token == 0
    assert min(decode.base, decode.position, decode.context) >= 0


def test_prefill_and_stalls_come_back() -> None:
    """Fixed costs, the rate and the stall of either side from the times that they make."""
    truth = get_profile("g4-slice", "e4b")
    probes = [(k > 0, float(n), truth.prefill_seconds(n, k)) for k in (0, 2) for n in (64, 512, 2048)]
    stalls = {k > 0: truth.prefill_stall_seconds(256, k) for k in (0, 2)}
    found = fit_prefill(probes, stalls)

    assert found.fixed == pytest.approx(truth.prefill.fixed, rel=0.01)
    assert found.mtp_stall == pytest.approx(truth.prefill.mtp_stall, rel=0.01)
    assert found.tokens_per_second == pytest.approx(truth.prefill.tokens_per_second, rel=0.01)


def test_noise_makes_no_negative_prefill() -> None:
    """A drafting engine that happened to answer before the other still takes time, and drafting shortens no stall."""
    probes = [(False, 64.0, 0.05), (True, 64.0, 0.001), (False, 512.0, 0.06), (True, 512.0, 0.011)]
    found = fit_prefill(probes, {False: 0.010, True: 0.008})

    assert found.fixed == pytest.approx(24.1, abs=0.1)
    assert found.mtp_fixed == 0.0
    assert (found.stall, found.mtp_stall) == (10.0, 0.0)


def test_rates_that_noise_made_rise_are_kept_level() -> None:
    """A profile takes no rising acceptance."""
    assert falling([0.5, 0.6, 0.2, -0.1]) == [0.5, 0.5, 0.2, 0.0]


def cell(tokens: int, plain: float, mtp: float) -> Cell:
    def row(seconds: float) -> Row:
        return Row(label="", tag="", sent=0.0, first=0.1, last=seconds, total=seconds, tokens=tokens)

    return Cell(1, tokens, (row(plain),), (row(mtp),), None)


@pytest.mark.parametrize(
    ("cells", "low", "high"),
    [
        ([cell(1, 1, 2), cell(10, 2, 3), cell(100, 9, 6)], 10, 100),
        ([cell(1, 2, 1), cell(100, 9, 6)], 1, 1),
        ([cell(1, 2, 1), cell(10, 1, 2), cell(100, 9, 6)], 10, 100),
        ([cell(1, 2, 1), cell(100, 6, 9)], None, None),
        ([], None, None),
    ],
)
def test_the_crossover_is_where_mtp_stays_faster(cells: Sequence[Cell], low: float | None, high: float | None) -> None:
    """Between the last length that loses and the next; none where the longest loses."""
    at = crossover(cells)

    assert (at is None) == (low is None)
    assert at is None or low is None or high is None or low <= at <= high
