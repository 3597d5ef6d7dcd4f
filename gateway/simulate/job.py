"""The types of a simulated workload: a prompt as the gateway sees it, one request, the workload."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.types import Decision, Estimate, Features, Hints, Task
from gateway.upstream.lease import Lease


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The gateway's view of a request. Jobs may share a prompt, as the users of an application do."""

    features: Features
    estimate: Estimate
    """From the gateway's estimator, before the first request."""
    task: Task
    """The actual task, which determines the acceptance rate."""
    kind: str
    """Its class in the mix, for tables."""
    hints: Hints


@dataclass(slots=True, eq=False)
class Job:
    """One request. Times are seconds of the virtual clock; `at` is its arrival."""

    at: float
    prompt: Prompt
    tokens: int
    """The answer's actual length, at least 1."""
    luck: float
    """Standard normal deviate of its acceptance, the same in every arm."""
    rounding: float
    """Uniform in 0..1, for stochastic rounding of its steps, the same in every arm."""
    thread: int = 0
    """Number of its conversation; 0 for none."""

    prompt_tokens: int = 0
    """Prompt tokens, cached ones included, as the engine counts them."""
    features: Features | None = None
    """Its own copy, if it was estimated on arrival."""
    estimate: Estimate | None = None
    lease: Lease | None = None
    decision: Decision | None = None
    """The router's decision, if a router decided."""
    steps: int = 0
    """Its total decode steps, drawn when it joins the batch."""
    growth: float = 0.0
    """Tokens per step of this request."""
    length: float = 1.0
    """Mean acceptance length of its task, which counts surplus tokens of the last step too."""
    fresh: int = 0
    """Prompt tokens still to prefill."""
    cached: int = 0
    reserved: int = 0
    """KV cache tokens reserved while it runs."""
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in order of arrival, at a mean rate of 1 per second; `at_rate` rescales the times."""

    name: str
    jobs: tuple[Job, ...] = field(repr=False)
    mixed: bool
    """Whether it mixes short and long requests, so that a length threshold matters."""
    learned: bytes = field(default=b"", repr=False)
    """The estimator's snapshot before the first request, from which each arm continues to learn. Without one the
    prompts' estimates are used throughout."""

    def at_rate(self, rate: float) -> list[Job]:
        """New copies of the jobs, at a mean rate of `rate` per second."""
        return [
            Job(job.at / rate, job.prompt, job.tokens, job.luck, job.rounding, job.thread) for job in self.jobs
        ]  # fmt: skip
