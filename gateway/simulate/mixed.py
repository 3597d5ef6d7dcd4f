"""Mixed traffic by kind, drawn so that the same requests can be sent to real engines and played through simulated ones.

Lengths are forced: an answer has as many tokens as its `max_tokens` says, which engines with random weights keep to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

TOKENS: Mapping[str, tuple[int, ...]] = {"short": (8,), "prose": (256, 384, 512), "code": (256, 384, 512)}
"""Lengths of answers by kind: a label, a text, a program."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: seconds after the start, its kind, the tokens of its answer."""

    at: float
    kind: str
    tokens: int


def poisson(rate: float, seconds: float, seed: int, shares: Mapping[str, float]) -> list[Arrival]:
    """Open arrivals, `rate` per second; `shares` of the kinds. The same for the same arguments."""
    rng, at, found = Random(f"{rate:g} {seconds:g} {seed}"), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        found.append(_one(at, rng, shares))
    return found


def in_order(number: int, seed: int, shares: Mapping[str, float]) -> list[Arrival]:
    """So many requests for a closed loop, which sends each when a place is free: all are due at once."""
    rng = Random(f"closed {number} {seed}")
    return [_one(0.0, rng, shares) for _ in range(number)]


def _one(at: float, rng: Random, shares: Mapping[str, float]) -> Arrival:
    kind = rng.choices(list(shares), list(shares.values()))[0]
    return Arrival(at, kind, rng.choice(TOKENS[kind]))
