"""Expected seconds of one request in one pool, from the pool's speed profile and its load now.

    T(pool) = wait + TTFT(input tokens, running + 1) + (E[min(N, cap)] - 1) * TPOT(task, running + 1)

`running` is per endpoint of the pool, since a batch is one engine's. The first token comes with TTFT, so the rest
are one fewer. Costs are times, so that every term can be explained and compared with what the outcome measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.policy.schema import Model, Pool
from gateway.profiles import Profile, match_profile
from gateway.types import Estimate, Features, PoolLoad

DEFAULT_HARDWARE = "g4-slice"


@dataclass(frozen=True, slots=True)
class PoolSpeed:
    """How fast one pool serves one model: a profile and the number of drafted tokens."""

    profile: Profile
    k: int

    def seconds(self, features: Features, estimate: Estimate, load: PoolLoad) -> float:
        """Expected time from sending to the last token, in seconds."""
        running = load.in_flight // load.up + 1 if load.up else 1
        wait = load.waiting * self.profile.ttft(features.input_tokens, running, self.k)
        first = self.profile.ttft(features.input_tokens, running, self.k)
        following = max(estimate.output_tokens - 1.0, 0.0)
        return wait + first + following * self.profile.tpot(estimate.task, running, self.k)


def pool_speed(model: Model, pool: Pool) -> PoolSpeed:
    """The starting speed of a pool, from the policy's profile name and the model's name or architecture."""
    hardware = pool.profile or DEFAULT_HARDWARE
    profile = match_profile(hardware, model.name, model.architecture)
    return PoolSpeed(profile, pool.speculative.tokens if pool.speculative else 0)
