"""The file of decisions: whole lines, bounded size, more than one writer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gateway.decisions.file import KEPT_FILES, append_lines


def test_a_full_file_is_put_aside(tmp_path: Path) -> None:
    """The newest lines are in the file of that name, older ones in numbered files, and the oldest are dropped."""
    path = tmp_path / "decisions.jsonl"
    for number in range(12):
        append_lines(path, [b"%02d" % number * 5], 22)

    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["decisions.jsonl", *(f"decisions.jsonl.{n}" for n in range(1, KEPT_FILES + 1))]
    assert path.read_bytes().split() == [b"10" * 5, b"11" * 5]
    assert (tmp_path / "decisions.jsonl.1").read_bytes().split() == [b"08" * 5, b"09" * 5]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_above_the_size_is_written_all_the_same(tmp_path: Path) -> None:
    """A limit below one line costs a file per line, and never loops."""
    path = tmp_path / "decisions.jsonl"
    append_lines(path, [b"x" * 100], 10)
    append_lines(path, [b"y" * 100], 10)

    assert path.read_bytes() == b"y" * 100 + b"\n"


def test_writers_do_not_mix_or_lose_lines(tmp_path: Path) -> None:
    """Worker processes share one file, also while it is put aside."""
    path = tmp_path / "decisions.jsonl"

    def write(writer: int) -> None:
        for number in range(30):
            append_lines(path, [b"%d-%02d" % (writer, number)] * 5, 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    found = [line for file in tmp_path.iterdir() for line in file.read_bytes().splitlines()]
    assert all(len(line) == 4 for line in found)
    assert len(found) == 600
