"""Conversations stay where their prefix is cached, as long as that is worth it."""

from __future__ import annotations

import pytest

from gateway.routing.sticky import MOST_HOMES, Sticky, turns_to_come
from gateway.types import Decision, Hints, PoolLoad, Reason, Result, Task
from tests.routing.worlds import Bench, estimate, outcome, policy, request

SESSION = Hints(session="s-1")


def turn(bench: Bench, tokens: float, *, prompt: int = 3000, hints: Hints = SESSION, **features: object) -> Decision:
    """One turn, answered; the clock goes on by its time."""
    asked, guess = request(input_tokens=prompt, turns=6, **features), estimate(tokens, Task.TOOL_CALL)
    decision = bench.route(asked, guess, hints=hints)
    url = "http://127.0.0.1:9001" if decision.pool == "plain" else "http://127.0.0.1:9002"
    bench.finish(asked, guess, decision, endpoint=url)
    return decision


def test_a_tool_loop_stays_in_one_pool() -> None:
    """ROUTE-07: five turns of changing length, one pool, one endpoint."""
    bench = Bench(policy())
    first = turn(bench, 40)
    others = [
        turn(bench, tokens, prompt=prompt) for tokens, prompt in ((12, 3100), (90, 4000), (35, 5200), (150, 6000))
    ]

    assert {decision.pool for decision in others} == {first.pool}
    assert {decision.endpoint for decision in others} == {"http://127.0.0.1:9001"}


def test_a_conversation_is_known_without_a_session_header() -> None:
    """The body's own key does as well; a first turn is nobody's continuation."""
    bench = Bench(policy())
    turn(bench, 40, hints=Hints(), thread_key=77)

    assert turn(bench, 40, hints=Hints(), thread_key=77).endpoint is not None
    assert turn(bench, 40, hints=Hints(), thread_key=78).endpoint is None


def test_a_pool_that_saves_much_gets_the_conversation() -> None:
    """Stickiness is time, not a rule: a crowded pool loses it."""
    bench = Bench(policy())
    first = turn(bench, 40)
    bench.loads.by_pool[first.pool] = PoolLoad(up=1, in_flight=200)

    assert turn(bench, 40).pool != first.pool


def test_gates_and_health_override_stickiness() -> None:
    """Peers that pinned harder kept sending to dead pools."""
    bench = Bench(policy())
    first = turn(bench, 40)
    bench.loads.by_pool[first.pool] = PoolLoad(up=0)
    moved = turn(bench, 40)

    assert moved.pool != first.pool
    assert moved.endpoint is None


def test_the_cached_prefix_counts_as_time_and_the_reason_says_so() -> None:
    """Where the other pool would be a little faster, the cache decides."""
    bench = Bench(policy(routing="objective: expected_time"))
    bench.loads.by_pool["mtp"] = PoolLoad(up=0)
    turn(bench, 150, prompt=200)
    bench.loads.by_pool.clear()
    decision = turn(bench, 150, prompt=200)
    saved = next(cost.terms.saved for cost in decision.costs if cost.pool == "plain" and cost.terms)

    assert (decision.pool, decision.reason) == ("plain", Reason.STICKY)
    assert saved > 0.0


def test_an_idle_conversation_is_forgotten() -> None:
    """After the time to live the cache is taken for lost."""
    bench = Bench(policy(routing="stickiness: {ttl: 1m}"))
    turn(bench, 40)
    bench.clock.now += 61

    assert turn(bench, 40).endpoint is None


def test_stickiness_can_be_off() -> None:
    """`stickiness: off` looks nothing up."""
    bench = Bench(policy(routing="stickiness: off"))
    turn(bench, 40)

    assert turn(bench, 40).endpoint is None


@pytest.mark.parametrize("result", [r for r in Result if r is not Result.OK])
def test_a_failed_turn_makes_the_place_forgotten(result: Result) -> None:
    """Nobody knows what the cache holds after a failure."""
    bench = Bench(policy())
    turn(bench, 40)
    asked, guess = request(turns=6), estimate(40)
    bench.finish(asked, guess, bench.route(asked, guess, hints=SESSION), result=result)

    assert len(bench.state.sticky) == 0


def remember(sticky: Sticky, thread: int, now: float, endpoint: str = "http://127.0.0.1:9001") -> None:
    decision = Decision(model="m", pool="p", reason=Reason.TIE, thread=thread)
    sticky.observe(outcome(request(), estimate(5), decision, endpoint=endpoint), now=now)


def test_the_table_is_bounded_and_drops_the_longest_idle() -> None:
    """A million conversations take no more room than the limit."""
    sticky = Sticky(most=4)
    for now, thread in enumerate((1, 2, 3, 4, 1, 5)):
        remember(sticky, thread, float(now))

    assert len(sticky) == 4
    assert sticky.find("m", 2, 1.0, None) is None
    assert [sticky.find("m", thread, 5.0, 600.0) is not None for thread in (1, 2, 3, 4, 5)] == [
        True, False, True, True, True,
    ]  # fmt: skip


def test_most_conversations_of_a_full_table_are_still_known() -> None:
    """The rows that a key may stand in are few, so some sets are full early: not many."""
    sticky = Sticky(most=4_000)
    for thread in range(1, 2_001):
        remember(sticky, thread, float(thread), f"http://127.0.0.1:{9000 + thread % 7}")
    places = [sticky.find("m", thread, 2_000.0, 1e6) for thread in range(1, 2_001)]
    known = [(thread, place) for thread, place in enumerate(places, 1) if place is not None]

    assert len(known) > 1_850
    assert all(place.endpoint == f"http://127.0.0.1:{9000 + thread % 7}" for thread, place in known)


def test_absurd_token_counts_of_a_back_end_break_nothing() -> None:
    """Usage is whatever the back end writes."""
    sticky = Sticky(most=4)
    decision = Decision(model="m", pool="p", reason=Reason.TIE, thread=1)
    sticky.observe(outcome(request(), estimate(5), decision, tokens=2**64), now=1.0)
    place = sticky.find("m", 1, 1.0, 600.0)

    assert place is not None
    assert place.tokens >= 2**63


def test_endpoints_that_come_and_go_for_ever_take_no_memory_for_ever() -> None:
    """Pods get new addresses at each restart; at the limit the places are forgotten, the newest one stays."""
    sticky = Sticky(most=4)
    for thread in range(1, MOST_HOMES + 2):
        remember(sticky, thread, float(thread), f"http://10.0.0.{thread}:8000")
    place = sticky.find("m", MOST_HOMES + 1, 1e4, 1e6)

    assert len(sticky) == 1
    assert place is not None
    assert place.endpoint == f"http://10.0.0.{MOST_HOMES + 1}:8000"


def test_a_conversation_is_expected_to_go_on_as_long_as_it_has_gone() -> None:
    """A move pays its prefill for all turns to come."""
    assert [turns_to_come(request(turns=n)) for n in (0, 2, 8, 100)] == [1.0, 1.0, 4.0, 6.0]
