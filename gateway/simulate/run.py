"""Plays one cell (workload, profile, model, load, fleet) under one arm and summarises its request times."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from random import Random

from gateway.profiles import Profile, get_profile
from gateway.simulate.arms import MTP, PLAIN, ArmSpec, make_arm, make_policy
from gateway.simulate.engine import SimEngine
from gateway.simulate.hardware import MACHINES, Machine, capacity
from gateway.simulate.job import Job, Workload
from gateway.simulate.speeds import Speeds
from gateway.simulate.world import Arm, Clock, World

WARM = 0.2
"""Share of the requests, the first ones, that are not counted."""


@dataclass(frozen=True, slots=True)
class Truth:
    """How the engines differ from the profile from which the router starts."""

    slowdown: float = 1.0
    drafting_slowdown: float = 1.0
    """A further factor for drafting engines."""
    quality: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The setting in which arms are compared."""

    workload: Workload
    profile: str
    model: str
    load: float
    """Arrival rate as a share of the deployed engines' capacity."""
    plain: int = 1
    mtp: int = 1
    k: int | None = None
    """Draft tokens, if not the machine's default."""
    truth: Truth = Truth()
    seed: int = 1

    @property
    def machine(self) -> Machine:
        usual = MACHINES[self.profile]
        return usual if self.k is None else replace(usual, k=self.k)


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of a run, in seconds from arrival to the last token."""

    mean: float
    p99: float
    by_kind: dict[str, tuple[float, float]]
    """Mean and p99 by class of the mix."""
    taken: dict[str, int]
    """Requests by pool."""


def rate_of(cell: Cell) -> float:
    """Requests per second for the cell's load."""
    profile, machine = get_profile(cell.profile, cell.model), cell.machine
    jobs = cell.workload.jobs
    full = cell.plain * capacity(profile, 0, machine, jobs) + cell.mtp * capacity(profile, machine.k, machine, jobs)
    return cell.load * full


def run(
    cell: Cell,
    spec: ArmSpec,
    rate: float,
    *,
    watch: Callable[[World, Arm, dict[str, SimEngine]], None] | None = None,
) -> Figures:
    """Plays the cell under one arm. `watch` is called with its parts before the start."""
    return figures(*play(cell, spec, cell.workload.at_rate(rate), watch=watch))


def play(
    cell: Cell,
    spec: ArmSpec,
    jobs: Sequence[Job],
    *,
    watch: Callable[[World, Arm, dict[str, SimEngine]], None] | None = None,
) -> tuple[Sequence[Job], dict[str, int]]:
    """Plays these jobs in the cell and fills in their times; returns them and the requests per pool."""
    profile, machine = get_profile(cell.profile, cell.model), cell.machine
    engines_of = _fleet(cell, spec)
    policy = make_policy(f"{cell.profile}/{cell.model}", machine.k, engines_of, machine.seats, spec)
    clock = Clock()
    engines = {
        f"http://{kind}-{at}": make_engine(f"{kind}-{at}", profile, machine, kind, spec, cell.truth)
        for kind, number in engines_of.items()
        for at in range(number)
    }
    world = World(policy, engines, clock, Random(cell.seed), by_arrival=spec.by_arrival)
    arm = make_arm(spec, policy, clock, world.pools, Random(cell.seed + 1), cell.workload.learned)
    if watch is not None:
        watch(world, arm, engines)
    with no_collections():
        world.run(jobs, arm)
    return jobs, world.taken


@contextmanager
def no_collections() -> Iterator[None]:
    """Switches the garbage collector off: a run makes no cycles, and collections took 5 % of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def make_engine(
    name: str, profile: Profile, machine: Machine, kind: str, spec: ArmSpec, truth: Truth = Truth()
) -> SimEngine:  # fmt: skip
    """An engine of a kind, modified by `truth`."""
    drafts = kind == MTP
    speeds = Speeds(
        profile,
        machine.k if drafts else 0,
        machine.seats,
        slowdown=truth.slowdown * (truth.drafting_slowdown if drafts else 1.0),
        quality=truth.quality,
        k_by_batch=machine.k_by_batch if spec.fleet == "table" else (),
    )
    return SimEngine(name, speeds, seats=machine.seats, kv_tokens=machine.kv_tokens)


def figures(jobs: Sequence[Job], taken: dict[str, int], warm: float = WARM) -> Figures:
    """Means and percentiles over the requests after the warm-up."""
    counted = jobs[round(len(jobs) * warm) :]
    kinds: dict[str, list[float]] = {}
    for job in counted:
        kinds.setdefault(job.prompt.kind, []).append(job.ended - job.at)
    means = {kind: sum(rows) / len(rows) for kind, rows in kinds.items()}
    for rows in kinds.values():
        rows.sort()
    # The parts are sorted, and sorting merges sorted runs faster.
    every = sorted(chain.from_iterable(kinds.values()))
    by_kind = {kind: (means[kind], percentile(rows, 0.99)) for kind, rows in kinds.items()}
    return Figures(sum(every) / len(every), percentile(every, 0.99), by_kind, dict(taken))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _fleet(cell: Cell, spec: ArmSpec) -> dict[str, int]:
    total = cell.plain + cell.mtp
    if spec.fleet == "plain":
        return {PLAIN: total}
    if spec.fleet in ("mtp", "table"):
        return {MTP: total}
    return {kind: number for kind, number in ((PLAIN, cell.plain), (MTP, cell.mtp)) if number}
