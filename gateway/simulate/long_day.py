"""Simulates a whole day at a high rate: parts of the day run in parallel processes, each after a warm-up.

All requests share a bounded set of prompts that the estimator has already seen, so that the cost of a simulated request
is that of its decision, its learning and its engine events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from functools import cache
from math import cos, log, sin, sqrt, tau
from random import Random
from typing import Any

from gateway.estimate.estimator import Estimator
from gateway.profiles import get_profile
from gateway.simulate.arms import ARMS
from gateway.simulate.hardware import MACHINES, capacity
from gateway.simulate.job import Job, Prompt, Workload
from gateway.simulate.processes import worker_pool
from gateway.simulate.prompts import answer_tokens, chooser, make_prompts
from gateway.simulate.run import Cell, figures, no_collections, play
from gateway.simulate.workload import MIXES, PROMPTS, day_rate

Prompts = dict[str, list[tuple[Prompt, float, float]]]
"""By class: (prompt, log-median of its answers' lengths, their log-spread)."""
PARTS = 48
PROFILE, MODEL, MIX = "g4-slice", "e4b", "varied"
WARM_SECONDS = 60.0
PEAK = 0.6
"""The day's mean rate as a share of the engines' capacity; the burst exceeds the capacity."""


def play_day(
    rate: float, hours: float, workers: int, seed: int, progress: Callable[[int, int], None]
) -> dict[str, Any]:  # fmt: skip
    """Plays the day under the default objective; results per part of the day and overall."""
    parts = []
    for done, found in enumerate(_parts(rate, hours, workers, seed), 1):
        parts.append(found)
        progress(done, PARTS)
    parts.sort(key=lambda part: part["hour"])
    requests = sum(part["requests"] for part in parts)
    mean = sum(part["mean_s"] * part["requests"] for part in parts) / max(requests, 1)
    about = {"profile": PROFILE, "model": MODEL, "traffic": MIX, "rate": rate, "hours": hours}
    return {"simulated": True, **about, "requests": requests, "mean_s": round(mean, 4), "parts": parts}


def _parts(rate: float, hours: float, workers: int, seed: int) -> Iterator[dict[str, Any]]:
    tasks = [(rate, hours, part, seed) for part in range(PARTS)]
    if workers <= 1:
        yield from (play_part(*task) for task in tasks)
        return
    with worker_pool(workers) as pool:
        for future in as_completed([pool.submit(play_part, *task) for task in tasks]):
            yield future.result()


def play_part(rate: float, hours: float, part: int, seed: int) -> dict[str, Any]:
    """Plays one part of the day after an uncounted minute of warm-up."""
    seconds = hours * 3600 / PARTS
    with no_collections():
        jobs = _jobs(_prompts(seed), rate, part / PARTS, seconds, hours * 3600, Random(f"{seed} {part}"))
    engines = engines_for(rate, jobs)
    cell = Cell(workload=Workload(name="day", jobs=tuple(jobs), mixed=True), profile=PROFILE, model=MODEL, load=PEAK,
                plain=engines - engines // 2, mtp=engines // 2, seed=seed)  # fmt: skip
    spec = next(arm for arm in ARMS if arm.name == "fleet")
    warm = min(WARM_SECONDS * rate / max(len(jobs), 1), 0.2)
    found = figures(*play(cell, spec, jobs), warm)
    counted = len(jobs) - round(len(jobs) * warm)
    row = {"mean_s": round(found.mean, 4), "p99_s": round(found.p99, 4), "taken": found.taken}
    return {"hour": round(part * hours / PARTS, 3), "engines": engines, "requests": counted} | row


def engines_for(rate: float, jobs: list[Job]) -> int:
    """Number of engines, half of each kind, that serve the mean rate at `PEAK` of their capacity."""
    profile, machine = get_profile(PROFILE, MODEL), MACHINES[PROFILE]
    sample = jobs[:2000]
    pair = capacity(profile, 0, machine, sample) + capacity(profile, machine.k, machine, sample)
    return 2 * max(1, round(rate / PEAK / pair))


@cache
def _prompts(seed: int) -> Prompts:
    """The day's prompts, cached per process: making them for each part took 1/60 of the time."""
    rng, estimator = Random(seed), Estimator()
    return {kind: make_prompts(kind, PROMPTS, estimator, rng) for kind in MIXES[MIX].shares}


def _jobs(
    prompts: Prompts, rate: float, begin: float, seconds: float, whole: float, rng: Random
) -> list[Job]:  # fmt: skip
    draw, random, at, jobs = chooser(MIXES[MIX].shares), rng.random, 0.0, []
    while at < seconds:
        # `rng.choice` takes twice as long, and a day has millions of requests. So do two calls of `rng.gauss`, which
        # draws its numbers in such pairs (Box and Muller).
        prompt, median, spread = prompts[draw(rng)][int(PROMPTS * random())]
        angle, size = tau * random(), sqrt(-2.0 * log(1.0 - random()))
        tokens = answer_tokens(median, spread, cos(angle) * size)
        jobs.append(Job(at, prompt, tokens, sin(angle) * size, random()))
        at -= log(1.0 - random()) / (rate * day_rate(begin + at / whole))
    return jobs
