"""The running margins that keep the p90 true."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.estimate.calibration import Calibration
from gateway.types import Task


@pytest.mark.parametrize("shape", ["gauss", "lognormal", "discrete"])
def test_nine_of_ten_come_to_lie_below(shape: str) -> None:
    """Whatever the errors look like, 85 to 95 % of the later ones are at or below the margin."""
    rng = random.Random(4)
    draws: dict[str, Callable[[], float]] = {
        "gauss": lambda: rng.gauss(0.5, 2.0),
        "lognormal": lambda: rng.lognormvariate(0.0, 0.6),
        "discrete": lambda: rng.choice([0.0, 1.0, 2.0]),
    }
    draw = draws[shape]
    calibration = Calibration({})
    below = []
    for i in range(1500):
        ratio = draw()
        if i >= 300:
            below.append(ratio <= calibration.margin(Task.CHAT))
        calibration.learn(Task.CHAT, ratio)

    assert 0.85 <= sum(below) / len(below) <= 0.95


def test_tasks_are_apart() -> None:
    """What one task teaches does not move another's margin."""
    calibration = Calibration({Task.CODE: 1.5})
    for _ in range(50):
        calibration.learn(Task.CHAT, 5.0)

    assert calibration.margin(Task.CODE) == 1.5
    assert calibration.margin(Task.CHAT) > 3.0


def test_merges_in_any_order() -> None:
    """Two workers' margins average by what each has seen, whoever comes first."""
    a, b = Calibration({}), Calibration({})
    for _ in range(30):
        a.learn(Task.CHAT, 4.0)
    for _ in range(10):
        b.learn(Task.CHAT, -1.0)
    left, right = Calibration({}), Calibration({})
    for target, order in ((left, (a, b)), (right, (b, a))):
        for each in order:
            target.merge(each.snapshot())

    assert left.margin(Task.CHAT) == pytest.approx(right.margin(Task.CHAT))
    assert b.margin(Task.CHAT) < left.margin(Task.CHAT) < a.margin(Task.CHAT)


@given(st.one_of(st.binary(max_size=60), st.sampled_from([b"[]", b"1", b'{"chat": 1}', b'{"x": [1, 2]}'])))
def test_refuses_any_other_bytes(data: bytes) -> None:
    """Bytes that are not a calibration's raise ValueError."""
    if data.strip() == b"{}":
        return
    with pytest.raises(ValueError):  # noqa: PT011 - json's own message or ours
        Calibration({}).merge(data)
