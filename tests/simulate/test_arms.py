"""Arms on small cells: the deciders, what the router learns there, and the summary of a suite."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.policy.schema import DEFAULT_OBJECTIVE
from gateway.simulate import command, measured
from gateway.simulate.arms import ARMS, ArmSpec, Routed, bin_of
from gateway.simulate.engine import SimEngine
from gateway.simulate.run import Cell, Truth, rate_of, run
from gateway.simulate.suite import SuiteSpec, summarize, truth_of
from gateway.simulate.workload import day_rate
from gateway.simulate.world import Arm, World
from gateway.types import Api, Features, Task, ToolChoice
from tests.simulate.worlds import poisson


def arm(name: str) -> ArmSpec:
    return next(one for one in ARMS if one.name == name)


def cell(load: float, *, number: int = 800, lengths: tuple[int, ...] = (8, 400), **more: Any) -> Cell:
    return Cell(workload=poisson(number, lengths), profile="h200", model="e4b", load=load, **more)


def test_every_request_ends_in_every_arm() -> None:
    """Nothing is lost, at any load, whoever decides."""
    for load in (0.3, 1.2):
        one = cell(load, number=300)
        for spec in ARMS:
            found = run(one, spec, rate_of(one))
            assert sum(found.taken.values()) == 300
            assert 0.0 < found.mean <= found.p99


def test_runs_are_repeatable() -> None:
    """The same seed gives the same figures."""
    one = cell(0.6, number=300)

    assert run(one, arm("fleet"), rate_of(one)) == run(one, arm("fleet"), rate_of(one))


def test_the_default_beats_thresholds_and_single_pools_where_half_is_short() -> None:
    """At half load a fixed rule leaves one GPU idle."""
    one = cell(0.6)
    means = {spec.name: run(one, spec, rate_of(one)).mean for spec in ARMS}
    best = means[DEFAULT_OBJECTIVE]

    assert best < min(means["plain_pool"], means["mtp_pool"], means["static_64"], means["random"], means["bins"])
    assert best < 1.03 * means["oracle"]


def test_a_wrong_profile_is_learned_within_the_run() -> None:
    """Engines that draft far worse than the profile says lose their traffic."""
    spec = arm("fleet")
    good, bad = (cell(0.3, lengths=(400,), truth=Truth(quality=q)) for q in (1.0, 0.1))
    shares = [run(one, spec, rate_of(one)).taken["mtp"] for one in (good, bad)]

    assert shares[1] < 0.7 * shares[0]


def test_collapsed_acceptance_sends_traffic_away_and_a_fix_brings_it_back() -> None:
    """A drafter that no longer fits: most leaves MTP within 60 s of traffic, and comes back after the repair."""
    one = Cell(workload=poisson(9000, (400,), task=Task.CODE), profile="g4-slice", model="e4b", load=0.25)
    rate = rate_of(one)
    end = one.workload.jobs[-1].at / rate
    breaks, fixed = 0.3 * end, 0.6 * end
    decided: list[tuple[float, str]] = []

    def watch(world: World, who: Arm, engines: dict[str, SimEngine]) -> None:
        assert isinstance(who, Routed)
        ask, drafting = who.decide, engines["http://mtp-0"]

        def decide(job: Any, view: Any) -> Any:
            if breaks <= job.at < fixed and drafting.speeds.quality == 1.0:
                drafting.speeds.set_quality(0.02)
                drafting.retune()
            elif job.at >= fixed and drafting.speeds.quality != 1.0:
                drafting.speeds.set_quality(1.0)
                drafting.retune()
            found = ask(job, view)
            decided.append((job.at, found.pool))
            return found

        who.decide = decide  # type: ignore[method-assign]

    run(one, arm("fleet"), rate, watch=watch)

    def share(begin: float, length: float) -> float:
        part = [pool for at, pool in decided if begin <= at < begin + length]
        return part.count("mtp") / len(part)

    before = share(breaks - 200, 200)
    assert share(breaks + 60, 100) < 0.6 * before
    assert share(end - 400, 400) > 0.85 * before


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"thinking": True}, "long"),
        ({"thinking": True, "cap": 1000}, "unknown"),
        ({"thinking_budget": 5000}, "long"),
        ({"tool_choice": ToolChoice.REQUIRED}, "short"),
        ({"tools": 2}, "short"),
        ({"prefill": True}, "short"),
        ({"cap": 499}, "short"),
        ({}, "unknown"),
    ],
)
def test_three_bins(features: dict[str, Any], expected: str) -> None:
    """The bins of a router that goes by the request's form."""
    assert bin_of(Features(api=Api.CHAT, model="m", **features)) == expected


def rows(**means: float) -> list[dict[str, Any]]:
    about = {"traffic": "half", "profile": "h200", "model": "e4b", "load": 0.5, "mixed": True, "p99_s": 1.0}
    every = dict.fromkeys((one.name for one in ARMS), 2.0) | means
    return [about | {"arm": name, "mean_s": mean} for name, mean in every.items()]


def test_the_summary_compares_with_the_best_of_each_kind() -> None:
    """Relative figures: 0.03 is 3 % slower; losses are listed."""
    found = summarize(rows(fleet=1.05, oracle=1.0, mtp_pool=1.0, static_32=1.5, all_mtp=0.5))

    assert found["worst_vs_oracle"] == 0.05
    assert found["worst_vs_best_single"] == 0.05
    assert found["worst_vs_best_static"] == -0.3
    assert found["worst_vs_best_converted"] == 1.1
    assert [loss["cell"] for loss in found["beyond_best_single"]] == [["half", "h200", "e4b", 0.5]]
    assert found["beyond_best_static"] == []


def test_the_queues_share_of_a_loss_is_told_apart() -> None:
    """The oracle's queue knows lengths too; what only that gains is no loss of routing."""
    found = summarize(rows(fleet=1.1, oracle=1.0, oracle_routing=1.1))

    assert found["worst_vs_oracle"] == 0.1
    assert found["worst_vs_oracle_routing"] == 0.0
    assert found["beyond_oracle_routing"] == []
    assert found["queue"] == {"worst": 0.1, "mean": 0.1}


def test_a_fixed_rule_goes_where_it_says() -> None:
    """The router beside it only estimates."""
    one = cell(0.3, number=300)

    assert run(one, arm("mtp_pool"), rate_of(one)).taken == {"plain": 0, "mtp": 300}


def test_thresholds_are_compared_on_mixed_traffic_only() -> None:
    """Where all is short or all is long a threshold has nothing to decide."""
    found = summarize([row | {"mixed": False} for row in rows(fleet=1.0)])

    assert found["worst_vs_best_static"] is None


def test_engines_are_not_as_their_profile_says() -> None:
    """The suite's engines differ from what routing starts from, the same way in every run."""
    truth = truth_of("h200", "e4b", 1)

    assert truth == truth_of("h200", "e4b", 1)
    assert truth != truth_of("h200", "31b", 1)
    assert 0.9 <= truth.slowdown <= 1.1


def test_measured_pools_come_out_in_the_measured_order() -> None:
    """Arrangements that were measured on a GPU: all but a few pairs keep their order."""
    found = measured.replay()
    pairs = measured.same_order(found)

    assert len(found) == len(measured.arrangements()) == 20
    assert sum(pair["same"] for pair in pairs) >= 0.85 * len(pairs)
    light = [row for row in found if row["rate"] < 36 and row["model"] == "e4b"]
    assert all(row["short_ms"] == pytest.approx(row["short_measured_ms"], rel=0.3) for row in light)


def test_an_unequal_split_of_slices_beats_the_equal_one() -> None:
    """How many slices of each kind: the question has an answer."""
    workload = poisson(600, (8, 512), task=Task.CODE)
    found = measured.best_split(workload, "h200", "e4b", 4, 0.7, arm("fleet"))
    equal = next(row for row in found if row["plain"] == 2)

    assert len(found) == 5
    assert found[0]["mean_s"] < equal["mean_s"]


def test_the_command_prints_the_contracts_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """`gateway simulate --suite arms --json` for machines."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = ["--json", "--traffic", "half", "--profiles", "h200", "--models", "e4b", "--loads", "0.5"]
    args = parser.parse_args([*options, "--requests", "200", "--workers", "1"])

    assert command.main(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"traffic", "model", "profile", "load", "arm", "mean_s", "p99_s"} <= set(found["cells"][0])
    assert {"worst_vs_oracle", "worst_vs_best_single", "worst_vs_best_static"} <= set(found["summary"])
    assert len(found["cells"]) == len(ARMS)
    assert found["simulated"] is True


@pytest.mark.parametrize(
    "option", [["--traffic", "nope"], ["--loads", "0"], ["--loads", "x"], ["--models", "7b"], ["--hours", "-1"]]
)
def test_wrong_options_are_wrong_usage(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the names there are."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)

    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(option)
    assert stopped.value.code == 2
    assert capsys.readouterr().err


def test_a_missing_trace_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, no traceback."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--traffic", "mooncake", "--workers", "1", "--quick"])

    assert command.main(args) == 1
    assert capsys.readouterr().err == "gateway simulate: traffic mooncake needs --traces FOLDER\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        ("a,b\n1,2\n", "expected rows of numbers under t_s, input_tokens and output_tokens"),
        ("t_s,input_tokens,output_tokens\n1,x\n", "expected rows of numbers under t_s, input_tokens and output_tokens"),
        ("t_s,input_tokens,output_tokens\n", "holds no requests"),
    ],
    ids=["missing", "other columns", "no numbers", "empty"],
)
def test_a_trace_that_is_none_is_told_before_the_work(
    content: str | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and one line with the file's name, before the other traffic is played."""
    file = tmp_path / "mooncake_conversation.csv"
    if content is not None:
        file.write_text(content)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--traffic", "half,mooncake", "--traces", str(tmp_path), "--workers", "1", "--quick"])

    assert command.main(args) == 1
    assert capsys.readouterr().err == f"gateway simulate: {file}: {why}\n"


def test_a_days_mean_rate_is_one() -> None:
    """The day's shape spreads its requests and adds few."""
    points = [day_rate((at + 0.5) / 1000) for at in range(1000)]

    assert sum(points) / 1000 == pytest.approx(1.0, abs=0.05)
    assert max(points) > 3 * min(points)


def test_the_suite_covers_what_it_says() -> None:
    """Every traffic, profile and model is one task."""
    spec = replace(SuiteSpec(), traffic=("long", "half"))

    assert len(spec.tasks()) == 2 * 3 * 3
