"""The breaker's thresholds, its way back, and that time and chance are its only other inputs."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.policy.schema import Breaker as Limits
from gateway.upstream.breaker import JITTER, Breaker, Gate, Trip
from gateway.upstream.window import Window

LIMITS = Limits.model_validate(
    {"failures": 3, "success_rate": 0.5, "samples": 8, "window": "10s", "shut": "4s", "shut_max": "20s"}
)


def breaker(**changes: object) -> Breaker:
    return Breaker(LIMITS.model_copy(update=changes), Random(1))


def shut(made: Breaker, now: float = 0.0) -> Breaker:
    made.trip(now, Trip.STALL)
    return made


class TestTrips:
    def test_consecutive_failures_shut_it(self) -> None:
        """RETRY-03: after a few failures in a row no request goes there."""
        made = breaker()

        assert [made.failed(0.0, 0) for _ in range(3)] == [False, False, True]
        assert (made.gate, made.reason, made.opens_at() > 1.0) == (Gate.SHUT, Trip.FAILURES, True)

    def test_one_good_answer_ends_a_row(self) -> None:
        """Two failures, a success, two failures are no row of four."""
        made = breaker()
        for good in (False, False, True, False, False):
            if good:
                made.succeeded(0.0, 0)
            else:
                made.failed(0.0, 0)

        assert made.gate is Gate.OPEN

    def test_a_low_success_rate_shuts_it_without_any_row(self) -> None:
        """Failures that alternate with successes are found by their share, once there are enough answers."""
        made = breaker(failures=0)
        made.succeeded(0.0, 0)
        made.succeeded(0.0, 0)

        assert [made.failed(0.0, 0) for _ in range(6)] == [False] * 5 + [True]
        assert made.reason is Trip.SUCCESS_RATE

    def test_too_few_answers_say_nothing(self) -> None:
        """Seven failures of seven are below eight samples."""
        made = breaker(failures=0)

        assert not any([made.failed(0.0, 0) for _ in range(7)])

    def test_old_answers_are_forgotten(self) -> None:
        """The window slides, so a bad minute does not add up with the next one."""
        made = breaker(failures=0)
        for now in range(0, 100, 2):
            made.failed(float(now), 0)

        assert made.gate is Gate.OPEN

    def test_an_endpoint_that_works_for_others_is_judged_by_its_rate_alone(self) -> None:
        """A few 5xx answers in a row, amid streams that run, do not shut it."""
        made = breaker()
        for _ in range(4):
            made.succeeded(0.0, 0)

        assert not any([made.failed(0.0, 0, working=True) for _ in range(4)])
        assert made.failed(0.0, 0, working=True)

    @pytest.mark.parametrize("changes", [{"failures": 0}, {"success_rate": 0.0}])
    def test_each_threshold_can_be_off(self, changes: dict[str, object]) -> None:
        """0 means no such limit."""
        made = breaker(**changes)
        for _ in range(8):
            made.failed(0.0, 0)

        assert made.reason is (Trip.SUCCESS_RATE if "failures" in changes else Trip.FAILURES)


class TestReturn:
    def test_after_its_time_one_trial_at_a_time_goes_through(self) -> None:
        """PROBATION lets a single request find out."""
        made = shut(breaker())

        assert made.opens_at() >= 4.0 * (1 - JITTER)
        assert made.opens_at() <= 4.0
        assert made.begin(4.0)
        assert (made.gate, made.opens_at()) == (Gate.PROBATION, math.inf)

    def test_a_good_trial_opens_with_a_small_share_that_grows(self) -> None:
        """Slow start: an engine with a cold cache is not buried at once."""
        made = shut(breaker(slow_start=10.0))
        made.begin(4.0)
        made.succeeded(5.0, made.epoch)

        assert made.gate is Gate.OPEN
        assert [made.share(now) for now in (5.0, 10.0, 14.0, 15.0)] == [0.1, 0.5, 0.9, 1.0]

    def test_a_bad_trial_shuts_it_for_twice_as_long_up_to_a_bound(self) -> None:
        """The time grows with each relapse, is jittered, and stays below `shut_max`."""
        made, now, times = breaker(), 0.0, []
        made.trip(now, Trip.FAILURES)
        for _ in range(5):
            times.append(made.shut_until - now)
            now = made.shut_until
            made.begin(now)
            assert made.failed(now, made.epoch)

        for seconds, full in zip(times, (4, 8, 16, 20, 20), strict=True):
            assert full * (1 - JITTER) <= seconds <= full

    def test_a_calm_time_forgives(self) -> None:
        """A trip long after the last is a first one again."""
        made = shut(breaker())
        made.begin(4.0)
        made.succeeded(4.0, made.epoch)
        made.trip(1000.0, Trip.FAILURES)

        assert made.shut_until - 1000.0 <= 4.0

    def test_a_client_that_leaves_its_trial_makes_room_for_another(self) -> None:
        """RETRY-03: an abandoned trial says nothing, and does not block the endpoint for ever."""
        made = shut(breaker())
        made.begin(4.0)
        made.abandoned(made.epoch)

        assert made.opens_at() <= 4.0

    def test_a_probe_permits_a_trial_and_nothing_more(self) -> None:
        """HEALTH-01: a healthy `/health` never opens what requests have shut."""
        made = shut(breaker())
        made.permit()

        assert made.gate is Gate.PROBATION
        assert made.opens_at() <= 0.0

    def test_answers_of_before_the_trip_change_nothing(self) -> None:
        """A late success does not open, a late failure does not lengthen."""
        made = breaker()
        made.trip(0.0, Trip.STALL)
        until = made.shut_until
        made.begin(until)
        made.succeeded(until, epoch=0)
        made.failed(until, epoch=0)

        assert (made.gate, made.trips) == (Gate.PROBATION, 1)

    def test_a_reload_keeps_the_state(self) -> None:
        """New thresholds judge what comes; what is shut stays shut."""
        made = shut(breaker())
        made.configure(LIMITS.model_copy(update={"failures": 9, "window": 99.0}))

        assert made.gate is Gate.SHUT


class TestWindow:
    def test_it_counts_the_last_seconds_only(self) -> None:
        """Every bucket is dropped after its time, also when nothing happened in between."""
        window = Window(10.0)
        for now in range(20):
            window.add(float(now), marked=now % 2)

        assert (window.total, window.marked) == (10, 5)
        window.advance(24.0)
        assert window.total == 5
        window.advance(1e9)
        assert (window.total, window.marked) == (0, 0)

    def test_time_that_goes_back_loses_nothing(self) -> None:
        """Two clocks read in the wrong order must not empty the ring."""
        window = Window(10.0)
        window.add(100.0)
        window.advance(95.0)
        window.add(99.0)

        assert window.total == 2


class BreakerMachine(RuleBasedStateMachine):
    """Any order of events: at most one trial runs, a shut time is bounded, and a way back always exists."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = breaker()
        self.now = 0.0
        self.running: list[tuple[int, bool]] = []

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def request(self) -> None:
        if self.breaker.opens_at() <= self.now:
            trial = self.breaker.begin(self.now)
            self.running.append((self.breaker.epoch, trial))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 1000), how=st.sampled_from(["good", "bad", "left"]), working=st.booleans())
    def ends(self, which: int, how: str, working: bool) -> None:
        epoch, _ = self.running.pop(which % len(self.running))
        if how == "good":
            self.breaker.succeeded(self.now, epoch)
        elif how == "bad":
            self.breaker.failed(self.now, epoch, working=working)
        else:
            self.breaker.abandoned(epoch)

    @rule()
    def probe_came_back(self) -> None:
        self.breaker.permit()

    @rule()
    def stalls(self) -> None:
        self.breaker.trip(self.now, Trip.STALL)

    @invariant()
    def one_trial_at_a_time(self) -> None:
        trials = [epoch for epoch, trial in self.running if trial and epoch == self.breaker.epoch]
        if self.breaker.gate is Gate.PROBATION:
            assert len(trials) == (self.breaker.trial_since is not None)

    @invariant()
    def time_alone_brings_it_back_or_a_trial_runs(self) -> None:
        assert self.breaker.shut_until <= self.now + 20.0
        assert self.breaker.opens_at() <= self.now + 20.0 or self.breaker.trial_since is not None

    @invariant()
    def its_share_is_a_share(self) -> None:
        assert 0.1 <= self.breaker.share(self.now) <= 1.0


BreakerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBreakerMachine = BreakerMachine.TestCase
