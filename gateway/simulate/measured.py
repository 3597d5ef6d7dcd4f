"""Simulates arrangements of pools that were measured on a real GPU, and finds the best split of slices.

The measurements are from one NVIDIA H200 (vLLM 0.26.0, E4B and 26B-A4B with dummy weights and synthetic acceptance):
Poisson arrivals for 8 s, prompts of 256 tokens, half of the answers 8 tokens long and half 512. The order of the
arrangements and the size of effects are comparable; single times are means over only some tens of requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gateway.profiles import Acceptance, Profile, get_profile
from gateway.simulate.arms import MTP, PLAIN, ArmSpec, make_arm, make_policy
from gateway.simulate.engine import SimEngine
from gateway.simulate.graphs import GraphSpeeds
from gateway.simulate.job import Job, Prompt, Workload
from gateway.simulate.prompts import MODEL
from gateway.simulate.run import Cell, Figures, figures, rate_of, run
from gateway.simulate.tables import rows_of
from gateway.simulate.world import Arm, Clock, World
from gateway.types import NO_HINTS, Api, Estimate, Features, Task

SHORT, LONG, PROMPT = 8, 512, 256
SECONDS = 8.0
SEEDS = 6
"""Runs are as long as the measured ones, since loaded ones have no steady state; several seeds steady the means."""
SEATS = 256
BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
"""CUDA graph sizes of the measured engines, in tokens and in sequences."""
PADDED: Mapping[str, tuple[float, float]] = {"e4b": (19.0, -3.0), "26b-a4b": (25.0, -5.0)}
"""(stall, extra stall with drafting) in ms, in place of the profile's: above 256 tokens the graph sizes are up to 256
apart on the plain engines, closer on the drafting ones, so a step with a prompt was padded by up to its own size, or
had no graph. Fitted to these tables."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Pools on two GPUs (or one in time slices), with measured mean milliseconds of short and long requests."""

    name: str
    model: str
    rate: float
    """Requests per second per GPU."""
    k: int
    task: Task
    layout: str
    """`plain`, `mtp`: both engines of that kind, each with both classes. `split`: plain for short, MTP for long.
    `crossed`: MTP for short, plain for long. `shared`: `split` with both engines on one GPU and one GPU's rate."""
    short_ms: float
    long_ms: float


PROSE, CODE = Task.CHAT, Task.CODE
ACCEPTANCE = {PROSE: Acceptance.of((0.47, 0.24, 0.12, 0.06)), CODE: Acceptance.of((0.75, 0.55, 0.40, 0.30))}
"""The synthetic acceptance of the measurement."""


TABLES = ("h200-open-e4b", "h200-open-26b", "h200-shared")


def arrangements(tables: Sequence[str] = TABLES) -> list[Arrangement]:
    """The measured arrangements, in the tables' order."""
    return [
        Arrangement(
            name=row["arrangement"],
            model=row["model"],
            rate=float(row["rate"]),
            k=int(row["k"]),
            task=CODE if row["acceptance"] == "code" else PROSE,
            layout=row["layout"],
            short_ms=float(row["short_ms"]),
            long_ms=float(row["long_ms"]),
        )
        for table in tables
        for row in rows_of(table)
    ]


class ByLength:
    """Short requests to one pool, long ones to the other, as in the measured split."""

    def __init__(self, short: str, long: str) -> None:
        self._short, self._long = (short,), (long,)

    def decide(self, job: Job, view: object) -> tuple[str, ...]:
        return self._short if job.tokens == SHORT else self._long

    def observe(self, job: Job, endpoint: str) -> None:
        """Nothing to learn."""

    def accept(self, pool: str, length: float) -> None:
        """Nothing to learn."""


def replay(seed: int = 1, tables: Sequence[str] = TABLES) -> list[dict[str, Any]]:
    """Simulates every arrangement; rows with measured and simulated mean milliseconds."""
    rows = []
    for row in arrangements(tables):
        found = [play(row, seed + again) for again in range(SEEDS)]
        short, long = (1000 * sum(f.by_kind[kind][0] for f in found) / SEEDS for kind in ("short", "long"))
        about = {"model": row.model, "rate": row.rate, "arrangement": row.name}
        measured = {"short_measured_ms": row.short_ms, "long_measured_ms": row.long_ms}
        rows.append(about | measured | {"short_ms": round(short, 1), "long_ms": round(long, 1)})
    return rows


def play(row: Arrangement, seed: int = 1) -> Figures:
    """Simulates one arrangement."""
    base = get_profile("h200", row.model)
    stall, mtp_stall = PADDED[row.model]
    prefill = replace(base.prefill, stall=stall, mtp_stall=mtp_stall)
    profile = replace(base, by_task={**base.by_task, **ACCEPTANCE}, prefill=prefill)
    gpus = 1 if row.layout == "shared" else 2
    jobs = _halves(row.rate * gpus, row.task, seed)
    clock, rng = Clock(), Random(seed)
    kinds = {"plain": (PLAIN, PLAIN), "mtp": (MTP, MTP)}.get(row.layout, (PLAIN, MTP))
    count = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    spec = ArmSpec("all", decider="fixed", pools=tuple(count))
    policy = make_policy(f"h200/{row.model}", row.k, count, SEATS, spec)
    engines = {
        f"http://{kind}-{at}": _engine(profile, row.k if kind == MTP else 0)
        for kind, number in count.items()
        for at in range(number)
    }
    if row.layout == "shared":
        first, second = engines.values()
        first.neighbours, second.neighbours = (second,), (first,)
    world = World(policy, engines, clock, rng)
    arms: dict[str, Arm] = {
        "split": ByLength(PLAIN, MTP), "shared": ByLength(PLAIN, MTP), "crossed": ByLength(MTP, PLAIN)
    }  # fmt: skip
    world.run(jobs, arms.get(row.layout) or make_arm(spec, policy, clock, world.pools, rng))
    return figures(jobs, world.taken)


def same_order(rows: Sequence[dict[str, Any]], least: float = 0.1) -> list[dict[str, Any]]:
    """Pairs of arrangements of one model and rate whose measured times differ by at least `least` (relative), and
    whether the simulation has them in the same order."""
    pairs = []
    for at, first in enumerate(rows):
        for second in rows[at + 1 :]:
            if (first["model"], first["rate"]) != (second["model"], second["rate"]):
                continue
            for kind in ("short", "long"):
                ratio = first[f"{kind}_measured_ms"] / second[f"{kind}_measured_ms"]
                if abs(ratio - 1.0) >= least:
                    simulated = first[f"{kind}_ms"] / second[f"{kind}_ms"]
                    names = {"first": first["arrangement"], "second": second["arrangement"]}
                    about = {"model": first["model"], "rate": first["rate"], "kind": kind} | names
                    figures = {"measured_ratio": round(ratio, 3), "simulated_ratio": round(simulated, 3)}
                    pairs.append(about | figures | {"same": (ratio > 1.0) == (simulated > 1.0)})
    return pairs


def best_split(
    workload: Workload, profile: str, model: str, slices: int, load: float, spec: ArmSpec
) -> list[dict[str, Any]]:  # fmt: skip
    """Every split of `slices` into plain and MTP engines, at `load` of the equal split's capacity; best first."""
    rate = rate_of(Cell(workload=workload, profile=profile, model=model, load=load, plain=slices - slices // 2,
                        mtp=slices // 2))  # fmt: skip
    rows = []
    for plain in range(slices + 1):
        cell = Cell(workload=workload, profile=profile, model=model, load=load, plain=plain, mtp=slices - plain)
        one = PLAIN if plain == slices else MTP if not plain else None
        arm = spec if one is None else ArmSpec(spec.name, decider="fixed", pools=(one,))
        found = run(cell, arm, rate)
        row = {"plain": plain, "mtp": slices - plain, "mean_s": round(found.mean, 4), "p99_s": round(found.p99, 4)}
        by_kind = {kind: round(mean, 4) for kind, (mean, _) in found.by_kind.items()}
        rows.append(row | {"mean_by_kind_s": by_kind})
    return sorted(rows, key=lambda row: row["mean_s"])


def _engine(profile: Profile, k: int) -> SimEngine:
    sizes = {*BATCHES, *(batch * (k + 1) for batch in BATCHES), 512}
    speeds = GraphSpeeds(profile, k, SEATS, sorted(sizes))
    return SimEngine(f"k={k}", speeds, seats=SEATS, kv_tokens=600_000)


def _halves(rate: float, task: Task, seed: int) -> list[Job]:
    """Poisson arrivals, half short and half long."""
    rng, at, jobs = Random(seed), 0.0, []
    features = Features(api=Api.CHAT, model=MODEL, stream=True, input_tokens=PROMPT)
    prompts = {}
    for tokens, kind in ((SHORT, "short"), (LONG, "long")):
        n = float(tokens)
        estimate = Estimate(task=task, output_tokens=n, p50=n, p90=n, confidence=1.0, source="known")
        prompts[tokens] = Prompt(features, estimate, task, kind, NO_HINTS)
    while at < SECONDS:
        tokens = SHORT if rng.random() < 0.5 else LONG
        jobs.append(Job(at, prompts[tokens], tokens, rng.gauss(0.0, 1.0), rng.random()))
        at += rng.expovariate(rate)
    return jobs
