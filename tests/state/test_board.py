"""Counts in a file that workers map: what each sees of the others, and what a dead one leaves."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from gateway.exposition import DIRECTORY
from gateway.settings import resolve
from gateway.state import board
from gateway.state.board import SPARE, Board, Place, shared_counts

SPAWN = multiprocessing.get_context("spawn")


def place_of(made: Board, name: str) -> Place:
    place = made.place(name)
    assert place is not None
    return place


def test_each_sees_what_the_others_say(tmp_path: Path) -> None:
    """A name has one count per worker, whoever came to it first; names of any script are names of their own."""
    one, two = Board(tmp_path / "b", 2), Board(tmp_path / "b", 2)
    names = ["alpha", "beta", "夜間バッチ", ""]
    ours, theirs = [place_of(one, n) for n in names], [place_of(two, n) for n in reversed(names)][::-1]
    for number, place in enumerate(ours):
        place.say(number + 1)
    theirs[2].say(10)

    assert [place.total() for place in ours] == [place.total() for place in theirs] == [1, 2, 13, 4]
    ours[2].say(0)
    assert theirs[2].total() == 10


def die_with_a_count(folder: Path) -> None:
    place_of(Board(folder, 2), "alpha").say(7)
    os._exit(1)


def test_a_dead_workers_counts_end_with_its_successor(tmp_path: Path) -> None:
    """METRIC-02: the process that takes its row begins at nothing; the living one's counts stay."""
    living = place_of(Board(tmp_path / "b", 2), "alpha")
    living.say(1)
    worker = SPAWN.Process(target=die_with_a_count, args=(tmp_path / "b",))
    worker.start()
    worker.join()
    assert living.total() == 8

    successor = place_of(Board(tmp_path / "b", 2), "alpha")
    assert (living.total(), successor.total()) == (1, 1)


def test_a_full_table_has_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes late counts by its share, as without a board; those that are in it stay."""
    monkeypatch.setattr(board, "NAMES", 4)
    made = Board(tmp_path / "b", 1)
    places = [made.place(f"key-{number}") for number in range(5)]

    assert [place is not None for place in places] == [True] * 4 + [False]
    assert made.place("key-0") is not None


def test_a_worker_beyond_the_spare_rows_is_told(tmp_path: Path) -> None:
    """Two may join while the gateway runs; a further one has nowhere to write, rather than another's row."""
    made = [place_of(Board(tmp_path / "b", 1), "alpha") for _ in range(1 + SPARE)]
    with pytest.raises(OSError, match="more than 3 workers"):
        Board(tmp_path / "b", 1)
    for place in made:
        place.say(1)

    assert made[0].total() == 1 + SPARE


def test_a_disk_that_cannot_hold_it_is_told_and_no_reason_not_to_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The limits are then divided among the workers."""
    env = {DIRECTORY: str(tmp_path)}
    assert shared_counts(resolve({"workers": 2}, {}), env) is not None
    (tmp_path / "in-flight" / "counts").unlink()
    (tmp_path / "in-flight" / "counts").mkdir()

    assert shared_counts(resolve({"workers": 2}, {}), env) is None
    assert "equal share" in caplog.text


def test_one_worker_or_redis_needs_no_board(tmp_path: Path) -> None:
    """Nothing is written then."""
    env = {DIRECTORY: str(tmp_path)}
    assert shared_counts(resolve({"workers": 1}, {}), env) is None
    assert shared_counts(resolve({"workers": 2, "redis_url": "redis://127.0.0.1:1"}, {}), env) is None
    assert shared_counts(resolve({"workers": 2}, {}), {}) is None
    assert not list(tmp_path.iterdir())
