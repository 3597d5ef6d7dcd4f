"""The suite of arms: every traffic, profile, model and load under every arm, summarised for the default objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from gateway.estimate.estimator import Estimator
from gateway.policy.schema import DEFAULT_OBJECTIVE
from gateway.simulate.arms import ARMS, CONVERTED, SINGLE, STATIC
from gateway.simulate.hardware import MACHINES, MODELS
from gateway.simulate.job import Workload
from gateway.simulate.processes import worker_pool
from gateway.simulate.run import Cell, Truth, rate_of, run
from gateway.simulate.workload import MIXES, TRACES, agent, day, mix, read_trace, trace

LOADS = (0.2, 0.5, 0.8, 1.1)
QUICK_LOADS = (0.5, 0.9)
TRAFFIC = ("classification", "long", "half", "agent", "day")
SHORT_TRAFFIC = frozenset({"classification", "azure-code"})
"""Traffic of short answers, which gets more requests because they are cheap to simulate."""
TURN_SECONDS = 60.0
ORACLE_LIMIT, SINGLE_LIMIT, STATIC_LIMIT = 0.03, 0.02, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSpec:
    """The selection of cells."""

    traffic: tuple[str, ...] = TRAFFIC
    profiles: tuple[str, ...] = tuple(MACHINES)
    models: tuple[str, ...] = MODELS
    loads: tuple[float, ...] = LOADS
    requests: int = 2500
    """Per run; traffic of short answers gets more than twice as many."""
    traces: str | None = None
    """The folder of the trace files."""
    seed: int = 1

    def tasks(self) -> list[tuple[str, str, str]]:
        """(traffic, profile, model), one unit of work for a process each."""
        return [(t, p, m) for t in self.traffic for p in self.profiles for m in self.models]

    def check(self) -> None:
        """Raises ValueError if a trace is missing or none, before the work that would be lost."""
        for traffic in self.traffic:
            if traffic in TRACES:
                read_trace(traffic, self._folder(traffic), 1)

    def _folder(self, traffic: str) -> Path:
        if self.traces is None:
            raise ValueError(f"traffic {traffic} needs --traces FOLDER")
        return Path(self.traces)

    def workload(self, traffic: str, at_once: int = 40) -> Workload:
        """Raises ValueError if a trace cannot be read, or no folder is given."""
        number = round(self.requests * 2.4) if traffic in SHORT_TRAFFIC else self.requests
        if traffic in TRACES:
            return trace(traffic, self._folder(traffic), number, Estimator)
        if traffic == "agent":
            return agent(number, Estimator, self.seed, at_once)
        if traffic == "day":
            return day(number, Estimator, self.seed)
        return mix(traffic, number, Estimator, self.seed)


def known_traffic() -> tuple[str, ...]:
    return (*MIXES, "agent", "day", *TRACES)


def truth_of(profile: str, model: str, seed: int) -> Truth:
    """Random deviations of the engines from the profile: up to 10 % in speed, 15 % in acceptance."""
    rng = Random(f"{profile} {model} {seed}")
    return Truth(rng.uniform(0.9, 1.1), rng.uniform(0.95, 1.05), rng.uniform(0.85, 1.15))


def play(spec: SuiteSpec, task: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Plays all loads and arms of one task; rows of `cells`."""
    traffic, profile, model = task
    workload, rows = spec.workload(traffic), []
    for load in spec.loads:
        truth = truth_of(profile, model, spec.seed)
        cell = Cell(workload=workload, profile=profile, model=model, load=load, truth=truth, seed=spec.seed)
        rate = rate_of(cell)
        if traffic == "agent":
            # Keep turns about a minute apart at any engine speed.
            cell = replace(cell, workload=spec.workload(traffic, max(4, round(rate * TURN_SECONDS))))
        for arm in ARMS:
            found = run(cell, arm, rate)
            row = {"traffic": traffic, "model": model, "profile": profile, "load": load, "arm": arm.name}
            row |= {"mean_s": round(found.mean, 5), "p99_s": round(found.p99, 5)}
            rows.append(row | {"mixed": workload.mixed, "taken": found.taken})
    return rows


def run_suite(spec: SuiteSpec, workers: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Plays all cells; `progress` receives (tasks done, tasks)."""
    tasks = spec.tasks()
    rows: list[dict[str, Any]] = []
    for done, found in enumerate(_results(spec, tasks, workers), 1):
        rows += found
        progress(done, len(tasks))
    order = {name: at for at, name in enumerate(spec.traffic)}
    arms = {arm.name: at for at, arm in enumerate(ARMS)}
    rows.sort(key=lambda r: (order[r["traffic"]], r["profile"], r["model"], r["load"], arms[r["arm"]]))
    return {"simulated": True, "objective": DEFAULT_OBJECTIVE, "cells": rows, "summary": summarize(rows)}


def _results(spec: SuiteSpec, tasks: Sequence[tuple[str, str, str]], workers: int) -> Iterator[list[dict[str, Any]]]:
    if workers <= 1:
        yield from (play(spec, task) for task in tasks)
        return
    with worker_pool(workers) as pool:
        for future in as_completed([pool.submit(play, spec, task) for task in tasks]):
            yield future.result()


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compares the default objective with the oracle, the best single pool and, on mixed traffic, the best threshold.

    Values are relative differences of mean request times in the worst cell: 0.03 is 3 % slower. A single pool is one
    of the deployed pools with all the traffic; `worst_vs_best_converted` compares with as many engines all of one
    kind, which routing cannot achieve. The oracle also orders its queue by actual lengths, which helps in overload
    under any routing: `worst_vs_oracle_routing` compares with an oracle whose queue uses the gateway's estimates, and
    `queue` is how far that one is behind the oracle. `arrival` is the default with a FIFO queue: the gain that comes
    from the queue order and not from routing.
    """
    groups: dict[tuple[object, ...], dict[str, float]] = {}
    mixed = set()
    for row in rows:
        key = (row["traffic"], row["profile"], row["model"], row["load"])
        groups.setdefault(key, {})[row["arm"]] = row["mean_s"]
        if row["mixed"]:
            mixed.add(key)
    comparisons = {
        "oracle": (("oracle",), groups, ORACLE_LIMIT),
        "oracle_routing": (("oracle_routing",), groups, ORACLE_LIMIT),
        "best_single": (SINGLE, groups, SINGLE_LIMIT),
        "best_static": (STATIC, mixed, STATIC_LIMIT),
        "best_converted": (CONVERTED, groups, None),
        "arrival": (("arrival",), groups, None),
    }
    summary: dict[str, Any] = {}
    for name, (against, keys, limit) in comparisons.items():
        found = {key: groups[key][DEFAULT_OBJECTIVE] / min(groups[key][a] for a in against) - 1.0 for key in keys}
        if not found:
            summary[f"worst_vs_{name}"] = None
            continue
        worst = max(found, key=lambda key: found[key])
        summary[f"worst_vs_{name}"] = round(found[worst], 4)
        summary[f"mean_vs_{name}"] = round(sum(found.values()) / len(found), 4)
        summary[f"where_{name}"] = list(worst)
        if limit is not None:
            summary[f"beyond_{name}"] = [
                {"cell": list(key), "slower": round(value, 4)} for key, value in found.items() if value > limit
            ]
    behind = {key: means["oracle_routing"] / means["oracle"] - 1.0 for key, means in groups.items()}
    summary["queue"] = {"worst": round(max(behind.values()), 4), "mean": round(sum(behind.values()) / len(behind), 4)}
    summary["cells"] = len(groups)
    return summary
