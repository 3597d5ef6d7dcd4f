"""One request of a simulated workload: what the gateway sees of it, and what only the engine knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.types import Decision, Estimate, Features, Hints, Task
from gateway.upstream.lease import Lease


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What the gateway sees. Many jobs may share one, as an application's users share its prompts."""

    features: Features
    estimate: Estimate
    """By the gateway's own estimator, before the first request."""
    task: Task
    """The real one, which decides how well drafts are accepted."""
    kind: str
    """The class of the mix that it comes from, for tables."""
    hints: Hints


@dataclass(slots=True, eq=False)
class Job:
    """One request. Times are seconds of the virtual clock."""

    at: float
    prompt: Prompt
    tokens: int
    """The answer's real length, at least 1."""
    luck: float
    """Standard normal: how lucky its drafts are, alike in every arm."""
    rounding: float
    """0..1, likewise."""
    thread: int = 0
    """The conversation; 0 is none."""

    prompt_tokens: int = 0
    """In all, as the engine counts them."""
    features: Features | None = None
    """Its own, where it was estimated as it came."""
    estimate: Estimate | None = None
    lease: Lease | None = None
    decision: Decision | None = None
    """The router's, where one decides."""
    steps: int = 0
    """Decode steps that it takes in all, once that is known."""
    growth: float = 0.0
    """Tokens per step of this request."""
    length: float = 1.0
    """And of its task in general, the unused ones of its last step included."""
    fresh: int = 0
    """Prompt tokens still to compute."""
    cached: int = 0
    reserved: int = 0
    """Tokens of cache that it holds while it runs."""
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in order of arrival, with times at rate 1 per second; a cell stretches them to its load."""

    name: str
    jobs: tuple[Job, ...] = field(repr=False)
    mixed: bool
    """Whether short and long requests are mixed, so that a threshold has something to decide."""
    learned: bytes = field(default=b"", repr=False)
    """The estimator's snapshot before the first request, from which each arm goes on learning; with none the prompts'
    estimates count for all of the run."""

    def at_rate(self, rate: float) -> list[Job]:
        """Fresh copies of the jobs, `rate` per second on average."""
        return [
            Job(job.at / rate, job.prompt, job.tokens, job.luck, job.rounding, job.thread) for job in self.jobs
        ]  # fmt: skip
