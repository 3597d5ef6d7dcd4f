"""Counts that the workers of one `gateway serve` share in memory: how many requests each of them runs for each key.

All of them map one file of their common folder. It holds a table of names, as 64-bit hashes, and for each name one
count per worker. A worker writes its own counts only, whole words, so that nothing is locked but the entry of a new
name. It first writes its new count and then adds up everybody's: of two workers that take the last place at once, at
least one sees the other. A worker that dies leaves its counts to its successor, which begins by setting them to 0.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
from array import array
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from gateway.exposition import DIRECTORY, worker_number
from gateway.settings import Settings

log = logging.getLogger("gateway.state")

NAMES = 4096
"""Keys with a limit that the table can hold. Names stay until the gateway ends; what comes later finds no place."""
SPARE = 2
"""Rows beyond one per worker."""
_NAME_BYTES, _COUNT_BYTES = 8, 4


class Place:
    """One worker's count of one key, beside those of the other workers."""

    __slots__ = ("_counts", "_own")

    def __init__(self, counts: memoryview, own: int) -> None:
        """`counts` are all workers' counts of the key, of which `own` is this worker's."""
        self._counts = counts
        self._own = own

    def say(self, count: int) -> None:
        """Tells the others this worker's count."""
        self._counts[self._own] = count

    def total(self) -> int:
        """All workers' counts together."""
        return sum(self._counts.tolist())


class Board:
    """One worker's side of the file. It takes a row that lasts as long as the process."""

    def __init__(self, folder: Path, workers: int) -> None:
        """`folder` and `workers` are the same for all of them. Raises OSError where the disk cannot hold the file."""
        self._rows = workers + SPARE
        folder.mkdir(exist_ok=True)
        self._row = worker_number(folder)
        if self._row >= self._rows:
            raise OSError(f"there are more than {self._rows} workers")
        self._path = folder / "counts"
        cells = NAMES * self._rows
        size = NAMES * _NAME_BYTES + cells * _COUNT_BYTES
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Written, not only made as long: a page for which the disk has no room would end the process later.
            file.write(bytes(max(size - file.seek(0, os.SEEK_END), 0)))
            file.flush()
            # The map keeps a descriptor of its own, and with it the lock.
            fcntl.flock(file, fcntl.LOCK_UN)
            whole = memoryview(mmap.mmap(file.fileno(), size))
        self._names = whole[: NAMES * _NAME_BYTES].cast("Q")
        self._counts = whole[NAMES * _NAME_BYTES :].cast("i")
        self._counts[self._row :: self._rows] = memoryview(array("i", bytes(NAMES * _COUNT_BYTES)))

    def place(self, name: str) -> Place | None:
        """This worker's place for a name; None where the table is full."""
        at = self._find(int.from_bytes(sha256(name.encode()).digest()[:_NAME_BYTES]) or 1)
        return None if at is None else Place(self._counts[at * self._rows : (at + 1) * self._rows], self._row)

    def _find(self, hashed: int) -> int | None:
        """The name's index, which is made if need be: the first free one from where its hash points."""
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for at in range(hashed, hashed + NAMES):
                if self._names[at % NAMES] in (0, hashed):
                    self._names[at % NAMES] = hashed
                    return at % NAMES
        return None


def shared_counts(settings: Settings, env: Mapping[str, str]) -> Board | None:
    """The board of the workers of this gateway; None where one worker or Redis counts for all.

    None as well, and a line in the log, where there can be no file.
    """
    folder = env.get(DIRECTORY)
    if not folder or settings.workers == 1 or settings.redis_url:
        return None
    try:
        return Board(Path(folder) / "in-flight", settings.workers)
    except OSError as error:
        log.warning("workers cannot share counts; each has its equal share of `in_flight`: %s", error)
        return None
