"""Limits of one replica: what passes, what is charged, what a refusal says."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.limits import Limits
from gateway.access.ticket import Limit, Ticket
from gateway.errors import TooManyRequests
from gateway.policy.schema import Access, AccessKey
from gateway.state.board import Board
from gateway.state.memory import MemoryStore
from gateway.types import Usage
from tests.access.fakes import Clock, attempt, make_key


def make_limits(clock: Callable[[], float], replicas: int = 1) -> Limits:
    return Limits(MemoryStore(replicas=replicas), clock=clock)


def usage(prompt: int, completion: int) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion)


@pytest.mark.parametrize(("processes", "limit", "passed"), [(1, 10, 10), (2, 10, 5), (4, 10, 2), (4, 2, 1)])
def test_processes_that_share_nothing_divide_the_requests_at_a_time(processes: int, limit: int, passed: int) -> None:
    """OPS-04: as every other limit, so that workers without a shared store do not multiply it."""
    limits, key = make_limits(Clock(), processes), make_key(in_flight=limit)
    tickets = [attempt(limits, key) for _ in range(limit + 1)]

    assert sum(isinstance(ticket, Ticket) for ticket in tickets) == passed


def test_workers_of_a_host_count_requests_at_a_time_together(tmp_path: Path) -> None:
    """OPS-04: one worker may take the whole limit while the others are idle, and all of them together no more."""
    key = make_key(in_flight=4, requests_per_minute=30)
    one, two, three = (on_board(tmp_path, 3) for _ in range(3))
    tickets = [taken(one, key) for _ in range(3)]
    tickets.append(taken(two, key))
    for limits in (one, two, three):
        refusal = attempt(limits, key)
        assert isinstance(refusal, TooManyRequests)
        assert "4 requests at a time" in refusal.message

    tickets.pop(0).settle()
    tickets.append(taken(three, key))
    assert isinstance(attempt(one, key), TooManyRequests)
    for ticket in tickets:
        ticket.settle()
        ticket.settle()
    assert all(isinstance(attempt(three, key), Ticket) for _ in range(4))


def test_a_request_that_another_limit_refuses_takes_no_place(tmp_path: Path) -> None:
    """What a worker has said while it looked at its limits is taken back."""
    key = make_key(in_flight=2, requests_per_minute=1)
    one, two = on_board(tmp_path, 2), on_board(tmp_path, 2)
    taken(one, key)
    for limits in (one, two) * 3:
        refusal = attempt(limits, key)
        assert isinstance(refusal, TooManyRequests)
        assert "requests per minute" in refusal.message

    loose = make_key(in_flight=2)
    two.apply(Access(keys=(loose,)))
    taken(two, loose)
    assert isinstance(attempt(two, loose), TooManyRequests)


def test_workers_of_a_host_share_limits_per_minute(tmp_path: Path) -> None:
    """OPS-04: as with Redis, one of them may take all of it, and together they take no more; what a request did not
    use is everybody's again, and what it used beyond its estimate is missing to all."""
    key = make_key(requests_per_minute=6, tokens_per_minute=1000)
    one, two = on_board(tmp_path, 2), on_board(tmp_path, 2)
    tickets = [taken(one, key, 100) for _ in range(5)]
    assert {limits.standing(key)[Limit.TOKENS].remaining for limits in (one, two) if limits.standing(key)} == {500}
    tickets.append(taken(two, key, 500))
    for limits in (one, two):
        refusal = attempt(limits, key, 0)
        assert isinstance(refusal, TooManyRequests)
        assert refusal.retry_after == 61
        assert [row.remaining for row in limits.standing(key).values()] == [0, 0]

    tickets[0].settle(usage(20, 0))
    tickets[1].settle(usage(100, 30))
    assert {limits.standing(key)[Limit.TOKENS].remaining for limits in (one, two)} == {50}


def test_a_limit_that_a_reload_brings_counts_what_runs_already(tmp_path: Path) -> None:
    """Requests from before are seen by the other workers; a limit that goes is none, and its count stays right."""
    free, bound = make_key(), make_key(in_flight=3)
    one, two = on_board(tmp_path, 2), on_board(tmp_path, 2)
    tickets = [taken(one, free) for _ in range(2)]
    for limits in (one, two):
        limits.apply(Access(keys=(bound,)))
    tickets.append(taken(two, bound))
    assert isinstance(attempt(two, bound), TooManyRequests)

    one.apply(Access(keys=(free,)))
    tickets += [taken(one, free) for _ in range(2)]
    one.apply(Access(keys=(bound,)))
    for ticket in tickets:
        ticket.settle()
    assert [isinstance(attempt(two, bound), Ticket) for _ in range(4)] == [True, True, True, False]


def take_all(folder: Path, barrier: Barrier, passed: Queue[int]) -> None:
    limits = Limits(MemoryStore(replicas=4), clock=time.monotonic, window=600.0, board=Board(folder / "board", 4))
    key = make_key(requests_per_minute=200)
    attempt(limits, make_key("other", requests_per_minute=1))
    barrier.wait()
    passed.put(sum(isinstance(attempt(limits, key), Ticket) for _ in range(400)))


def test_processes_that_take_at_once_take_no_more_than_the_limit(tmp_path: Path) -> None:
    """OPS-04: what two of them have taken in one instant is seen by one at least, who gives it back."""
    spawn = multiprocessing.get_context("spawn")
    barrier, passed = spawn.Barrier(4), spawn.Queue()
    workers = [spawn.Process(target=take_all, args=(tmp_path, barrier, passed)) for _ in range(4)]
    for worker in workers:
        worker.start()
    counts = [passed.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()

    assert sum(counts) == 200


def on_board(folder: Path, workers: int) -> Limits:
    return Limits(MemoryStore(replicas=workers), clock=Clock(), board=Board(folder / "board", workers))


def taken(limits: Limits, key: AccessKey, input_tokens: int = 0) -> Ticket:
    ticket = attempt(limits, key, input_tokens)
    assert isinstance(ticket, Ticket)
    return ticket


def test_exactly_as_many_pass_as_the_limit_says() -> None:
    """RETRY-06: beyond the limit comes a 429 at once, with Retry-After in whole seconds and the limit named."""
    limits, key = make_limits(Clock()), make_key(requests_per_minute=5)
    results = [attempt(limits, key) for _ in range(9)]

    assert [isinstance(result, Ticket) for result in results] == [True] * 5 + [False] * 4
    refusal = results[-1]
    assert isinstance(refusal, TooManyRequests)
    assert (refusal.status, refusal.code, refusal.retry_after) == (429, "rate_limit_exceeded", 61)
    assert refusal.message == "the key `alpha` is at its limit of 5 requests per minute; try again in 61 s"


@given(pauses=st.lists(st.floats(0.0, 30.0), max_size=60), per_minute=st.integers(1, 8))
def test_no_minute_holds_more_and_what_is_promised_passes(pauses: list[float], per_minute: int) -> None:
    """In any 60 s at most the limit passes; whoever comes after Retry-After is let in, so nobody starves."""
    clock = Clock()
    limits, key, passed = make_limits(clock), make_key(requests_per_minute=per_minute), list[float]()
    for pause in pauses:
        clock.now += pause
        result = attempt(limits, key)
        if isinstance(result, TooManyRequests):
            assert result.retry_after
            assert 1 <= result.retry_after <= 61
            clock.now += result.retry_after
            assert isinstance(attempt(limits, key), Ticket)
        passed.append(clock.now)

    for at in passed:
        assert sum(at <= when < at + 60.0 for when in passed) <= per_minute


def test_keys_do_not_share_their_limits() -> None:
    """A key at its limit holds up nobody else, and open access has none."""
    limits = make_limits(Clock())
    alpha, beta = make_key("alpha", requests_per_minute=1), make_key("beta", requests_per_minute=1)

    assert isinstance(attempt(limits, alpha), Ticket)
    assert isinstance(attempt(limits, alpha), TooManyRequests)
    assert isinstance(attempt(limits, beta), Ticket)
    for _ in range(100):
        ticket = limits.try_admit(None, 10_000, 10_000)
        assert ticket
        ticket.settle()


def test_requests_at_a_time_are_freed_when_they_end_once() -> None:
    """A slot comes back when the request ends, however it ends, and only once."""
    limits, key = make_limits(Clock()), make_key(in_flight=2)
    tickets = [attempt(limits, key) for _ in range(2)]
    refusal = attempt(limits, key)
    assert isinstance(refusal, TooManyRequests)
    assert refusal.retry_after == 1
    assert "2 requests at a time" in refusal.message
    assert limits.in_flight() == {"alpha": 2}

    for _ in range(3):
        assert isinstance(tickets[0], Ticket)
        tickets[0].settle()
    assert limits.in_flight() == {"alpha": 1}
    assert isinstance(attempt(limits, key), Ticket)
    assert isinstance(attempt(limits, key), TooManyRequests)


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (lambda ticket: ticket.settle(usage(120, 30)), 1000 - 150),
        (lambda ticket: ticket.settle(usage(80, 500)), 1000 - 580),
        (lambda ticket: ticket.settle(), 1000 - 300),
        (lambda ticket: ticket.settle(reached=False), 1000),
    ],
)
def test_tokens_are_settled_by_what_was_used(end: Callable[[Ticket], None], left: int) -> None:
    """Estimates hold until the back end's count replaces them; a request that reached no back end costs no tokens."""
    limits, key = make_limits(Clock()), make_key(tokens_per_minute=1000)
    ticket = attempt(limits, key, 100, 200)
    assert isinstance(ticket, Ticket)
    assert limits.standing(key)[Limit.TOKENS].remaining == 700

    end(ticket)
    end(ticket)

    assert limits.standing(key)[Limit.TOKENS].remaining == left


def test_input_and_output_have_limits_of_their_own() -> None:
    """Each is charged with its own part; a long answer takes its limit below zero and then nothing passes."""
    clock = Clock()
    limits = make_limits(clock)
    key = make_key(input_tokens_per_minute=1000, output_tokens_per_minute=100)
    ticket = attempt(limits, key, 600, 10)
    assert isinstance(ticket, Ticket)
    ticket.settle(usage(600, 450))
    assert limits.standing(key)[Limit.INPUT_TOKENS].remaining == 400
    assert limits.standing(key)[Limit.OUTPUT_TOKENS].remaining == 0

    refusal = attempt(limits, key, 1, 0)
    assert isinstance(refusal, TooManyRequests)
    assert "100 output tokens per minute" in refusal.message
    clock.now += 61
    assert isinstance(attempt(limits, key, 1000, 0), Ticket)


def test_a_refused_request_takes_nothing() -> None:
    """All limits or none: a request over its tokens does not use up requests."""
    limits, key = make_limits(Clock()), make_key(requests_per_minute=2, tokens_per_minute=100)
    assert isinstance(attempt(limits, key, 90), Ticket)
    for _ in range(5):
        assert isinstance(attempt(limits, key, 20), TooManyRequests)

    assert limits.standing(key)[Limit.REQUESTS].remaining == 1
    assert isinstance(attempt(limits, key, 10), Ticket)


def test_a_request_that_can_never_pass_is_told_so() -> None:
    """Input above the whole limit is refused with the reason; a guess at the output never is."""
    limits, key = make_limits(Clock()), make_key(tokens_per_minute=100)
    refusal = attempt(limits, key, 101)
    assert isinstance(refusal, TooManyRequests)
    assert "needs 101 tokens" in refusal.message
    assert "must be shorter" in refusal.message
    assert refusal.retry_after

    assert isinstance(attempt(limits, key, 60, 5000), Ticket)


def test_processes_without_shared_state_divide_the_limits() -> None:
    """OPS-04: four workers with a limit of 10 let 8 through together, not 40; a limit of 1 is at least 1 each."""
    limits, key = make_limits(Clock(), replicas=4), make_key(requests_per_minute=10)
    passed = [isinstance(attempt(limits, key), Ticket) for _ in range(10)]
    assert sum(passed) == 2

    assert isinstance(attempt(limits, make_key("one", requests_per_minute=1)), Ticket)


def test_a_need_above_a_fair_share_still_passes_alone() -> None:
    """Dividing a limit must not shut out long prompts for good."""
    clock = Clock()
    limits, key = make_limits(clock, replicas=4), make_key(tokens_per_minute=100)

    assert isinstance(attempt(limits, key, 90), Ticket)
    assert isinstance(attempt(limits, key, 90), TooManyRequests)
    clock.now += 61
    assert isinstance(attempt(limits, key, 90), Ticket)


def test_counts_survive_a_reload() -> None:
    """New numbers hold at once, counts and running requests stay, and keys that are gone are forgotten."""
    limits, key = make_limits(Clock()), make_key(requests_per_minute=3)
    tickets = [attempt(limits, key) for _ in range(3)]
    more = make_key(requests_per_minute=4)
    limits.apply(Access(keys=(more,)))
    assert isinstance(attempt(limits, more), Ticket)
    assert isinstance(attempt(limits, more), TooManyRequests)

    fewer = make_key(requests_per_minute=2, in_flight=9)
    limits.apply(Access(keys=(fewer,)))
    assert isinstance(attempt(limits, fewer), TooManyRequests)
    limits.apply(None)
    assert limits.in_flight() == {"alpha": 4}
    for ticket in tickets:
        assert isinstance(ticket, Ticket)
        ticket.settle()
    assert limits.in_flight() == {"alpha": 1}


async def test_admit_is_try_admit_where_nothing_is_shared() -> None:
    """The waiting form has nothing to wait for."""
    limits, key = make_limits(Clock()), make_key(requests_per_minute=1)
    ticket = await limits.admit(key)
    ticket.settle()
    (await limits.admit(None)).settle()

    with pytest.raises(TooManyRequests):
        await limits.admit(key)
