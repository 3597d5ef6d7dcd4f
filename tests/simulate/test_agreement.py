"""Simulated servers, simulations and policy defaults stand on the same speeds, so what one shows the others do."""

from __future__ import annotations

from random import Random

import pytest

from gateway import demo
from gateway.policy.load import parse_policy
from gateway.profiles import DEFAULT_HARDWARE, builtin_catalog, get_profile
from gateway.routing.router import Router
from gateway.sim.engine import Engine, EngineSettings
from gateway.sim.sequence import Ask
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from gateway.simulate.arms import ARMS, MTP, PLAIN
from gateway.simulate.hardware import MACHINES, MODELS
from gateway.simulate.job import Job
from gateway.simulate.planning import PLAN_MODEL, PLAN_PROFILE
from gateway.simulate.run import make_engine
from gateway.types import Task
from tests.simulate.worlds import play, prompt

FLEET = next(arm for arm in ARMS if arm.name == "fleet")
EVERY = [(hardware, model, k) for hardware in MACHINES for model in MODELS for k in (0, 2)]
SMALLEST = """
version: 1
pools:
  plain: {{endpoints: ["http://127.0.0.1:9001"]{profile}}}
  mtp: {{endpoints: ["http://127.0.0.1:9002"], speculative: {{method: mtp, tokens: 2}}{profile}}}
models: {{gemma-4-{model}: {{pools: [plain, mtp]}}}}
"""


def router(model: str, profile: str = "") -> Router:
    """Of the smallest policy; `profile` is what it names, nothing where it names none."""
    return Router(
        parse_policy(SMALLEST.format(model=model, profile=f", profile: {profile}" if profile else ""), "p", {})
    )


def test_what_nobody_names_is_the_same_hardware_everywhere() -> None:
    """A policy, a simulated server and a plan without a profile mean the same one."""
    curves = list(router("e4b").state.curves)

    assert len(curves) == 2
    assert all(curve.profile is get_profile(DEFAULT_HARDWARE, "e4b") for curve in curves)
    assert SimSettings().profile == PLAN_PROFILE == DEFAULT_HARDWARE
    assert create_app(SimSettings()).profile is get_profile(DEFAULT_HARDWARE, PLAN_MODEL)


def test_every_hardware_can_be_simulated_served_and_routed() -> None:
    """No list of names of its own anywhere."""
    assert set(MACHINES) == set(builtin_catalog().hardware())
    assert demo.HARDWARE in MACHINES
    for hardware in MACHINES:
        assert set(MODELS) <= set(builtin_catalog().models(hardware))


@pytest.mark.parametrize(("hardware", "model", "k"), EVERY)
def test_all_three_stand_on_one_profile(hardware: str, model: str, k: int) -> None:
    """The very same object: server, simulation, and the curve that routing starts from."""
    served = create_app(SimSettings(model=f"google/gemma-4-{model}-it", profile=hardware, k=k)).profile
    kind = MTP if k else PLAIN
    played = make_engine("e", get_profile(hardware, model), MACHINES[hardware], kind, FLEET).speeds.profile
    curve = router(model, hardware).state.curves.get(kind, f"gemma-4-{model}")

    assert curve is not None
    assert served is played is curve.profile


@pytest.mark.parametrize(("hardware", "model", "k"), EVERY)
def test_a_lone_answer_takes_as_long_in_all_three(hardware: str, model: str, k: int) -> None:
    """300 tokens of prose after a prompt of 256, over many draws of luck where drafts have it: within 4 %."""
    profile, number, tokens = get_profile(hardware, model), 30 if k else 1, 300
    stepped = sum(_stepped(hardware, model, k, tokens, seed) for seed in range(number)) / number
    rng, played = Random(3), 0.0
    for _ in range(number):
        of = make_engine("e", profile, MACHINES[hardware], MTP if k else PLAIN, FLEET)
        (done,) = play(of, [Job(0.0, prompt(tokens), tokens, rng.gauss(0.0, 1.0), rng.random())])
        played += done.ended / number
    curve = router(model, hardware).state.curves.get(MTP if k else PLAIN, f"gemma-4-{model}")
    assert curve is not None

    assert played == pytest.approx(stepped, rel=0.04)
    assert curve.seconds(tokens, Task.CHAT, 256, 0) == pytest.approx(stepped, rel=0.04)


def _stepped(hardware: str, model: str, k: int, tokens: int, seed: int) -> float:
    """Seconds of one answer in the engine that `gateway sim` serves."""
    engine = Engine(get_profile(hardware, model), EngineSettings(k=k, prefix_caching=False))
    sequence = engine.submit(Ask(prompt_tokens=256, output_tokens=tokens, task=Task.CHAT, seed=seed), 0.0)
    now = 0.0
    while (step := engine.step(now)) is not None:
        now = step[0]
    assert sequence.ended is not None
    return sequence.ended
