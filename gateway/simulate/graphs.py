"""Which decode steps an engine replays as one CUDA graph, and what the others take.

vLLM's second model runner captures whole decode steps (FULL graphs) at its capture sizes rounded up to multiples of
k + 1 tokens, and steps with prompts in them (PIECEWISE graphs, attention launched by the host) at the sizes themselves.
Until its pull request 53407 (August 2026) a decode step took the smallest graph that was large enough, of either kind.
So with sizes between which no multiple of k + 1 lies, a batch of B with B (k + 1) just above one runs as a step with
prompts does, and takes at least as long as the host needs to launch its attention, layer by layer. That hits half of
all batch sizes at k = 2 under vLLM's own sizes and none at k = 0, 1 and 3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from gateway.profiles import Profile
from gateway.simulate.engine import Speeds

LAUNCH = 0.49e-3
"""Seconds for each layer that such a step takes at least: E4B with k = 2 took 20.3 to 21.6 ms where it ran so, and 7.7
to 8.3 ms where it did not (2,363 answers on one H200, two engines)."""
LAYERS: Mapping[str, int] = {"e2b": 35, "e4b": 42, "26b-a4b": 30, "31b": 60}


def covered(batch: int, k: int, sizes: Sequence[int], seats: int) -> bool:
    """Whether a decode step of `batch` sequences finds its FULL graph."""
    wide = k + 1
    full = {-(-size // wide) * wide for size in sizes}
    most = min(seats * wide, max(sizes))
    full = {size for size in full if size <= most}
    known = sorted(full.union(sizes))
    at = bisect_left(known, batch * wide)
    return at < len(known) and known[at] in full


class GraphSpeeds(Speeds):
    """Step times of an engine that captured graphs at `sizes` tokens."""

    def __init__(
        self, profile: Profile, k: int, seats: int, sizes: Sequence[int], *, slowdown: float = 1.0, quality: float = 1.0
    ) -> None:
        super().__init__(profile, k, seats, slowdown=slowdown, quality=quality)
        self._least = [
            0.0 if covered(batch, k, sizes, seats) else LAUNCH * LAYERS[profile.model] for batch in range(seats + 1)
        ]

    def step(self, batch: int, context: float) -> float:
        """Seconds of one step of `batch` sequences with `context` tokens each on average."""
        return max(super().step(batch, context), self._least[batch])
