"""`gateway bench depth`, `slices` and `load` against simulated engines."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from gateway.cli import run
from gateway.sim.faults import Faults
from tests.bench.engines import engines, measured, scales, undisturbed_command
from tests.gateways import gateway, two_pools
from tests.ports import bindable, free_port


def test_depth_recommends_two_drafts_for_prose_on_a_slice(capsys: pytest.CaptureFixture[str]) -> None:
    """On the profile made of the guide's figures the third draft no longer pays, and no deeper one is tried."""
    with engines(0, 1, 2, 3, 4) as urls:
        words = [word for k, url in enumerate(urls) for word in ("--endpoint", f"{k}={url}")]
        report = undisturbed_command(
            capsys,
            lambda report: bool(report["recommended_k"] == 2),
            *("depth", *words, "--concurrency", "3", "--runs", "3", "--max-tokens", "160"),
        )

    depths = {row["k"]: row for row in report["depths"]}
    assert report["recommended_k"] == 2
    assert depths[1]["mean_length"] == pytest.approx(report["published"]["mean_length"]["1"], abs=0.12)
    assert depths[2]["mean_length"] == pytest.approx(report["published"]["mean_length"]["2"], abs=0.15)
    assert depths[2]["pays"]
    assert depths[2]["tpot_ratio"] < 1
    assert len(depths[2]["acceptance"]["position_acceptance_rates"]) == 2
    assert report["simulated"]


def test_depth_starts_and_stops_an_engine_for_each_k(capsys: pytest.CaptureFixture[str]) -> None:
    """A command template is run for each depth, one after the other, on one port."""
    port = free_port()
    template = f"{sys.executable} -m gateway sim --port {port} --k {{k}} --speculative {{speculative}} --time-scale 50"
    report = measured(
        capsys,
        *("depth", "--command", template, "--url", f"http://127.0.0.1:{port}", "--deepest", "1", "--quick"),
        *("--concurrency", "1", "--max-tokens", "32"),
    )

    assert [row["k"] for row in report["depths"]] == [0, 1]
    assert bindable(port)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--endpoint", "0=URL"], 2, "at least one other depth"),
        (["--endpoint", "two=URL"], 2, "expected K=URL"),
        (["--command", "true", "--url", "URL"], 2, "needs {k}"),
        (["--command", "false {k}", "--url", "http://127.0.0.1:1"], 1, "exited with code 1"),
        (["--command", "/no/such/engine {k}", "--url", "http://127.0.0.1:1"], 1, "/no/such/engine"),
        (["--command", "false {k}", "--url", "URL"], 1, "exited with code 1"),
        (["--command", "sleep 6{k}", "--url", "URL", "--start-timeout", "1"], 1, "another server answers at URL"),
        (["--endpoint", "0=URL", "--endpoint", "1=URL"], 2, "is it an MTP engine?"),
    ],
)
def test_depth_says_what_is_wrong(words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the remedy; what is not the engine that was started is not measured in its place."""
    with engines(0, scale=200.0) as (plain,):
        given = [word.replace("URL", plain) for word in words]
        got = run(["bench", "depth", *given, "--quick", "--concurrency", "1", "--max-tokens", "8"])
    err = capsys.readouterr().err

    assert (got, told.replace("at URL", f"at {plain}") in err) == (code, True)
    assert err.count("\n") == 1


def test_slices_scale_and_leave_each_other_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Two engines give more than one, and the latency-critical client is timed alone and beside a noisy neighbour."""
    with engines(0, 0) as urls:
        words = [word for url in urls for word in ("--slice", url)]
        report = undisturbed_command(
            capsys,
            lambda report: scales(report) and report["interference"]["ratio"]["tpot_p50_ms"] < 2,
            *("slices", *words, "--quick", "--concurrency", "2", "--max-tokens", "48", "--critical", "6"),
        )

    assert scales(report)
    assert {"tok_s", "e2e_p50_ms", "e2e_p99_ms", "tpot_p99_ms", "efficiency"} <= report["scaling"][0].keys()
    assert report["interference"]["ratio"]["tpot_p50_ms"] < 2
    assert report["interference"]["alone"].keys() == report["interference"]["beside"].keys()


async def test_load_tells_percentiles_by_task_and_pool(capsys: pytest.CaptureFixture[str]) -> None:
    """Through a gateway every answer is counted under the pool that gave it."""
    with engines(0, 2, scale=20.0) as (plain, mtp):
        policy = two_pools(plain, mtp).replace("endpoints", "model: e4b, endpoints")
        async with gateway(policy) as running:
            words = ["bench", "load", "--url", running.url, "--rate", "40", "--requests", "24", "--warm-up", "4"]
            mix = ["--mix", "classification=1,translation=1", "--slo", "ttft=30s,e2e=60s", "--json"]
            code = await asyncio.to_thread(run, [*words, *mix])

        report = json.loads(capsys.readouterr().out)

    assert code == 0
    assert set(report["tasks"]) == {"classification", "translation"}
    assert set(report["pools"]) <= {"plain", "mtp"}
    assert sum(pool["requests"] for pool in report["pools"].values()) == report["all"]["requests"] == 20
    assert report["all"]["slo_share"] == 1.0
    assert report["goodput_per_second"] > 0
    assert report["all"]["e2e_p99_ms"] >= report["all"]["e2e_p50_ms"]


def test_load_plays_a_trace_and_counts_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arrivals and lengths are the trace's; a prompt that the engine refuses is an error with its own words."""
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s,input_tokens,output_tokens\n10,40,3\n10.2,60,90\n10.4,9000,5\n", "utf-8")
    with engines(0, scale=40.0, max_model_len=2048, kv_tokens=8192) as (plain,):
        report = measured(
            capsys, "load", "--url", plain, "--trace", str(trace), "--speed", "2", "--warm-up", "0", "--slo", "e2e=9s"
        )

    assert report["all"]["requests"] == 3
    assert report["all"]["errors"] == 1
    assert "maximum context length" in next(iter(report["all"]["error_kinds"]))
    assert report["tasks"]["trace, long"]["tokens"] == 90
    assert report["offered_per_second"] == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--slo", "speed=3s"], "ttft, tpot or e2e"),
        (["--slo", "ttft=3"], "expected NAME=TIME"),
        (["--mix", "poems=1"], "known: classification"),
        (["--mix", "code=much"], "is not a share"),
        (["--trace", "/no/such/trace.csv"], "No such file"),
    ],
)
def test_load_says_what_is_wrong(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sent."""
    assert run(["bench", "load", "--url", "http://127.0.0.1:1", *words]) in (1, 2)
    assert told in capsys.readouterr().err


def test_a_failure_half_way_leaves_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line, the figures until then are printed, and the exit code is 1."""
    with engines(0, 2) as (plain, mtp), engines(0, faults=Faults(status=500)) as (broken,):
        words = ["--slice", plain, "--slice", broken, "--slice", mtp]
        code = run(["bench", "slices", *words, "--quick", "--concurrency", "1", "--max-tokens", "8", "--json"])
    out = capsys.readouterr()
    report = json.loads(out.out)

    assert code == 1
    assert out.err.count("\n") == 1
    assert "HTTP 500" in report["stopped"]
    assert [row["slices"] for row in report["scaling"]] == [1]
