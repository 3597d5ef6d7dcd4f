"""Limits per minute in memory that workers share: it counts as one window does, whoever takes, leaves or dies."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.window import Window
from gateway.state import board
from gateway.state.board import Board
from gateway.state.minutes import WORDS, SharedWindow

SPAWN = multiprocessing.get_context("spawn")
WORKERS = 3
STEPS = st.lists(
    st.tuples(st.floats(0.0, 70.0), st.integers(0, WORKERS - 1), st.integers(0, 9), st.booleans()), max_size=40
)


def windows(workers: int = WORKERS) -> list[SharedWindow]:
    words = memoryview(bytearray(8 * WORDS * workers)).cast("q")
    return [SharedWindow(words, own, 60.0) for own in range(workers)]


@given(steps=STEPS, need=st.integers(1, 9))
def test_all_workers_together_count_as_one_window(steps: list[tuple[float, int, int, bool]], need: int) -> None:
    """Units, what is taken back, when there is room again, when all is free: the same, seen by any of them."""
    shared, alone, now = windows(), Window(60.0), 1000.0
    for pause, worker, units, undone in steps:
        now += pause
        slot = shared[worker].add(units, now)
        assert slot == alone.add(units, now)
        if undone:
            for window in (shared[worker], alone):
                window.take_back(units // 2, slot)

        assert {window.used(now) for window in shared} == {alone.used(now)}
        assert {window.wait(need, 10, now) for window in shared} == {alone.wait(need, 10, now)}
        assert {window.empty_in(now) > 0 for window in shared} == {alone.used(now) > 0}
    assert {window.used(now + 62.0) for window in shared} == {0}


def test_what_was_cut_amid_a_write_is_counted_right_by_the_successor() -> None:
    """A worker may die after it has noted the sum and before the slot, or the other way round."""
    words = memoryview(bytearray(8 * WORDS)).cast("q")
    SharedWindow(words, 0, 60.0).add(5, 1000.0)
    words[1] += 70

    assert SharedWindow(words, 0, 60.0).used(1000.0) == 5


def die_with_units(folder: Path) -> None:
    window = Board(folder, 2).window("alpha", 600.0)
    assert window is not None
    window.add(7, time.monotonic())
    os._exit(1)


def test_a_dead_workers_units_count_on(tmp_path: Path) -> None:
    """OPS-04: its back ends have served them, so that a limit per minute is no higher because a worker was killed."""
    living = Board(tmp_path / "b", 2).window("alpha", 600.0)
    worker = SPAWN.Process(target=die_with_units, args=(tmp_path / "b",))
    worker.start()
    worker.join()
    successor = Board(tmp_path / "b", 2).window("alpha", 600.0)
    assert living is not None
    assert successor is not None
    assert [window.used(time.monotonic()) for window in (living, successor)] == [7, 7]

    successor.add(2, time.monotonic())
    assert living.used(time.monotonic()) == 9


def test_a_full_table_or_disk_shares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What finds no place is divided among the workers, and what has one stays."""
    monkeypatch.setattr(board, "MINUTES", 1)
    made = Board(tmp_path / "b", 1)
    assert [made.window(name, 60.0) is not None for name in ("a", "b", "a")] == [True, False, True]

    other = Board(tmp_path / "c", 1)
    (tmp_path / "c" / "minutes").mkdir()
    assert other.window("a", 60.0) is None
    assert "equal share" in caplog.text
