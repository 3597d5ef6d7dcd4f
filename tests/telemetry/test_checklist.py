"""The checklist over pages and requests, on a clock that the test moves."""

from __future__ import annotations

import logging

import pytest

from gateway.telemetry.advice import Code
from gateway.telemetry.mtp import MtpState
from gateway.types import SpecSample, Task
from tests.telemetry.helpers import FakeEndpoint, Rig, drafting, engine, pool, rig

PLAIN, MTP, OTHER = "http://plain", "http://mtp", "http://other"


def _two(window: float = 600.0) -> Rig:
    return rig(pool("plain", PLAIN), pool("mtp", MTP, k=2), window=window)


class Engine:
    """Counters of an engine that drafts 20 steps a second."""

    def __init__(self, url: str = MTP) -> None:
        self.url = url
        self.steps = 0.0
        self.accepted = [0.0, 0.0]

    def run(self, r: Rig, seconds: int, *rates: float) -> None:
        """Some seconds at these acceptance rates, scraped once a second."""
        for _ in range(seconds):
            self.steps += 20
            self.accepted = [count + 20 * rate for count, rate in zip(self.accepted, rates, strict=True)]
            r.clock.now += 1.0
            r.page(self.url, drafting(self.steps, *(count / self.steps for count in self.accepted)))


def test_acceptance_is_of_the_window() -> None:
    """The rates are of the differences within the window, whatever the engine had counted before."""
    r = _two(window=60.0)
    r.page(MTP, drafting(1e6, 0.9, 0.9))
    for step in range(1, 121):
        rates = (0.5, 0.3) if step > 60 else (0.1, 0.0)
        before = 60 * 20 * 0.1
        first = 9e5 + (before + (step - 60) * 20 * rates[0] if step > 60 else step * 20 * rates[0])
        second = 9e5 + max(step - 60, 0) * 20 * 0.3
        total = 1e6 + step * 20
        r.clock.now += 1.0
        r.page(MTP, drafting(total, first / total, second / total))
    found = r.checklist.reports()[0].acceptance

    assert found is not None
    assert found.positions == pytest.approx((0.5, 0.3), abs=0.01)
    assert found.rate == pytest.approx(0.4, abs=0.01)
    assert found.mean_length == pytest.approx(1.8, abs=0.02)


def test_a_collapse_is_said_within_a_minute_of_traffic_and_ends_with_the_fix(caplog: pytest.LogCaptureFixture) -> None:
    """A drifted drafter becomes an alert within 60 s under the default window, once; a fix clears it as soon."""
    r, server = _two(), Engine()
    r.page(MTP, drafting(0, 0.0, 0.0))
    server.run(r, 600, 0.47, 0.24)
    healthy = r.checklist.state("mtp", "e4b")
    with caplog.at_level(logging.INFO, "gateway.mtp"):
        server.run(r, 60, 0.14, 0.07)
        collapsed = r.checklist.reports()[0]
        server.run(r, 70, 0.47, 0.24)

    assert healthy is MtpState.HEALTHY
    assert collapsed.state is MtpState.DRIFTING
    assert [row.code for row in collapsed.advice] == [Code.DRIFT]
    assert r.checklist.state("mtp", "e4b") is MtpState.HEALTHY
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_position_that_accepts_nothing_is_the_weakest_tail() -> None:
    """A rate of exactly 0 is told, and advised on, as one just above it is; also where it was never more."""
    for before in (0.0, 1e6):
        r, server = _two(), Engine()
        server.steps, server.accepted = before, [0.5 * before, 0.0]
        server.run(r, 60, 0.5, 0.0)
        report = r.checklist.reports()[0]

        assert report.acceptance is not None
        assert report.acceptance.positions == pytest.approx((0.5, 0.0))
        assert report.state is MtpState.WEAK_TAIL
        assert [advice.tokens for advice in report.advice if advice.code is Code.FEWER] == [1]


def test_a_restart_with_another_k_starts_anew() -> None:
    """What was accepted at k=2 says nothing at k=1: the figures are of the new engine only."""
    r, server = _two(), Engine()
    r.page(MTP, drafting(0, 0.0, 0.0))
    server.run(r, 120, 0.47, 0.05)
    weak = r.checklist.state("mtp", "e4b")
    r.clock.now += 5.0
    r.page(MTP, drafting(300, 0.6))
    (report,) = r.checklist.reports()

    assert weak is MtpState.WEAK_TAIL
    assert report.tokens == 1
    assert report.acceptance is not None
    assert report.acceptance.positions == pytest.approx((0.6,))
    assert report.acceptance.drafts == 300


def test_one_endpoint_of_several_with_another_k_does_not_flip_the_pool() -> None:
    """A rolling change counts when most engines have made it; until then nothing is forgotten at each page."""
    r = rig(pool("mtp", MTP, OTHER, "http://third", k=2))
    server = Engine()
    for url in (MTP, OTHER, "http://third"):
        r.page(url, drafting(0, 0.0, 0.0))
    r.page(OTHER, drafting(0, 0.0))
    for _ in range(30):
        server.run(r, 1, 0.5, 0.3)
        r.page(OTHER, drafting(server.steps, 0.5))
    (report,) = r.checklist.reports()

    assert report.tokens == 2
    assert report.acceptance is not None
    assert report.acceptance.drafts >= 1100


def test_two_endpoints_are_summed() -> None:
    """The pool's rate is that of all its drafted tokens, not the mean of its endpoints' rates."""
    r = rig(pool("mtp", MTP, OTHER, k=1))
    for url in (MTP, OTHER):
        r.page(url, drafting(0, 0.0))
    r.clock.now += 1.0
    r.page(MTP, drafting(900, 0.5))
    r.page(OTHER, drafting(100, 0.1))
    found = r.checklist.reports()[0].acceptance

    assert found is not None
    assert found.rate == pytest.approx(0.46)


def test_unknown_without_counters() -> None:
    """SCRAPE-04: an mtp pool whose engine does not export acceptance is unknown, and has no figures."""
    r = _two()
    r.page(MTP, engine(num_requests_running=1.0))
    r.clock.now += 5.0
    r.page(MTP, engine(num_requests_running=1.0))
    (report,) = r.checklist.reports()

    assert (report.state, report.acceptance, report.gain) == (MtpState.UNKNOWN, None, None)


def test_slow_tokens_beat_high_acceptance() -> None:
    """SPEC-06: the engine accepts 80 %, its tokens come slower than the plain pool's: harmful, run without."""
    r, server = _two(), Engine()
    r.page(MTP, drafting(0, 0.0, 0.0))
    for _ in range(40):
        server.run(r, 2, 0.85, 0.75)
        r.checklist.observe_tpot("plain", "e4b", 200, 4, 0.008)
        r.checklist.observe_tpot("mtp", "e4b", 200, 4, 0.010)
    (report,) = r.checklist.reports()

    assert report.state is MtpState.HARMFUL
    assert report.gain is not None
    assert report.gain.gain == pytest.approx(-0.25)
    assert (report.advice[0].code, report.advice[0].tokens) == (Code.HARMFUL, 0)
    assert "2.00 ms per token (25.0%)" in report.advice[0].message


def test_a_gain_that_turns_takes_its_state_along() -> None:
    """From the first answers that make the gain certain or doubtful on, no report shows a state that denies it."""
    r, server = _two(window=60.0), Engine()
    r.page(MTP, drafting(0, 0.0, 0.0))
    states = set()
    for second in range(200):
        server.run(r, 1, 0.6, 0.4)
        for turn in range(2):
            noise = 1.0 + 0.1 * ((second * 7 + turn * 3) % 5 - 2)
            r.checklist.observe_tpot("plain", "e4b", 200, 4, 0.010)
            r.checklist.observe_tpot("mtp", "e4b", 200, 4, (0.009 if 60 < second < 130 else 0.012) * noise)
        (report,) = r.checklist.reports()
        states.add(report.state)
        if report.gain:
            lost = report.gain.high < 0.0
            assert report.state is not (MtpState.HEALTHY if lost else MtpState.HARMFUL)
            assert (Code.HARMFUL in [row.code for row in report.advice]) == (report.state is MtpState.HARMFUL)

    assert {MtpState.HEALTHY, MtpState.HARMFUL, MtpState.UNKNOWN} == states


def _finished(seconds: float, requests: float, tokens: float, running: float) -> str:
    return engine(
        num_requests_running=running,
        request_decode_time_seconds_sum=seconds,
        request_decode_time_seconds_count=requests,
        request_generation_tokens_sum=tokens,
        request_generation_tokens_count=requests,
    )


def test_the_engines_own_times_stand_in() -> None:
    """Without answers of our own to compare, the engines' histograms do, and the figure says so."""
    r = _two()
    r.page(PLAIN, _finished(0, 0, 0, 4))
    r.page(MTP, _finished(0, 0, 0, 4) + drafting(0, 0.0, 0.0))
    for second in range(1, 13):
        r.clock.now += 1.0
        requests = 2.0 * second
        r.page(PLAIN, _finished(requests * 0.99, requests, requests * 100, 4))
        r.page(
            MTP,
            _finished(requests * 0.8415, requests, requests * 100, 4) + drafting(second * 100, 0.5, 0.3, running=4.0),
        )
    (report,) = r.checklist.reports()

    assert report.gain is not None
    assert report.gain.source == "engines"
    assert report.gain.gain == pytest.approx(0.15)
    assert report.gain.plain_seconds == pytest.approx(0.010)


def test_acceptance_by_task() -> None:
    """Answers that carry their own drafting counts give a rate for their task, once there are enough."""
    r = _two()
    for _ in range(10):
        r.checklist.observe_request("mtp", "e4b", Task.CODE, SpecSample(50, 100, 65, (38, 27)))
    r.checklist.observe_request("mtp", "e4b", Task.CHAT, SpecSample(50, 100, 30, (20, 10)))
    by_task = r.checklist.reports()[0].by_task

    assert list(by_task) == [Task.CODE]
    assert by_task[Task.CODE].rate == pytest.approx(0.65)


def test_evidence_that_fades_leaves_unknown() -> None:
    """Without drafts for a whole window nothing is known of the drafter any more."""
    r, server = _two(), Engine()
    r.page(MTP, drafting(0, 0.0, 0.0))
    server.run(r, 120, 0.14, 0.07)
    drifting = r.checklist.state("mtp", "e4b")
    r.clock.now += 601.0

    assert drifting is MtpState.DRIFTING
    assert r.checklist.state("mtp", "e4b") is MtpState.UNKNOWN


def test_what_the_policy_drops_is_forgotten() -> None:
    """A pool that is gone leaves no report and no memory."""
    r = _two()
    r.checklist.observe_tpot("mtp", "e4b", 200, 4, 0.010)
    r.pools.pools[:] = [pool("plain", PLAIN), pool("new", OTHER, k=1)]
    r.view.match()
    r.pools.pools[1].endpoints = [FakeEndpoint(OTHER)]
    r.checklist.observe_tpot("new", "e4b", 200, 4, 0.010)

    assert [report.pool for report in r.checklist.reports()] == ["new"]
    assert {key[0] for key in r.checklist._gains._requests} == {"new"}
