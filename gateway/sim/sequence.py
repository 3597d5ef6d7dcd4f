"""One answer on its way through the simulated engine: what was asked for, and how far it is."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from random import Random

from gateway.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What the engine needs to know of a request. It never sees text: the answer is planned beforehand."""

    prompt_tokens: int
    output_tokens: int
    """The answer's exact length, at least 1."""
    task: Task
    finish: str = "stop"
    """What ends it, `stop` or `length`: a label of `vllm:request_success_total`."""
    block_hashes: tuple[int, ...] = ()
    """Chained hashes of the prompt's full blocks, for the prefix cache."""
    seed: int = 0
    max_tokens: int | None = None
    """The request's own cap, for the metrics."""
    n: int = 1


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one answer. Times are seconds of the engine's clock; None until they happen."""

    ask: Ask
    arrived: float
    rng: Random
    draft_rates: tuple[float, ...]
    """Unconditional acceptance by position, falling; empty without a drafter."""
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    finish: str | None = None
    """`stop`, `length` or `abort` once it is over."""
    prefilled: int = 0
    """Tokens whose keys and values are computed, cached ones included."""
    generated: int = 0
    cached: int = 0
    blocks: int = 0
    preemptions: int = 0
    draft_steps: int = 0
    draft_tokens: int = 0
    accepted_by_step: list[int] = field(default_factory=list)
    thresholds: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Rising, so that one bisect with one draw tells how many drafts in a row are accepted.
        self.thresholds = tuple(1.0 - rate for rate in self.draft_rates)

    @property
    def context(self) -> int:
        return self.ask.prompt_tokens + self.generated

    @property
    def to_prefill(self) -> int:
        """Tokens still to compute before the next one can be generated; a preempted answer starts over."""
        return self.context - self.prefilled

    @property
    def done(self) -> bool:
        return self.finish is not None

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_by_step)

    def verify(self, drift: float) -> int:
        """Draws how many of a step's drafts are accepted. `drift` scales every rate; 1 leaves the profile's."""
        draw = self.rng.random()
        if drift == 1.0:
            return bisect_right(self.thresholds, draw)
        return sum(draw >= 1.0 - rate * drift for rate in self.draft_rates)
