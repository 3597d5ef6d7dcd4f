"""Helpers of the simulation's tests: small workloads of known lengths, without an estimator."""

from __future__ import annotations

from random import Random

from gateway.profiles import get_profile
from gateway.simulate.engine import SimEngine
from gateway.simulate.job import Job, Prompt, Workload
from gateway.simulate.prompts import MODEL
from gateway.simulate.speeds import Speeds
from gateway.types import NO_HINTS, Api, Estimate, Features, Task

E4B = get_profile("h200", "e4b")


def prompt(tokens: float, task: Task = Task.CHAT, input_tokens: int = 256, kind: str = "any") -> Prompt:
    features = Features(api=Api.CHAT, model=MODEL, stream=True, input_tokens=input_tokens)
    guess = Estimate(task=task, output_tokens=tokens, p50=tokens, p90=tokens, confidence=1.0, source="known")
    return Prompt(features, guess, task, kind, NO_HINTS)


def job(at: float, tokens: int, rng: Random | None = None, **more: object) -> Job:
    rng = rng or Random(0)
    return Job(at, prompt(tokens, **more), tokens, rng.gauss(0.0, 1.0), rng.random())  # type: ignore[arg-type]


def poisson(number: int, lengths: tuple[int, ...], seed: int = 1, task: Task = Task.CHAT) -> Workload:
    """Jobs of these lengths in turn by chance, at one per second on average."""
    rng, at, jobs = Random(seed), 0.0, []
    for _ in range(number):
        at += rng.expovariate(1.0)
        jobs.append(job(at, rng.choice(lengths), rng, task=task))
    return Workload(name="poisson", jobs=tuple(jobs), mixed=len(lengths) > 1)


def engine(k: int = 0, seats: int = 256, kv_tokens: int = 10**7, **more: object) -> SimEngine:
    return SimEngine("e", Speeds(E4B, k, seats, **more), seats=seats, kv_tokens=kv_tokens)  # type: ignore[arg-type]


def play(of: SimEngine, jobs: list[Job]) -> list[Job]:
    """All jobs through one engine; returns them in order of their ends."""
    done: list[Job] = []
    pending = list(jobs)
    while pending or of.busy:
        if pending and pending[0].at <= of.next_at:
            of.submit(pending[0], pending[0].at)
            pending.pop(0)
        else:
            done += of.advance()
    return done
