"""The decision log as a file of JSON lines, which several processes may share.

Every batch is appended with one write under a lock on the file, so that lines of different processes do not mix. A
file that has reached its size is renamed to `NAME.1`, that to `NAME.2` and so on; the oldest is dropped.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

KEPT_FILES = 3
"""Full files that are kept besides the current one."""


def append_lines(path: Path, lines: Sequence[bytes], most_bytes: int) -> None:
    """Appends the lines, each with a line feed. Blocks; raises OSError."""
    block = b"".join(line + b"\n" for line in lines)
    while True:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = os.fstat(file)
            if not _is_at(path, state):
                continue
            if state.st_size and state.st_size + len(block) > most_bytes:
                _shift(path)
                continue
            _write(file, block)
            return
        finally:
            os.close(file)


def _is_at(path: Path, state: os.stat_result) -> bool:
    """Whether the open file is still the one of that name: another process may have renamed it meanwhile."""
    try:
        return os.path.samestat(os.stat(path), state)
    except FileNotFoundError:
        return False


def _shift(path: Path) -> None:
    for number in range(KEPT_FILES - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    path.replace(path.with_name(f"{path.name}.1"))


def _write(file: int, block: bytes) -> None:
    while block:
        block = block[os.write(file, block) :]
