"""Seeded mixed traffic that can be sent to real engines and played through simulated ones alike.

Lengths are forced: an answer has exactly `max_tokens` tokens, also on engines with random weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

TOKENS: Mapping[str, tuple[int, ...]] = {"short": (8,), "prose": (256, 384, 512), "code": (256, 384, 512)}
"""Answer lengths in tokens by kind: a label, a text, a program."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: seconds after the start, kind, answer length in tokens."""

    at: float
    kind: str
    tokens: int


def poisson(rate: float, seconds: float, seed: int, shares: Mapping[str, float]) -> list[Arrival]:
    """Poisson arrivals, `rate` per second, with the given shares of kinds. Deterministic."""
    rng, at, found = Random(f"{rate:g} {seconds:g} {seed}"), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        found.append(_one(at, rng, shares))
    return found


def in_order(number: int, seed: int, shares: Mapping[str, float]) -> list[Arrival]:
    """`number` requests for a closed loop, all due at time 0."""
    rng = Random(f"closed {number} {seed}")
    return [_one(0.0, rng, shares) for _ in range(number)]


def _one(at: float, rng: Random, shares: Mapping[str, float]) -> Arrival:
    kind = rng.choices(list(shares), list(shares.values()))[0]
    return Arrival(at, kind, rng.choice(TOKENS[kind]))
