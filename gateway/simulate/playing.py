"""Load generators for one simulated engine that match the validated measurements: a wave of simultaneous requests, or
a closed loop."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from gateway.profiles import Profile
from gateway.simulate.engine import SimEngine
from gateway.simulate.job import Job, Prompt
from gateway.simulate.prompts import MODEL
from gateway.simulate.speeds import Speeds
from gateway.types import NO_HINTS, Api, Estimate, Features, Task

SEATS, KV_TOKENS = 256, 10**7
ROUNDS = 6
"""Requests per client of a closed loop, of which the first is not counted."""
LONE = 24
"""Requests of a loop with a single client: more, to average over acceptance."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Identical requests: task, prompt tokens, answer tokens."""

    task: Task
    prompt: int
    answer: int

    def jobs(self, number: int, seed: int) -> list[Job]:
        """`number` jobs, all due at time 0."""
        n = float(self.answer)
        features = Features(api=Api.CHAT, model=MODEL, stream=True, input_tokens=self.prompt)
        estimate = Estimate(task=self.task, output_tokens=n, p50=n, p90=n, confidence=1.0, source="known")
        prompt, rng = Prompt(features, estimate, self.task, "alike", NO_HINTS), Random(seed)
        return [Job(0.0, prompt, self.answer, rng.gauss(0.0, 1.0), rng.random()) for _ in range(number)]


def engine(profile: Profile, k: int) -> SimEngine:
    """An engine with enough seats and KV cache for everything here."""
    return SimEngine(f"k={k}", Speeds(profile, k, SEATS), seats=SEATS, kv_tokens=KV_TOKENS)


def wave(profile: Profile, k: int, shape: Shape, streams: int, seed: int = 1) -> list[Job]:
    """`streams` requests that start at once; returns them when all have ended."""
    return closed(profile, k, shape, streams, streams, seed)


def closed(profile: Profile, k: int, shape: Shape, streams: int, number: int, seed: int = 1) -> list[Job]:
    """`number` requests in order, with `streams` of them in flight."""
    of, jobs = engine(profile, k), shape.jobs(number, seed)
    left = iter(jobs)

    def start(now: float) -> None:
        if (job := next(left, None)) is not None:
            job.at = job.sent = now
            of.submit(job, now)

    for _ in range(streams):
        start(0.0)
    while of.busy:
        now = of.next_at
        for _ in of.advance():
            start(now)
    return jobs


def steady(profile: Profile, k: int, shape: Shape, streams: int, seed: int = 1) -> list[Job]:
    """The requests of a closed loop after its first round."""
    rounds = LONE if streams == 1 else ROUNDS
    return closed(profile, k, shape, streams, streams * rounds, seed)[streams:]


def mean_time(jobs: list[Job]) -> float:
    """Mean seconds of a whole request."""
    return sum(job.ended - job.at for job in jobs) / len(jobs)


def mean_tpot(jobs: list[Job]) -> float:
    """Mean TPOT in seconds, for answers of two or more tokens."""
    return sum((job.ended - job.first) / (job.tokens - 1) for job in jobs) / len(jobs)
