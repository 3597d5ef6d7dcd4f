"""The figures behind the report page: simulated here, kept as small JSON files beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.profiles import Profile, get_profile
from gateway.simulate.hardware import MACHINES
from gateway.simulate.suite import SuiteSpec, run_suite, summarize
from gateway.simulate.tables import rows_of
from gateway.simulate.validate import summary, validate
from gateway.types import Task

FIGURES = Path(__file__).parent / "figures"
TRAFFIC = ("half", "long", "classification", "agent", "burst")
TRACES = ("azure-conversation", "azure-code")
MODELS = ("e4b", "26b-a4b")
REQUESTS = 800
STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BESIDE = (0, 7, 31)
"""Others that run, for the charts by length."""
DEPTHS = (1, 2, 3, 4)
PROMPT, K = 256, 2
Points = Sequence[tuple[float, float]]
"""Context and milliseconds of a step."""


def read(name: str) -> Any:
    """One file's figures. Raises OSError where it is not there."""
    return json.loads((FIGURES / f"{name}.json").read_text("utf-8"))


def write(name: str, figures: Any) -> None:
    """One row a line, so that a change shows as what changed."""
    text = json.dumps(figures, ensure_ascii=False, separators=(", ", ": "))
    for start in ('{"traffic"', '{"profile"', '{"name"'):
        text = text.replace(f", {start}", f",\n{start}").replace(f"[{start}", f"[\n{start}")
    (FIGURES / f"{name}.json").write_text(text + "\n", "utf-8")


def measure(traces: str | None, workers: int, progress: Callable[[int, int], None]) -> None:
    """Simulates everything anew; minutes."""
    spec = SuiteSpec(
        traffic=TRAFFIC + (TRACES if traces else ()), models=MODELS, requests=REQUESTS, traces=traces
    )  # fmt: skip
    write("arms", compact(run_suite(spec, workers, progress), spec.requests))
    write("breakeven", break_even())
    write("validation", without_rows(summary(validate())))


def compact(suite: dict[str, Any], requests: int) -> dict[str, Any]:
    """The suite's rows, one a cell instead of one an arm."""
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in suite["cells"]:
        about = {name: row[name] for name in ("traffic", "profile", "model", "load", "mixed")}
        cell = cells.setdefault(tuple(about.values()), {**about, "mean_s": {}, "p99_s": {}})
        cell["mean_s"][row["arm"]] = round(row["mean_s"], 4)
        cell["p99_s"][row["arm"]] = round(row["p99_s"], 3)
    return {
        "simulated": True,
        "objective": suite["objective"],
        "requests": requests,
        "cells": list(cells.values()),
        "summary": summarize(suite["cells"]),
    }


def without_rows(found: dict[str, Any]) -> dict[str, Any]:
    """A validation's verdicts; its rows are made anew by `gateway simulate --validate`."""
    return {**found, "tables": [{k: v for k, v in table.items() if k != "rows"} for table in found["tables"]]}


def break_even() -> dict[str, Any]:
    """Speed-up per token by streams, of whole answers by length, and what was measured of the former."""
    rows: list[dict[str, Any]] = []
    for hardware, machine in MACHINES.items():
        for model in MODELS:
            profile = get_profile(hardware, model)
            streams = [n for n in STREAMS if n <= machine.seats]
            for task, name in ((Task.CHAT, "prose"), (Task.CODE, "code")):
                speedups = {
                    str(k): [[n, round(profile.speedup(task, n, k), 4)] for n in streams] for k in DEPTHS
                }  # fmt: skip
                rows.append({"profile": hardware, "model": model, "class": name, "by_streams": speedups})
            lengths = {
                str(beside + 1): [[n, round(whole(profile, n, beside), 4)] for n in LENGTHS] for beside in BESIDE
            }
            rows.append({"profile": hardware, "model": model, "class": "prose", "k": K, "by_length": lengths})
    return {"simulated": True, "prompt": PROMPT, "rows": rows, "measured": measured_speedups()}


def whole(profile: Profile, tokens: int, beside: int) -> float:
    """A plain whole answer's time over a drafting one's."""
    plain, mtp = (
        profile.ttft(PROMPT, beside, k) + (tokens - 1) * profile.tpot(Task.CHAT, beside + 1, k, PROMPT + tokens / 2)
        for k in (0, K)
    )
    return plain / mtp


def measured_speedups() -> list[dict[str, Any]]:
    """Prose on the H200: the acceptance that was forced over the measured break-even, the plain step brought to the
    drafting one's context by the model."""
    steps: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for row in rows_of("h200-steps"):
        key = (row["model"], int(row["k"]), int(row["streams"]))
        steps.setdefault(key, []).append((float(row["context"]), float(row["step_ms"])))
    found = []
    for model in MODELS:
        profile = get_profile("h200", model)
        for k in DEPTHS:
            points = []
            for n in STREAMS:
                drafting, plain = steps.get((model, k, n)), steps.get((model, 0, n))
                if drafting and plain:
                    points.append([n, round(_measured(profile, k, n, drafting, plain), 4)])
            found.append({"profile": "h200", "model": model, "class": "prose", "k": k, "by_streams": points})
    return found


def _measured(profile: Profile, k: int, streams: int, drafting: Points, plain: Points) -> float:
    context, step = min(drafting, key=lambda point: abs(point[0] - 384))
    at, base = min(plain, key=lambda point: abs(point[0] - context))
    base *= profile.step_seconds(streams, 0, context) / profile.step_seconds(streams, 0, at)
    return profile.mean_acceptance_length(Task.CHAT, k) * base / step
