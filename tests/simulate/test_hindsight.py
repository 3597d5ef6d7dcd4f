"""Against every rule of a kind, the best of which only hindsight knows: what a fleet of one engine each can do."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from gateway.simulate.arms import MTP, PLAIN, ArmSpec, make_arm, make_policy
from gateway.simulate.engine import SimEngine
from gateway.simulate.job import Job
from gateway.simulate.speeds import Speeds
from gateway.simulate.world import Arm, Clock, World
from gateway.types import LoadView
from tests.simulate.worlds import E4B, poisson

SEATS = 128
JOBS = poisson(400, (8, 256, 384, 512), seed=5)


class Shorter:
    """The drafting engine where it has so many times the plain one's requests at most; by the request's length."""

    def __init__(self, short: float, long: float) -> None:
        self._weights = (short, long)

    def decide(self, job: Job, view: LoadView) -> tuple[str, ...]:
        plain, mtp = view.load(PLAIN).in_flight, view.load(MTP).in_flight
        drafts = mtp + 1 <= self._weights[job.tokens > 8] * (plain + 1)
        return (MTP, PLAIN) if drafts else (PLAIN, MTP)

    def observe(self, job: Job, endpoint: str) -> None:
        """Nothing to learn."""

    def accept(self, pool: str, length: float) -> None:
        """Nothing to learn."""


def mean(rate: float, slower: float, arm: Arm | None = None, kinds: tuple[str, str] = (PLAIN, MTP)) -> float:
    """Mean seconds of a request; `slower`: how many times longer the drafting engine's steps are than its profile's."""
    clock, rng = Clock(), Random(3)
    pools = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    spec = ArmSpec("fleet") if len(pools) == 2 else ArmSpec("one", decider="fixed", pools=kinds[:1])
    policy = make_policy("h200/e4b", 2, pools, SEATS, spec)
    engines = {
        f"http://{kind}-{at}": SimEngine(
            kind,
            Speeds(E4B, 2 if kind == MTP else 0, SEATS, slowdown=slower if kind == MTP else 1.0),
            seats=SEATS,
            kv_tokens=10**6,
        )
        for kind, number in pools.items()
        for at in range(number)
    }
    world = World(policy, engines, clock, rng)
    jobs = JOBS.at_rate(rate)
    world.run(jobs, arm or make_arm(spec, policy, clock, world.pools, rng))
    counted = jobs[len(jobs) // 5 :]
    return sum(job.ended - job.at for job in counted) / len(counted)


@pytest.mark.parametrize(("rate", "slower"), [(8.0, 1.6), (20.0, 1.6), (20.0, 2.5)])
def test_an_engine_that_is_slower_at_every_load_costs_what_it_must(rate: float, slower: float) -> None:
    """Where drafting pays nowhere, two plain engines win over one of each whoever routes; the default, which starts
    from a profile that says the opposite, is within 4 % of the best of 36 rules with hindsight."""
    best = min(
        mean(rate, slower, Shorter(short, long))
        for short, long in product((0.0, 0.3, 0.6, 1.0, 99.0), (0.0, 0.2, 0.4, 0.6, 1.0, 99.0))
    )

    assert mean(rate, slower, kinds=(PLAIN, PLAIN)) < best
    assert mean(rate, slower) < 1.04 * best
