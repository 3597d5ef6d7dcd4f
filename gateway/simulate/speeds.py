"""Step times and acceptance of one simulated engine, as tables made from a speed profile."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.profiles import Profile
from gateway.types import Task

TABLE_TAX = (0.066, 0.15 / 187)
"""Relative cost of K = 0 in a drafting engine over a plain engine, at batch 2 and per further stream, since the drafter
still runs once per step. Measured on an H100: 6.6 % at 2 streams, 21.6 % at 189."""
MOST_TAX = 0.216


class Speeds:
    """Step times and acceptance of one engine, as tables. `k_by_batch` is vLLM's table of K by batch size."""

    def __init__(
        self, profile: Profile, k: int, seats: int, *, slowdown: float = 1.0, quality: float = 1.0,
        k_by_batch: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        self.profile = profile
        self.k = k
        self.slowdown = slowdown
        self.quality = quality
        """Factor on the profile's acceptance rates, to model a profile that is wrong."""
        self.k_at = [_k_of(batch, k, k_by_batch) for batch in range(seats + 1)]
        self._context, self._mtp_context = profile.decode.context, profile.decode.mtp_context
        self._seen = profile.attention.seen
        self.prompt = profile.prompt_seconds
        self._least_stall = profile.stall_seconds(0.0, k)
        self.varies = len(set(self.k_at)) > 1
        self._base = [self._zero_context(batch) for batch in range(seats + 1)]
        self._extra = [slowdown * self._per_context(batch) for batch in range(seats + 1)]
        self._moments: dict[tuple[Task, int], tuple[float, float]] = {}

    def step(self, batch: int, context: float) -> float:
        """Seconds of one decode step of `batch` sequences with a mean context of `context` tokens."""
        return self._base[batch] + self._extra[batch] * (self._seen(context) / 1e6)

    def prefill(self, prompts: float, *, pause: bool) -> float:
        """Seconds of a step with prompts only, which take `prompts`; `pause`: the engine was idle before it."""
        return self.slowdown * self.profile.prompt_step_seconds(prompts, self.k, pause=pause)

    def stall(self, prompts: float) -> float:
        """Seconds that prompts add to a batch's step."""
        return self.slowdown * (prompts if prompts > self._least_stall else self._least_stall)

    def moments(self, task: Task, k: int) -> tuple[float, float]:
        """Mean and variance of the tokens per decode step."""
        found = self._moments.get((task, k))
        if found is None:
            rates = [min(rate * self.quality, 1.0) for rate in self.profile.acceptance(task, k)]
            mean = sum(rates)
            square = sum((2 * at + 1) * rate for at, rate in enumerate(rates))
            found = self._moments[task, k] = (1.0 + mean, max(square - mean * mean, 0.0))
        return found

    def set_quality(self, quality: float) -> None:
        """Changes the acceptance, as with another drafter; call `SimEngine.retune` afterwards."""
        self.quality = quality
        self._moments.clear()

    def _per_context(self, batch: int) -> float:
        """Nanoseconds of a step per token of mean context, apart from the slowdown."""
        return self._context * batch + (self._mtp_context if self.k_at[batch] else 0.0)

    def _zero_context(self, batch: int) -> float:
        k = self.k_at[batch]
        seconds = self.slowdown * self.profile.step_seconds(batch, k, 0.0)
        if self.k and not k:
            seconds *= 1.0 + min(TABLE_TAX[0] + TABLE_TAX[1] * max(batch - 2, 0), MOST_TAX)
        return seconds


def _k_of(batch: int, k: int, table: Sequence[tuple[int, int]]) -> int:
    """The K of the first row whose batch size is not exceeded, else of the last row."""
    for most, chosen in table:
        if batch <= most:
            return min(chosen, k)
    return min(table[-1][1], k) if table else k
