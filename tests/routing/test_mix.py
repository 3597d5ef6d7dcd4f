"""What runs in a pool on average: how long a burst is still there."""

from __future__ import annotations

from random import Random

import pytest

from gateway.routing.mix import Mix


def mix_of(*seconds: float, requests: int = 400) -> Mix:
    """After requests that took so long, each of these equally often, in no order."""
    mix, rng = Mix(), Random(1)
    for _ in range(requests):
        mix.add(others=4.0, prompt=0.01, endpoints=1, context=300.0, first=0.01, seconds=rng.choice(seconds))
    return mix


def left(mix: Mix, seconds: float) -> float:
    """The share of a burst's others that is met on average in the seconds after it."""
    return (mix.during(20.0, seconds) - mix.others) / (20.0 - mix.others)


def test_few_long_answers_among_many_short_ones_stay_as_long_as_they_take() -> None:
    """Who is met is a long one, though most requests are short: the burst lasts while they do."""
    mixed = mix_of(*[0.2] * 9, 20.0)

    assert mixed.residence < 5.0
    assert left(mixed, 10.0) > 2.0 * left(mix_of(mixed.residence), 10.0)
    assert left(mixed, 10.0) == pytest.approx(left(mix_of(10.0), 10.0), rel=0.2)


def test_others_return_to_their_usual_number() -> None:
    """Soon it is as many as now, later as many as ever; before anything is known it is as many as now."""
    mix = mix_of(2.0)

    assert left(mix, 0.01) == pytest.approx(1.0, abs=0.02)
    assert left(mix, 200.0) < 0.02
    assert Mix().during(20.0, 5.0) == 20.0
