"""What is done with a request once it is over."""

from __future__ import annotations

import asyncio

import pytest

from gateway.api.afterwards import MOST_WAITING, Afterwards
from gateway.types import Outcome, Result


def outcome(number: int) -> Outcome:
    return Outcome(request_id=str(number), result=Result.OK, status=200, started=0.0, ended=1.0)


class Seen:
    """An observer that keeps the ids, in the order in which they came."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.all = asyncio.Event()
        self.awaited = 0
        self.now = 0.0

    def __call__(self, outcome: Outcome) -> None:
        self.ids.append(outcome.request_id)
        self.now += 1.0
        if len(self.ids) == self.awaited:
            self.all.set()


async def test_outcomes_are_taken_a_little_later_and_in_order() -> None:
    """The request's end does not wait for the observers; each sees every outcome once."""
    seen = Seen()
    seen.awaited = 20
    afterwards = Afterwards((seen,), lambda: 0.0)
    for number in range(20):
        afterwards.add(outcome(number))
    assert seen.ids == []
    await asyncio.wait_for(seen.all.wait(), 60)
    assert seen.ids == [str(number) for number in range(20)]


async def test_others_run_between_slices() -> None:
    """A slice that is used up lets the loop go on before the next outcome is taken."""
    seen = Seen()
    seen.awaited = 3
    afterwards = Afterwards((seen,), lambda: seen.now)
    for number in range(3):
        afterwards.add(outcome(number))
    counts = []
    while not seen.all.is_set():
        counts.append(len(seen.ids))
        await asyncio.sleep(0)
    assert {1, 2} <= set(counts)


async def test_a_flush_takes_all_of_them_now() -> None:
    """Who reads a metric sees every request that has ended."""
    seen = Seen()
    afterwards = Afterwards((seen,), lambda: 0.0)
    afterwards.add(outcome(1))
    afterwards.add(outcome(2))
    afterwards.flush()
    assert seen.ids == ["1", "2"]
    await asyncio.sleep(0.02)
    assert seen.ids == ["1", "2"]


async def test_overload_does_not_pile_them_up() -> None:
    """Beyond the bound each new outcome has the oldest taken at once."""
    seen = Seen()
    afterwards = Afterwards((seen,), lambda: 0.0)
    for number in range(MOST_WAITING + 5):
        afterwards.add(outcome(number))
    assert seen.ids == ["0", "1", "2", "3", "4"]
    afterwards.flush()


async def test_an_observer_that_fails_does_not_stop_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """The fault is logged; the other observers and the next outcomes know nothing of it."""
    seen = Seen()
    seen.awaited = 2

    def fail(outcome: Outcome) -> None:
        if outcome.request_id == "1":
            raise KeyError("a fault")

    afterwards = Afterwards((fail, seen), lambda: 0.0)
    afterwards.add(outcome(1))
    afterwards.add(outcome(2))
    await asyncio.wait_for(seen.all.wait(), 60)
    assert seen.ids == ["1", "2"]
    assert "a fault" in caplog.text


async def test_a_request_that_ends_in_overload_ends_well(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever adds an outcome, or has them taken, does not fail for an observer."""

    def fail(outcome: Outcome) -> None:
        raise KeyError("a fault")

    afterwards = Afterwards((fail,), lambda: 0.0)
    for number in range(MOST_WAITING + 1):
        afterwards.add(outcome(number))
    afterwards.flush()
    assert len(caplog.records) == MOST_WAITING + 1


async def test_it_says_when_those_that_waited_are_done_with() -> None:
    """Once for all that came together, after the last of them."""
    seen, told, done = Seen(), [], asyncio.Event()

    def taken() -> None:
        told.append(list(seen.ids))
        done.set()

    afterwards = Afterwards((seen,), lambda: 0.0, taken)
    for number in range(3):
        afterwards.add(outcome(number))
    async with asyncio.timeout(60):
        await done.wait()

    assert told == [["0", "1", "2"]]
