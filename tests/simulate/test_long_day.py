"""A day at a high rate, in parts that are played side by side."""

from __future__ import annotations

from gateway.simulate.long_day import PARTS, play_day


def test_a_day_is_the_same_however_many_processes_play_it() -> None:
    """The figures hang on the seed alone, and another seed is another day."""
    told: list[tuple[int, int]] = []
    one = play_day(20.0, 0.05, 1, 1, lambda done, of: told.append((done, of)))
    two = play_day(20.0, 0.05, 2, 1, lambda done, of: None)
    other = play_day(20.0, 0.05, 1, 2, lambda done, of: None)

    assert one == two
    assert one["mean_s"] != other["mean_s"]
    assert told == [(done, PARTS) for done in range(1, PARTS + 1)]
    assert [part["hour"] for part in one["parts"]] == sorted(part["hour"] for part in one["parts"])
    assert one["requests"] == sum(part["requests"] for part in one["parts"]) > 2_000
