"""Regret: what the pools not taken would have needed for the answer that came."""

from __future__ import annotations

import pytest

from gateway.types import Hints, PoolLoad, Reason, Result, Task
from tests.routing.worlds import Bench, estimate, outcome, policy, request


def test_a_wrong_guess_shows_as_regret_and_a_right_one_as_gain() -> None:
    """A thousand tokens in the plain pool cost time that MTP would have saved; two tokens there cost none."""
    bench = Bench(policy())
    short = estimate(2, Task.CHAT)
    decision = bench.route(request(), short)
    regret = bench.state.regret
    wrong = bench.finish(request(), short, decision, tokens=1000)
    rows = regret.rows["gemma-4-e4b", decision.reason.value]

    assert decision.pool == "plain"
    assert rows.regret > 2.0
    assert 0.05 < rows.share() < 1.0
    assert rows.seconds == pytest.approx(wrong.ended - wrong.started)

    long = bench.route(request(), estimate(1000))
    bench.finish(request(), estimate(1000), long)
    assert regret.rows["gemma-4-e4b", long.reason.value].gain > 2.0


@pytest.mark.parametrize("tokens", [1, 2, 40, 300, 1200])
def test_it_is_what_the_curves_would_have_said_had_the_length_been_known(tokens: int) -> None:
    """What the decision computed, stretched to the real length, is what a second look would find."""
    bench = Bench(policy())
    bench.loads.by_pool = {"plain": PoolLoad(up=1, in_flight=3), "mtp": PoolLoad(up=1, in_flight=6)}
    decision = bench.route(request(), estimate(300))
    expected = {
        pool: bench.state.curves.seconds(
            pool, "gemma-4-e4b", tokens=tokens, task=Task.CHAT, input_tokens=150, running=others
        )
        for pool, others in (("plain", 3.0), ("mtp", 6.0))
    }
    (other,) = expected.keys() - {decision.pool}
    assert (taken := expected[decision.pool]) is not None
    assert (best := expected[other]) is not None

    found = bench.state.regret.observe(outcome(request(), estimate(300), decision, tokens=tokens))

    assert found == pytest.approx(taken - best, abs=0.002)


def test_totals_are_kept_by_reason() -> None:
    """A client that insists pays on its own account."""
    bench = Bench(policy())
    decision = bench.route(request(), estimate(1000), hints=Hints(pool="plain"))
    bench.finish(request(), estimate(1000), decision)

    assert [key[1] for key in bench.state.regret.rows] == [Reason.CLIENT.value]


def test_pools_that_were_out_are_no_alternative() -> None:
    """There is no regret for what was not possible."""
    bench = Bench(policy())
    bench.loads.by_pool["mtp"] = PoolLoad(up=0)
    bench.finish(request(), estimate(1000), bench.route(request(), estimate(1000)))

    assert not bench.state.regret.rows


def test_failed_requests_have_none() -> None:
    """Only whole answers have a length to compare with."""
    bench = Bench(policy())
    bench.finish(request(), estimate(9), bench.route(request(), estimate(9)), result=Result.TRUNCATED)

    assert not bench.state.regret.rows
