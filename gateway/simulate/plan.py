"""Searches for the smallest fleet of plain and MTP slices that serves some traffic within its latency limits.

For each number of slices, from the fewest whose capacity exceeds the rate, every split into plain and MTP slices and
every k is played under the default objective. The plan is the smallest fleet that keeps the limits (95th percentiles);
among its splits, the one with the lowest mean time. An overloaded fleet could pass a short run while its queue grows,
so the last quarter of the requests must keep the limits too, with 25 % tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.profiles import get_profile
from gateway.simulate.arms import ARMS, MTP, PLAIN, ArmSpec
from gateway.simulate.hardware import MACHINES, capacity
from gateway.simulate.job import Job, Workload
from gateway.simulate.run import WARM, Cell, percentile, play

SHARE = 0.95
"""The percentile to which the limits apply."""
SPLITS = 9
"""Most splits that are tried per number of slices."""
LIMITS = ("ttft", "tpot", "e2e")
CHANCE = 1.25
WATCHED = 16
"""Least answer length, in tokens, to which the `tpot` limit applies."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits of the 95th percentiles in seconds; infinite for no limit."""

    ttft: float = math.inf
    tpot: float = math.inf
    e2e: float = math.inf

    def __str__(self) -> str:
        known = ((name, getattr(self, name)) for name in LIMITS)
        return ", ".join(f"{name} {1000 * value:g} ms" for name, value in known if value < math.inf) or "none"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Slices by kind; k is the draft tokens of the MTP slices, 0 without any."""

    plain: int
    mtp: int
    k: int

    @property
    def slices(self) -> int:
        return self.plain + self.mtp

    def __str__(self) -> str:
        drafting = f"{self.mtp} MTP (k={self.k})" if self.mtp else ""
        return " + ".join(filter(None, (f"{self.plain} plain" if self.plain else "", drafting)))


@dataclass(frozen=True, slots=True)
class Need:
    """The input of a plan. `rate` is in requests per second."""

    workload: Workload
    rate: float
    profile: str
    model: str
    slo: Slo
    depths: tuple[int, ...] = (1, 2, 3)
    most: int = 16
    """Maximum number of slices."""
    least_plain: int = 0
    """Minimum number of plain slices, for requests that drafting engines refuse."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Played:
    """Results of one fleet in seconds: mean and 95th percentiles over the requests after the warm-up."""

    fleet: Fleet
    rate: float
    mean: float
    ttft: float
    tpot: float
    e2e: float
    within: float
    """Share of requests within every limit."""
    keeps: bool
    tokens_per_second: float
    to_mtp: float
    """Share of requests that went to MTP slices."""

    def as_dict(self) -> dict[str, Any]:
        fleet = self.fleet
        return {
            "slices": fleet.slices,
            "plain": fleet.plain,
            "mtp": fleet.mtp,
            "k": fleet.k,
            "rate": round(self.rate, 4),
            "mean_s": round(self.mean, 4),
            "ttft_p95_s": round(self.ttft, 4),
            "tpot_p95_s": round(self.tpot, 5),
            "e2e_p95_s": round(self.e2e, 4),
            "within_limits": round(self.within, 4),
            "keeps_limits": self.keeps,
            "output_tokens_per_second": round(self.tokens_per_second, 2),
            "share_to_mtp": round(self.to_mtp, 4),
        }


def try_fleet(need: Need, fleet: Fleet) -> Played:
    """Plays the traffic on one fleet."""
    cell = Cell(
        workload=need.workload,
        profile=need.profile,
        model=need.model,
        load=0.0,
        plain=fleet.plain,
        mtp=fleet.mtp,
        k=fleet.k or None,
        seed=need.seed,
    )
    jobs, taken = play(cell, _arm(fleet), need.workload.at_rate(need.rate))
    counted = jobs[round(len(jobs) * WARM) :]
    every = _percentiles(counted)
    last = _percentiles(counted[-max(len(counted) // 4, 1) :])
    slo = need.slo
    keeps = all(
        part[name] <= factor * getattr(slo, name) for part, factor in ((every, 1.0), (last, CHANCE)) for name in LIMITS
    )
    tokens = sum(job.tokens for job in need.workload.jobs) / len(need.workload.jobs)
    return Played(
        fleet=fleet,
        rate=need.rate,
        mean=sum(job.ended - job.at for job in counted) / len(counted),
        ttft=every["ttft"],
        tpot=every["tpot"],
        e2e=every["e2e"],
        within=sum(_within(job, slo) for job in counted) / len(counted),
        keeps=keeps,
        tokens_per_second=need.rate * tokens,
        to_mtp=taken.get(MTP, 0) / max(sum(taken.values()), 1),
    )


def find_plan(need: Need) -> Iterator[Played]:
    """Yields each fleet after it was tried; stops after the first number of slices at which one keeps the limits."""
    for slices in range(fewest(need), need.most + 1):
        kept = False
        for fleet in fleets(slices, need.depths, need.least_plain):
            played = try_fleet(need, fleet)
            kept = kept or played.keeps
            yield played
        if kept:
            return


def best(tried: Sequence[Played]) -> Played | None:
    """The plan: fewest slices within the limits, then lowest mean time; None if no fleet keeps them."""
    kept = [one for one in tried if one.keeps]
    return min(kept, key=lambda one: (one.fleet.slices, one.mean)) if kept else None


def nearest(tried: Sequence[Played]) -> Played:
    """The fleet with the most requests within the limits, for when none keeps them."""
    return max(tried, key=lambda one: (one.within, -one.mean))


def fewest(need: Need) -> int:
    """The fewest slices of the faster kind whose capacity exceeds the rate."""
    profile, machine = get_profile(need.profile, need.model), MACHINES[need.profile]
    jobs = need.workload.jobs
    one = max(capacity(profile, k, machine, jobs) for k in (0, *need.depths))
    return min(max(1, need.least_plain, math.ceil(need.rate / one)), need.most)


def fleets(slices: int, depths: Sequence[int], least_plain: int = 0) -> list[Fleet]:
    """All splits of `slices`, or `SPLITS` evenly spaced ones, for every k. Each has `least_plain` plain slices or more,
    or is all plain if there are too few slices for that."""
    number = min(slices + 1, SPLITS)
    free = max(slices - least_plain, 0)
    mtps = sorted({round(at * free / (number - 1)) for at in range(number)})
    return [Fleet(slices - mtp, mtp, k) for mtp in mtps for k in (depths if mtp else (0,))]


def highest_rate(need: Need, fleet: Fleet, steps: int = 6) -> Played | None:
    """The fleet at the highest rate that keeps the limits, within 3 %; None if it never does."""
    profile, machine = get_profile(need.profile, need.model), MACHINES[need.profile]
    full = sum(
        number * capacity(profile, k, machine, need.workload.jobs)
        for number, k in ((fleet.plain, 0), (fleet.mtp, fleet.k))
    )
    low, high = 0.0, 1.2 * full
    found: Played | None = None
    for _ in range(steps):
        rate = (low + high) / 2
        played = try_fleet(replace(need, rate=rate), fleet)
        if played.keeps:
            low, found = rate, played
        else:
            high = rate
    return found


def _arm(fleet: Fleet) -> ArmSpec:
    """The default objective, or the only pool of a fleet of one kind."""
    if fleet.plain and fleet.mtp:
        return next(arm for arm in ARMS if arm.name == "fleet")
    return ArmSpec("single", decider="fixed", pools=(PLAIN if fleet.plain else MTP,))


def _percentiles(jobs: Sequence[Job]) -> dict[str, float]:
    tpots = sorted(_tpot(job) for job in jobs if job.tokens >= WATCHED)
    return {
        "ttft": percentile(sorted(job.first - job.at for job in jobs), SHARE),
        "tpot": percentile(tpots, SHARE) if tpots else 0.0,
        "e2e": percentile(sorted(job.ended - job.at for job in jobs), SHARE),
    }


def _tpot(job: Job) -> float:
    return (job.ended - job.first) / (job.tokens - 1)


def _within(job: Job, slo: Slo) -> bool:
    paced = job.tokens < WATCHED or _tpot(job) <= slo.tpot
    return paced and job.first - job.at <= slo.ttft and job.ended - job.at <= slo.e2e
