"""What a joining prompt costs running answers: from invented chunk times, and from engines whose stall is known."""

from __future__ import annotations

from time import monotonic

import pytest

from gateway.bench.client import BenchError, Endpoint, Target
from gateway.bench.probes import Prober
from gateway.bench.stall import JOINS, RUNNING, Stall, stalls
from gateway.profiles import get_profile
from tests.bench.engines import engines, undisturbed

TOLERANCE = 0.15
"""Share by which the stall of a simulated engine may be missed: its steps wait for a timer and its chunks for a socket
on a machine that does other things."""


def chunks(step: float, joins: list[float], stall: float, until: float, start: float = 0.0) -> list[float]:
    """An answer's chunk times: a step that starts when a prompt waits takes longer."""
    times, now, left = [], start, sorted(joins)
    while now < until:
        joined = [at for at in left if at <= now]
        left = left[len(joined) :]
        now += step + (stall if joined else 0.0)
        times.append(now)
    return times


def test_the_stall_is_what_the_steps_before_do_not_explain() -> None:
    """Steps of 7 ms and a stall of 12 ms, found exactly wherever within a step the prompt comes."""
    sent = [0.200 + 0.1503 * i for i in range(JOINS)]
    times = chunks(0.007, sent, 0.012, 2.0)
    joins = [(at, next(t for t in times if t >= at + 0.019)) for at in sent]
    found = stalls([times] * 3, joins)

    assert found == pytest.approx([0.012] * JOINS)


def test_an_answer_that_is_late_for_another_reason_does_not_move_the_join() -> None:
    """One answer of three that hiccups for 200 ms is outvoted; a join without enough chunks around it is left out."""
    times = chunks(0.007, [0.2], 0.012, 1.0)
    late = [t + (0.2 if t > 0.21 else 0.0) for t in times]

    assert stalls([times, late, times], [(0.2, 0.225), (0.003, 0.02), (0.99, 1.2)]) == pytest.approx([0.012])


def test_a_stall_is_never_negative_and_outliers_do_not_move_it() -> None:
    """The mean of the middle half; the spread tells what was seen."""
    noise = Stall.of([-0.004, -0.002, -0.001, 0.001])
    spiked = Stall.of([0.0118, 0.012, 0.0121, 0.0122, 0.0119, 0.012, -0.03, 0.4])

    assert noise.seconds == 0.0
    assert noise.low < 0.0
    assert spiked.seconds == pytest.approx(0.012, rel=0.02)
    assert "12.0 ms (half of 8 joins" in str(spiked)


def test_nothing_measured_is_an_error() -> None:
    """A stall is not invented where no prompt could join."""
    with pytest.raises(BenchError, match="ended too early"):
        Stall.of([])


@pytest.mark.parametrize("k", [0, 2])
async def test_the_known_stall_is_found_again(k: int) -> None:
    """A simulated engine's stall, plain and drafting, through real sockets."""
    profile = get_profile("g4-slice", "e4b")
    known = pytest.approx(profile.prefill_stall_seconds(256, k), rel=TOLERANCE)
    with engines(k, scale=1.0) as [url]:
        endpoint = await Endpoint(Target(label="any", url=url), monotonic).open()
        try:
            prober = Prober(endpoint, endpoint, 64, 1)
            found = await undisturbed(
                lambda: prober.stall(endpoint, 1), lambda found: bool(found.seconds == known and found.joins == JOINS)
            )
        finally:
            await endpoint.aclose()

    assert found.joins == JOINS
    assert found.running == RUNNING
    assert found.seconds == known
    assert found.low <= found.seconds <= found.high
