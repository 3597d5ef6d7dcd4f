"""The decision: who gets which request, in what order the reasons count, and what never happens."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import NothingAvailable
from gateway.policy.schema import AccessKey
from gateway.types import Hints, Need, PoolLoad, Reason, Result, Task
from tests.routing.worlds import Bench, estimate, known, policy, request

ARCHITECTURES = [("gemma-4-e4b", "dense"), ("gemma-4-26b", "moe"), ("gemma-4-31b", "dense")]
URGENT = AccessKey(name="urgent", sha256=b"x", priority=1)


@pytest.mark.parametrize("objective", ["expected_time", "fleet", "static"])
@pytest.mark.parametrize(("model", "architecture"), ARCHITECTURES)
def test_the_smallest_policy_sends_labels_to_plain_and_essays_to_mtp(
    model: str, architecture: str, objective: str
) -> None:
    """On idle pools, before anything is measured, the published rule holds, dense or mixture of experts."""
    bench = Bench(policy(model=model, architecture=architecture, routing=f"objective: {objective}"))

    for tokens in (1, 2, 4):
        assert bench.route(request(), estimate(tokens, Task.CLASSIFICATION)).pool == "plain"
    for tokens in (300, 600, 1200):
        assert bench.route(request(), estimate(tokens, Task.LONG_FORM)).pool == "mtp"
    assert bench.route(request(), estimate(200, Task.CODE)).pool == "mtp"


def test_dense_leaves_mtp_under_load_and_a_mixture_of_experts_comes() -> None:
    """Prose on a dense model does not pay in large batches; on a mixture of experts it pays only there."""
    prose = estimate(400)
    dense, moe = Bench(policy(profile="h200")), Bench(policy(model="gemma-4-26b", architecture="moe", profile="h200"))
    for bench in (dense, moe):
        known(bench)
    crowd = {"plain": PoolLoad(up=1, in_flight=240), "mtp": PoolLoad(up=1, in_flight=240)}
    dense.loads.by_pool = crowd

    assert dense.route(request(), prose).pool == "plain"
    assert moe.route(request(), prose).pool == "plain"

    moe.loads.by_pool = {name: PoolLoad(up=1, in_flight=64) for name in crowd}
    assert moe.route(request(), prose).pool == "mtp"


def test_load_is_counted_per_endpoint() -> None:
    """A pool of eight with sixteen running is as busy as one with two."""
    bench = Bench(policy())
    bench.loads.by_pool = {"plain": PoolLoad(up=8, in_flight=16), "mtp": PoolLoad(up=1, in_flight=16)}
    costs = {cost.pool: cost for cost in bench.route(request(), estimate(200)).costs}

    assert costs["plain"].terms is not None
    assert costs["plain"].terms.running == 2.0


def test_fleet_spares_those_who_run() -> None:
    """A short request that both pools answer alike goes where its prefill stalls nobody."""
    busy = {"plain": PoolLoad(up=1, in_flight=0), "mtp": PoolLoad(up=1, in_flight=30)}
    fleet, selfish = Bench(policy(routing="objective: fleet")), Bench(policy(routing="objective: expected_time"))
    fleet.loads.by_pool = selfish.loads.by_pool = busy
    decision = fleet.route(request(input_tokens=4000), estimate(30))

    assert decision.pool == "plain"
    terms = {cost.pool: cost.terms for cost in decision.costs}
    assert terms["mtp"] is not None
    assert terms["plain"] is not None
    assert terms["mtp"].imposed > 10 * terms["plain"].imposed


def test_a_queue_is_time() -> None:
    """SPEC-07: a long queue at the faster pool sends requests to the other one, and back when it is gone."""
    bench = Bench(policy())
    for _ in range(20):
        features, guess = request(), estimate(400)
        bench.finish(features, guess, bench.route(features, guess), first=0.05, each=0.025)
    bench.loads.by_pool["mtp"] = PoolLoad(up=1, in_flight=20, waiting=40)

    assert bench.route(request(), estimate(400)).pool == "plain"
    bench.loads.by_pool["mtp"] = PoolLoad(up=1)
    assert bench.route(request(), estimate(400)).pool == "mtp"


@pytest.mark.parametrize("state", [{"up": 0}, {"up": 1, "full": True}])
def test_a_pool_that_is_down_or_full_spills_over_and_gets_its_traffic_back(state: dict[str, int]) -> None:
    """Spill-over, with its reason, and no memory of it."""
    bench = Bench(policy())
    bench.loads.by_pool["mtp"] = PoolLoad(**state)  # type: ignore[arg-type]
    spilled = bench.route(request(), estimate(400))

    assert (spilled.pool, spilled.reason) == ("plain", Reason.SPILL)
    # If that one is gone when the request gets there, the other is worth a wait.
    assert spilled.order == ("plain", "mtp")
    bench.loads.by_pool.clear()
    assert bench.route(request(), estimate(400)).pool == "mtp"


@pytest.mark.parametrize(
    "need", [Need.MIN_P, Need.LOGIT_BIAS, Need.STRUCTURED, Need.STRUCTURED_THINKING, Need.LOGPROBS]
)
def test_gates_come_before_time_hints_and_preferences(need: Need) -> None:
    """SPEC-01, SPEC-02, SPEC-03, SPEC-04: what an MTP engine refuses never goes there, however long it is."""
    rules = "rules: [{name: all to mtp, when: {output_tokens: {at_least: 1}}, prefer: mtp}]"
    bench = Bench(policy(routing=rules))
    decision = bench.route(request(needs=frozenset({need})), estimate(900), hints=Hints(pool="mtp"))

    assert decision.pool == "plain"
    assert decision.order == ("plain",)
    assert next(cost.out for cost in decision.costs if cost.pool == "mtp") == f"refuses {need.value}"


def test_only_pools_whose_window_fits() -> None:
    """ROUTE-06: a small ask under a huge history goes where the prompt fits; where none does, the back end says so."""
    bench = Bench(policy())
    bench.loads.by_pool = {"plain": PoolLoad(up=1, window=131072), "mtp": PoolLoad(up=1, window=16384)}
    decision = bench.route(request(input_tokens=100_000), estimate(500))

    assert (decision.pool, decision.reason) == ("plain", Reason.GATE)
    assert decision.detail == "context window 16384"
    assert bench.route(request(input_tokens=100), estimate(500)).pool == "mtp"
    assert bench.route(request(input_tokens=400_000), estimate(500)).pool in ("plain", "mtp")


def test_the_window_must_hold_the_output_that_was_asked_for() -> None:
    """ROUTE-06: vLLM refuses a prompt with a `max_tokens` that together exceed the window."""
    bench = Bench(policy())
    bench.loads.by_pool = {"plain": PoolLoad(up=1, window=32768), "mtp": PoolLoad(up=1, window=8192)}
    capped = request(input_tokens=3000, cap=6000, token_limit=6000, explicit_cap=True)

    assert bench.route(capped, estimate(500)).pool == "plain"


def test_a_required_rule_yields_to_nothing() -> None:
    """`require` waits for its pool rather than take another, and goes there against a gate: the back end's own refusal
    is the answer. Without any such pool it says so."""
    bench = Bench(policy(routing="rules: [{name: drafts, when: {task: code}, require: mtp}]"))
    bench.loads.by_pool["mtp"] = PoolLoad(up=1, full=True)
    decision = bench.route(request(), estimate(4, Task.CODE))

    assert (decision.pool, decision.reason, decision.order) == ("mtp", Reason.RULE, ("mtp",))
    gated = bench.route(request(needs=frozenset({Need.MIN_P})), estimate(4, Task.CODE))
    assert (gated.pool, gated.reason, gated.order) == ("mtp", Reason.RULE, ("mtp",))
    with pytest.raises(NothingAvailable):
        bench.route(request(), estimate(4, Task.CODE), key=AccessKey(name="a", sha256=b"x", pools=frozenset({"plain"})))


def test_a_threshold_side_that_was_left_is_not_taken_back_for_nothing() -> None:
    """Hysteresis: between going away and coming back there is a gap, so that pools of about one speed do not flap."""
    bench = Bench(policy(routing="objective: expected_time", profile="h200"))
    known(bench)
    seen = []
    for running in [*range(0, 200), *range(200, 0, -1)]:
        bench.loads.by_pool = {name: PoolLoad(up=1, in_flight=running) for name in ("plain", "mtp")}
        seen.append(bench.route(request(), estimate(400)).pool)
    up, down = seen[:200], seen[200:]

    assert sum(a != b for a, b in pairwise(seen)) == 2
    assert down.index("mtp") > up[::-1].index("mtp")


def drive(bench: Bench, rounds: int, key: AccessKey | None = None, hints: Hints | None = None) -> Counter[str]:
    """Requests that end as expected; counts the reasons of the decisions."""
    reasons: Counter[str] = Counter()
    for _ in range(rounds):
        features, guess = request(), estimate(300)
        decision = bench.route(features, guess, key=key, hints=hints or Hints(), explore=True)
        cost = next(cost for cost in decision.costs if cost.pool == decision.pool)
        assert cost.terms is not None
        bench.finish(features, guess, decision, first=cost.terms.first, each=cost.terms.decode / 299)
        reasons[decision.reason.value] += 1
    return reasons


def test_exploration_stays_within_its_share_and_its_price() -> None:
    """At most the policy's share of requests, and a quarter of that share of the time."""
    bench = Bench(policy(routing="exploration: 0.05"))
    reasons = drive(bench, 3000)

    assert 0 < reasons["explore"] <= 0.08 * 3000
    assert bench.state.explorer.allowance >= 0.0


@pytest.mark.parametrize("how", [{"key": URGENT}, {"hints": Hints(pool="mtp")}, {"hints": Hints(session="s")}])
def test_nobody_who_waits_or_has_asked_is_explored_with(how: dict[str, object]) -> None:
    """Exploration never takes latency-critical keys, hints or conversations."""
    bench = Bench(policy(routing="exploration: 1.0"))
    bench.state.explorer.allowance = 1e9

    assert drive(bench, 200, **how)["explore"] <= (1 if "session" in str(how) else 0)  # type: ignore[arg-type]


def test_exploration_can_be_off() -> None:
    """`exploration: 0` draws nothing."""
    bench = Bench(policy(routing="exploration: 0"))
    bench.state.explorer.allowance = 1e9

    assert drive(bench, 200)["explore"] == 0


LOADS = st.builds(
    PoolLoad,
    up=st.integers(0, 64),
    in_flight=st.integers(0, 5000),
    waiting=st.integers(0, 5000),
    full=st.booleans(),
    window=st.none() | st.integers(1, 200_000),
)
ESTIMATES = st.tuples(st.floats(0, 1e6), st.sampled_from(list(Task)))


@settings(max_examples=150, deadline=None)
@given(
    loads=st.tuples(LOADS, LOADS),
    guess=ESTIMATES,
    prompt=st.integers(0, 2_000_000),
    needs=st.frozensets(st.sampled_from(list(Need))),
    hint=st.none() | st.sampled_from(["plain", "mtp", "nowhere", ""]),
    session=st.none() | st.text(max_size=5),
    objective=st.sampled_from(["expected_time", "fleet", "static"]),
    results=st.lists(st.tuples(st.sampled_from(list(Result)), st.floats(0, 1e4), st.floats(0, 100)), max_size=4),
)
def test_a_decision_is_always_an_allowed_pool(
    loads: tuple[PoolLoad, PoolLoad],
    guess: tuple[float, Task],
    prompt: int,
    needs: frozenset[Need],
    hint: str | None,
    session: str | None,
    objective: str,
    results: list[tuple[Result, float, float]],
) -> None:
    """Whatever is asked and measured: no exception, finite costs, and a pool that passes its gates if any does."""
    bench = Bench(policy(routing=f"objective: {objective}, exploration: 0.5"))
    bench.loads.by_pool = dict(zip(("plain", "mtp"), loads, strict=True))
    features, told = request(input_tokens=prompt, needs=needs, turns=5), estimate(*guess)
    hints = Hints(pool=hint, session=session)
    for result, first, each in [*results, (Result.OK, 0.1, 0.01)]:
        decision = bench.route(features, told, hints=hints, explore=True)
        bench.finish(features, told, decision, result=result, first=first, each=each)

        outs = {cost.pool: cost.out for cost in decision.costs}
        assert decision.pool in outs
        assert decision.order[0] == decision.pool
        assert len(set(decision.order)) == len(decision.order)
        if None in outs.values():
            assert outs[decision.pool] is None
        assert all(cost.seconds is not None and math.isfinite(cost.seconds) for cost in decision.costs)


def test_a_task_that_was_never_drafted_gets_the_benefit_of_the_doubt() -> None:
    """A wrong guess about a task's acceptance must not keep it from ever being measured."""
    bench = Bench(policy(model="gemma-4-26b", architecture="moe", routing="objective: expected_time"))
    bench.loads.by_pool = {name: PoolLoad(up=1, in_flight=4) for name in ("plain", "mtp")}
    features, long = request(), estimate(400, Task.STRUCTURED_JSON)
    first = bench.route(features, long)
    cost = {cost.pool: cost for cost in first.costs}
    assert cost["mtp"].seconds is not None
    assert cost["plain"].seconds is not None
    assert (first.pool, cost["mtp"].seconds > cost["plain"].seconds) == ("mtp", True)

    for _ in range(40):
        bench.finish(features, long, first, first=0.05, each=cost["mtp"].seconds / 399)
    assert bench.route(features, long).pool == "plain"
