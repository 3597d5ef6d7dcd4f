"""Snapshot files: whole or not at all, one per process, and no bad file stops a start."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gateway.state.snapshot import KEPT, MOST_FILES, Snapshots


def test_what_was_saved_is_loaded_by_the_next_start(tmp_path: Path) -> None:
    """Any bytes come back, the folder is made, and a new save replaces the old one."""
    folder = tmp_path / "deep" / "er"
    Snapshots(folder, "w").save("lengths", b"old")
    Snapshots(folder, "w").save("lengths", b"\x00\n\xff")

    assert Snapshots(folder, "w").load("lengths") == {"w": b"\x00\n\xff"}
    assert [path.name for path in folder.iterdir()] == ["lengths.w.snapshot"]


def test_names_do_not_mix_and_cannot_leave_the_folder(tmp_path: Path) -> None:
    """A name is a name and never a path."""
    here = Snapshots(tmp_path / "in", "../w")
    here.save("../../lengths", b"x")
    here.save("other", b"y")

    assert here.load("other") == {"___w": b"y"}
    assert {path.parent for path in tmp_path.rglob("*.snapshot")} == {tmp_path / "in"}


@pytest.mark.parametrize("damage", [b"", b"garbage", b"gateway-snapshot 9 00\nx", None])
def test_a_damaged_file_is_ignored_with_one_warning(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut short, foreign or of another version: the others are loaded all the same."""
    snapshots = Snapshots(tmp_path, "good")
    snapshots.save("lengths", b"fine")
    Snapshots(tmp_path, "bad").save("lengths", b"lost in a crash")
    place = tmp_path / "lengths.bad.snapshot"
    place.write_bytes(place.read_bytes()[:-3] if damage is None else damage)

    for _ in range(3):
        assert snapshots.load("lengths") == {"good": b"fine"}
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_disk_that_refuses_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Learning goes on in memory; the warning comes again after a save that worked."""
    (tmp_path / "file").write_text("not a folder")
    snapshots = Snapshots(tmp_path / "file", "w")

    assert not snapshots.save("lengths", b"x")
    assert not snapshots.save("lengths", b"x")
    assert len(caplog.records) == 1
    assert snapshots.load("lengths") == {}

    (tmp_path / "file").unlink()
    assert snapshots.save("lengths", b"x")


def test_files_of_processes_long_gone_are_bounded(tmp_path: Path) -> None:
    """The newest files count, and what nobody has renewed for a month is deleted."""
    for i in range(MOST_FILES + 5):
        Snapshots(tmp_path, f"p{i}").save("lengths", b"x")
        os.utime(tmp_path / f"lengths.p{i}.snapshot", (time.time() - 1000 + i,) * 2)
    old = tmp_path / "lengths.p0.snapshot"
    os.utime(old, (time.time() - KEPT - 10,) * 2)

    found = Snapshots(tmp_path, "w").load("lengths")

    assert len(found) == MOST_FILES
    assert f"p{MOST_FILES + 4}" in found
    assert not old.exists()
