"""The work that a decided request is to the queue, and how long its tokens may take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.routing.cost import OPEN_TOKENS, SLOWER, UNKNOWN, longest_decode, work_of
from gateway.types import Decision, PoolLoad, Reason
from gateway.upstream.fair import Work
from tests.routing.worlds import Bench, estimate, known, policy, request


def decided(tokens: float, in_flight: int = 0, input_tokens: int = 150, **loads: PoolLoad) -> Decision:
    bench = Bench(policy(profile="h200"))
    bench.loads.by_pool = {name: PoolLoad(up=1, in_flight=in_flight) for name in ("plain", "mtp")} | loads
    return bench.route(request(input_tokens=input_tokens), estimate(tokens))


def test_it_is_the_same_whichever_pool_was_chosen() -> None:
    """A request that waits is served by the pool that has room first, so its size is not that of the other one."""
    decision = decided(400, 20)
    first, *others = decision.order
    turned = replace(decision, pool=others[0], order=(*others, first))

    assert len(decision.order) == 2
    assert work_of(turned).mean == pytest.approx(work_of(decision).mean)


def test_it_is_told_for_each_pool() -> None:
    """What drafts help is less work where they are made; what a key is charged is the mean."""
    work = work_of(decided(400, 8))

    assert work.by_pool["mtp"] < 0.9 * work.by_pool["plain"]
    assert work.mean == pytest.approx((work.by_pool["mtp"] + work.by_pool["plain"]) / 2)


def test_time_in_the_queue_is_no_work() -> None:
    """However many wait, a short request is a small one."""
    crowd = PoolLoad(up=1, in_flight=20, waiting=500)

    assert work_of(decided(8, 20, plain=crowd, mtp=crowd)).mean == pytest.approx(work_of(decided(8, 20)).mean)
    assert work_of(decided(8, 20)).mean < work_of(decided(400, 20)).mean / 4


def test_a_long_prompt_is_work_though_its_answer_is_short() -> None:
    """On a full engine everybody waits while it is computed, which its own time hardly shows."""
    prompt, answer = decided(8, 60, input_tokens=8_000), decided(40, 60)
    own = [
        sum(cost.terms.first + cost.terms.decode for cost in decision.costs if cost.terms)
        for decision in (prompt, answer)
    ]

    assert own[0] < own[1]
    assert work_of(prompt).mean > 2 * work_of(answer).mean


def test_only_pools_that_may_serve_it_count() -> None:
    """What is out, or what nothing is known of, has no say; without any the work is a short answer's."""
    decision = decided(400)
    alone = replace(decision, order=decision.order[:1])
    (terms,) = (cost.terms for cost in decision.costs if cost.pool == decision.pool)
    assert terms is not None

    assert work_of(alone).mean == pytest.approx(terms.first + terms.decode)
    assert work_of(Decision(model="m", pool="p", reason=Reason.ONLY_POOL)) == Work(UNKNOWN)
    assert work_of(None) == Work(UNKNOWN)


class TestLongest:
    def longest(
        self, expected: float, *, running: int = 0, pools: int = 2, measured: bool = True, **asked: int
    ) -> float:
        """Of an answer that is expected to have so many tokens, beside `running` others per endpoint."""
        bench = Bench(policy(profile="h200"))
        if measured:
            known(bench)
        bench.loads.by_pool = {name: PoolLoad(up=1, in_flight=running) for name in ("plain", "mtp")}
        features = request(**asked)
        decision = bench.route(features, estimate(expected))
        order = tuple(name for name in ("mtp", "plain") if name in decision.order)[:pools]
        decision = replace(decision, order=order)
        return longest_decode(decision, estimate(expected), features, bench.state.curves)

    def test_it_is_what_the_limit_allows_and_not_what_is_expected(self) -> None:
        """TIMEOUT-02: a guess that is too short ends no good answer."""
        told = [self.longest(expected, token_limit=2000, cap=2000) for expected in (1.0, 20.0, 400.0)]

        assert told == pytest.approx([told[0]] * 3, rel=0.2)
        assert told[0] > SLOWER * 2000 * 0.002
        assert self.longest(1.0, token_limit=1, cap=1) == 0.0

    def test_without_a_limit_it_is_a_multiple_of_the_guess(self) -> None:
        """At least what a long answer takes; choices and schemas bound it all the same."""
        whole = self.longest(100.0, token_limit=OPEN_TOKENS)

        assert self.longest(100.0) == pytest.approx(whole)
        assert self.longest(5000.0) > 2 * whole
        assert self.longest(3.0, cap=8) < whole / 50

    def test_load_and_the_slowest_pool_of_the_order_count(self) -> None:
        """The request may go to any of them."""
        assert self.longest(100.0, running=60) > 1.2 * self.longest(100.0)
        assert self.longest(100.0, pools=2) > self.longest(100.0, pools=1)

    def test_a_profile_alone_is_not_relied_on(self) -> None:
        """The engine may be a slower one, and only answers that come teach that."""
        assert self.longest(100.0, measured=False) > 2 * self.longest(100.0)
