"""Step times of an engine that replays only some decode steps as one CUDA graph.

vLLM's model runner V2 captures decode steps (FULL graphs) at its capture sizes rounded up to multiples of k + 1 tokens,
and mixed steps with prompts (PIECEWISE graphs, attention launched by the host) at the sizes themselves. Until pull
request 53407 (August 2026) a decode step used the smallest large enough graph of either kind. If a PIECEWISE size lies
between B (k + 1) and the next FULL size, a batch of B runs as PIECEWISE, and its step takes at least as long as the
host needs to launch the attention of every layer. With vLLM's default sizes that affects half of all batch sizes at
k = 2 and none at k = 0, 1 and 3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from gateway.profiles import Profile
from gateway.simulate.speeds import Speeds

LAUNCH = 0.49e-3
"""Least seconds per layer of a PIECEWISE decode step: E4B with k = 2 took 20.3 to 21.6 ms PIECEWISE and 7.7 to 8.3 ms
FULL (2,363 answers on one H200, two engines)."""
LAYERS: Mapping[str, int] = {"e2b": 35, "e4b": 42, "26b-a4b": 30, "31b": 60}


def covered(batch: int, k: int, sizes: Sequence[int], seats: int) -> bool:
    """Whether a decode step of `batch` sequences runs as a FULL graph."""
    wide = k + 1
    full = {-(-size // wide) * wide for size in sizes}
    most = min(seats * wide, max(sizes))
    full = {size for size in full if size <= most}
    known = sorted(full.union(sizes))
    at = bisect_left(known, batch * wide)
    return at < len(known) and known[at] in full


class GraphSpeeds(Speeds):
    """Step times of an engine with CUDA graphs captured at `sizes` tokens."""

    def __init__(
        self, profile: Profile, k: int, seats: int, sizes: Sequence[int], *, slowdown: float = 1.0, quality: float = 1.0
    ) -> None:
        super().__init__(profile, k, seats, slowdown=slowdown, quality=quality)
        self._least = [
            0.0 if covered(batch, k, sizes, seats) else LAUNCH * LAYERS[profile.model] for batch in range(seats + 1)
        ]

    def step(self, batch: int, context: float) -> float:
        """Seconds of one decode step of `batch` sequences with a mean context of `context` tokens."""
        return max(super().step(batch, context), self._least[batch])
