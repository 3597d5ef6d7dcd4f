"""The sliding window, against a plain list of what was taken when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.access.window import Window

STEPS = st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(1, 6)), min_size=1, max_size=60)


@given(steps=STEPS, limit=st.integers(1, 12), start=st.floats(0, 1e6))
def test_no_window_holds_more_than_the_limit(steps: list[tuple[float, int]], limit: int, start: float) -> None:
    """Whatever the arrivals, in any 60 s at most the limit passes: no burst at an edge."""
    window, now, taken = Window(60.0), start, list[tuple[float, int]]()
    for pause, need in steps:
        now += pause
        if window.used(now) + need <= limit:
            window.add(need, now)
            taken.append((now, need))

    for at, _ in taken:
        assert sum(units for when, units in taken if at <= when < at + 60.0) <= limit


@given(steps=STEPS, limit=st.integers(6, 12), start=st.floats(0, 1e6))
def test_what_is_promised_is_kept(steps: list[tuple[float, int]], limit: int, start: float) -> None:
    """Nobody starves: after the promised wait, which is at most 61 s, the same need passes, and not much before."""
    window, now = Window(60.0), start
    for pause, need in steps:
        now += pause
        wait = window.wait(need, limit, now)
        assert 0.0 <= wait <= 61.0 + 1e-6
        if wait > 1e-3:
            assert window.used(now + wait - 1e-3) + need > limit
        now += wait + 1e-6
        assert window.used(now) + need <= limit
        window.add(need, now)


@given(steps=STEPS, start=st.floats(0, 1e6))
def test_what_is_taken_back_was_never_there(steps: list[tuple[float, int]], start: float) -> None:
    """Undoing leaves nothing, and never less than nothing."""
    window, now, slots = Window(60.0), start, list[tuple[int, int]]()
    for pause, need in steps:
        now += pause
        slots.append((need, window.add(need, now)))
    for need, slot in slots * 2:
        window.take_back(need, slot)

    assert window.used(now) == 0


def test_memory_does_not_follow_traffic() -> None:
    """A hundred thousand requests are 61 counters."""
    window = Window(60.0)
    for i in range(100_000):
        window.add(1, i * 0.01)

    assert len(window._rows) <= 61
    assert 6000 <= window.used(1000.0) <= 6100
    assert window.empty_in(1000.0) <= 61.0
    assert window.used(1e6) == 0
    assert window.empty_in(1e6) == 0.0


def test_what_never_fits_waits_for_ever() -> None:
    """A need above the limit has no time at which it passes."""
    assert Window(60.0).wait(11, 10, 0.0) == float("inf")
