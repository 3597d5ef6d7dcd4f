"""What arms expect of requests, and the order in which theirs wait."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gateway.estimate.estimator import Estimator
from gateway.simulate.arms import ARMS, ArmSpec
from gateway.simulate.job import Job, Prompt, Workload
from gateway.simulate.prompts import MODEL
from gateway.simulate.run import Cell, run
from gateway.types import NO_HINTS, Api, Estimate, Features, Task

GUESS = Estimate(task=Task.CHAT, output_tokens=150.0, p50=150.0, p90=600.0, confidence=0.3, source="prior")


def _features(number: int) -> Features:
    return Features(api=Api.CHAT, model=MODEL, stream=True, input_tokens=256, template_key=number + 1)


def arm(name: str) -> ArmSpec:
    return next(one for one in ARMS if one.name == name)


def known(number: int, jobs: int = 600) -> Workload:
    """Prompts of two lengths that the estimator cannot tell apart before it has seen their answers."""
    rng, features = Random(1), [_features(at) for at in range(number)]
    prompts = [Prompt(one, GUESS, Task.CHAT, "any", NO_HINTS) for one in features]
    draws = [rng.randrange(number) for _ in range(jobs)]
    played = tuple(
        Job(0.05 * at, prompts[which], 20 if which % 2 else 600, rng.gauss(0.0, 1.0), rng.random())
        for at, which in enumerate(draws)
    )
    return Workload(name="known", jobs=played, mixed=True, learned=Estimator().snapshot())


def test_an_arm_learns_the_lengths_of_prompts_while_it_plays() -> None:
    """As the gateway does: in overload the queue of an arm that learns is shorter, and every run starts anew."""
    learning = known(6)
    one = Cell(workload=learning, profile="g4-slice", model="e4b", load=1.0)
    frozen = replace(one, workload=replace(learning, learned=b""))
    means = [run(cell, arm("fleet"), 1.0).mean for cell in (one, frozen, one)]

    assert means[0] < 0.95 * means[1]
    assert means[0] == means[2]


def test_the_oracle_of_routing_queues_by_the_estimate() -> None:
    """Alike as long as nobody waits; in overload between the default and the oracle that knows all."""
    workload = known(6)
    busy = Cell(workload=workload, profile="g4-slice", model="e4b", load=1.0)
    oracle, routing = (run(busy, arm(name), 1.0).mean for name in ("oracle", "oracle_routing"))

    assert oracle < 0.95 * routing
    quiet = [run(busy, arm(name), 0.01).mean for name in ("oracle", "oracle_routing")]
    assert quiet[0] == pytest.approx(quiet[1], rel=0.02)


def test_every_arms_queue_goes_by_the_gateways_estimates() -> None:
    """A rule that knows no lengths says where requests go; the order in which they wait is the gateway's."""
    busy = Cell(workload=known(6), profile="g4-slice", model="e4b", load=1.0)
    for name in ("fleet", "all_mtp", "plain_pool", "random", "bins"):
        fair, by_arrival = (run(busy, replace(arm(name), by_arrival=order), 1.0) for order in (False, True))

        assert fair.mean < 0.95 * by_arrival.mean, name

    assert run(busy, arm("arrival"), 1.0) == run(busy, replace(arm("fleet"), by_arrival=True), 1.0)
