"""Workloads: mixes of prompt classes with Poisson or bursty arrivals, agents' growing conversations, traces, a day.

All are seeded and identical for every arm of a cell. Arrival times are in units of the mean gap; `Workload.at_rate`
rescales them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from gateway.simulate.job import Job, Prompt, Workload
from gateway.simulate.prompts import MODEL, Estimates, answer_tokens, chooser, make_prompts, teach
from gateway.types import NO_HINTS, Api, Features, Task

PROMPTS = 120
"""Different prompts per class."""
MakeEstimator = Callable[[], Estimates]


@dataclass(frozen=True, slots=True)
class MixSpec:
    """A mix of classes. `burst` is the rate in busy times / in quiet times; 1 is a Poisson process."""

    shares: Mapping[str, float]
    mixed: bool
    burst: float = 1.0


MIXES: Mapping[str, MixSpec] = {
    "classification": MixSpec({"label": 1.0}, mixed=False),
    "long": MixSpec({"long": 1.0}, mixed=False),
    "half": MixSpec({"label": 0.5, "long": 0.5}, mixed=True),
    "varied": MixSpec({"label": 0.4, "answer": 0.4, "long": 0.2}, mixed=True),
    "japanese": MixSpec({"label-ja": 0.4, "answer-ja": 0.4, "long-ja": 0.2}, mixed=True),
    "burst": MixSpec({"label": 0.5, "answer": 0.2, "long": 0.3}, mixed=True, burst=6.0),
}
TRACES: Mapping[str, tuple[str, Task]] = {
    "azure-conversation": ("azure2023_conversation.csv", Task.CHAT),
    "azure-code": ("azure2023_code.csv", Task.CODE),
    "mooncake": ("mooncake_conversation.csv", Task.CHAT),
}
LONGEST_PROMPT = 32_000


def mix(name: str, number: int, make_estimator: MakeEstimator, seed: int = 1) -> Workload:
    """A workload from one of `MIXES`."""
    return mixed(name, MIXES[name], number, make_estimator, seed)


def mixed(name: str, spec: MixSpec, number: int, make_estimator: MakeEstimator, seed: int = 1) -> Workload:
    """A workload from any mix of classes."""
    rng, estimator = Random(f"{name} {seed}"), make_estimator()
    prompts = {kind: make_prompts(kind, PROMPTS, estimator, rng) for kind in spec.shares}
    draw, at, jobs = chooser(spec.shares), 0.0, []
    for index in range(number):
        prompt, median, spread = rng.choice(prompts[draw(rng)])
        jobs.append(_job(at, prompt, answer_tokens(median, spread, rng.gauss(0.0, 1.0)), rng))
        at += rng.expovariate(_busy(index / number, spec.burst))
    return Workload(name=name, jobs=tuple(jobs), mixed=spec.mixed, learned=estimator.snapshot())


def agent(number: int, make_estimator: MakeEstimator, seed: int = 1, at_once: int = 40) -> Workload:
    """Coding agents: conversations of up to 24 turns, each of which adds a tool result, from 1,000 to 20,000 tokens.

    `at_once` conversations run concurrently, so the turns of one are that many mean gaps apart.
    """
    rng, estimator = Random(f"agent {seed}"), make_estimator()
    prompts = make_prompts("agent", PROMPTS, estimator, rng)
    jobs: list[Job] = []
    thread = 0
    open_ones: list[tuple[int, int, int, int]] = []
    at = 0.0
    while len(jobs) < number:
        at += rng.expovariate(1.0)
        if len(open_ones) < at_once:
            thread += 1
            open_ones.append((thread, rng.randrange(900, 1500), rng.randrange(4, 24), 0))
        which = rng.randrange(len(open_ones))
        key, context, turns, had = open_ones[which]
        prompt, median, spread = rng.choice(prompts)
        tokens = answer_tokens(median, spread, rng.gauss(0.0, 1.0))
        features = replace(
            prompt.features, input_tokens=context, turns=2 + 2 * had, thread_key=key, after_tool=had > 0
        )  # fmt: skip
        jobs.append(_job(at, replace(prompt, features=features), tokens, rng, key))
        context += tokens + rng.randrange(100, 1500)
        open_ones[which] = (key, context, turns - 1, had + 1)
        if turns <= 1 or context > 20_000:
            open_ones.pop(which)
    return Workload(name="agent", jobs=tuple(jobs), mixed=True, learned=estimator.snapshot())


def read_trace(name: str, folder: Path, number: int) -> list[tuple[float, int, int]]:
    """The first rows of a trace's file: time, prompt tokens, answer's tokens. Raises ValueError that names the file."""
    file = folder / TRACES[name][0]
    try:
        with file.open(newline="") as lines:
            rows = [
                (float(row["t_s"]), min(int(row["input_tokens"]), LONGEST_PROMPT), max(int(row["output_tokens"]), 1))
                for row, _ in zip(csv.DictReader(lines), range(number), strict=False)
            ]
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, csv.Error):
        raise ValueError(f"{file}: expected rows of numbers under t_s, input_tokens and output_tokens") from None
    if not rows:
        raise ValueError(f"{file}: holds no requests")
    return rows


def trace(name: str, folder: Path, number: int, make_estimator: MakeEstimator) -> Workload:
    """The first `number` rows of a trace after those that warm the estimator. Raises ValueError, see `read_trace`."""
    task = TRACES[name][1]
    estimator, rng = make_estimator(), Random(name)
    rows = read_trace(name, folder, 2 * number)
    for _, prompt_tokens, tokens in rows[: min(number, 500)]:
        teach(estimator, _bare(prompt_tokens, task), task, tokens)
    rows = rows[-number:]
    begin, gap = rows[0][0], (rows[-1][0] - rows[0][0]) / max(len(rows) - 1, 1)
    jobs = []
    for at, prompt_tokens, tokens in rows:
        features = _bare(prompt_tokens, task)
        prompt = Prompt(features, estimator.estimate(features), task, name, NO_HINTS)
        # Trace times are whole seconds: spread the requests of one second over it.
        jobs.append(_job((at - begin) / gap + rng.random(), prompt, tokens, rng))
    jobs.sort(key=lambda job: job.at)
    return Workload(name=name, jobs=tuple(jobs), mixed=True, learned=estimator.snapshot())


def day(number: int, make_estimator: MakeEstimator, seed: int = 1) -> Workload:
    """A day in `number` requests: a quiet night, a busy noon, and one burst at four times the mean rate."""
    spec, rng = MIXES["varied"], Random(f"day {seed}")
    estimator = make_estimator()
    prompts = {kind: make_prompts(kind, PROMPTS, estimator, rng) for kind in spec.shares}
    draw, at, jobs = chooser(spec.shares), 0.0, []
    for _ in range(number):
        prompt, median, spread = rng.choice(prompts[draw(rng)])
        jobs.append(_job(at, prompt, answer_tokens(median, spread, rng.gauss(0.0, 1.0)), rng))
        at += rng.expovariate(day_rate(at / number))
    return Workload(name="day", jobs=tuple(jobs), mixed=True, learned=estimator.snapshot())


def day_rate(part: float) -> float:
    """Rate at `part` of the day (0..1) / the day's mean rate."""
    base = 0.95 - 0.6 * math.cos(2 * math.pi * part)
    return base * (3.0 if 0.62 < part < 0.64 else 1.0)


def _busy(part: float, burst: float) -> float:
    """Rate at `part` / the mean rate, with ten bursts that take a fifth of the time."""
    if burst == 1.0:
        return 1.0
    quiet = 1.0 / (0.8 + 0.2 * burst)
    return burst * quiet if part * 10 % 1.0 < 0.2 * burst * quiet else quiet


def _bare(input_tokens: int, task: Task) -> Features:
    """Features of a trace's request: only its length and the service's task are known."""
    return Features(
        api=Api.CHAT,
        model=MODEL,
        stream=True,
        input_tokens=input_tokens,
        ask_tokens=input_tokens,
        turns=1,
        task_scores=((task, 0.6),),
        system_key=len(task) + 1,
        shape_key=len(task) + 1,
    )


def _job(at: float, prompt: Prompt, tokens: int, rng: Random, thread: int = 0) -> Job:
    return Job(at, prompt, tokens, rng.gauss(0.0, 1.0), rng.random(), thread)
