"""Counts that the workers of one `gateway serve` share in memory: how many requests each of them runs for each key, and
what each has taken of limits per minute.

All of them map files of their common folder. A file holds a table of names, as 64-bit hashes, and for each name some
words per worker. A worker writes its own words only, so that nothing is locked but the entry of a new name. It first
writes its new count and then adds up everybody's: of two workers that take the last place at once, at least one sees
the other. A worker that dies leaves its words to its successor, which begins by setting its running requests to 0; what
was taken of a minute is counted to that minute's end (`minutes`).
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
from struct import calcsize
from typing import Literal

from gateway.exposition import DIRECTORY, worker_number
from gateway.settings import Settings
from gateway.state.minutes import WORDS, SharedWindow

log = logging.getLogger("gateway.state")

NAMES = 4096
"""Keys with a limit that the table can hold. Names stay until the gateway ends; what comes later finds no place."""
MINUTES, MINUTES_BYTES = 1024, 8 * 2**20
"""Limits per minute, likewise, and the most that their file may take: each has half a kilobyte per worker."""
SPARE = 2
"""Rows beyond one per worker."""
_NAME_BYTES = 8


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


class _Table:
    """One file: names, and for each the same number of cells, of `code`'s size (see `struct`)."""

    def __init__(self, path: Path, names: int, cells: int, code: Literal["i", "q"]) -> None:
        """Raises OSError where the disk cannot hold the file."""
        self._path = path
        self._each = cells
        size = names * (_NAME_BYTES + cells * calcsize(code))
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Written, not only made as long: a page for which the disk has no room would end the process later.
            file.write(bytes(max(size - file.seek(0, os.SEEK_END), 0)))
            file.flush()
            # The map keeps a descriptor of its own, and with it the lock.
            fcntl.flock(file, fcntl.LOCK_UN)
            whole = memoryview(mmap.mmap(file.fileno(), size))
        self._names = whole[: names * _NAME_BYTES].cast("Q")
        self.cells = whole[names * _NAME_BYTES :].cast(code)

    def of(self, name: str) -> memoryview | None:
        """A name's cells; None where the table is full."""
        at = self._find(int.from_bytes(sha256(name.encode()).digest()[:_NAME_BYTES]) or 1)
        return None if at is None else self.cells[at * self._each : (at + 1) * self._each]

    def _find(self, hashed: int) -> int | None:
        """The name's index, which is made if need be: the first free one from where its hash points."""
        names = len(self._names)
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for at in range(hashed, hashed + names):
                if self._names[at % names] in (0, hashed):
                    self._names[at % names] = hashed
                    return at % names
        return None


class Board:
    """One worker's side of the files. It takes a row that lasts as long as the process."""

    def __init__(self, folder: Path, workers: int) -> None:
        """`folder` and `workers` are the same for all of them. Raises OSError where the disk cannot hold the counts."""
        self._rows = workers + SPARE
        folder.mkdir(exist_ok=True)
        self._row = worker_number(folder)
        if self._row >= self._rows:
            raise OSError(f"there are more than {self._rows} workers")
        self._folder = folder
        self._counts = _Table(folder / "counts", NAMES, self._rows, "i")
        self._counts.cells[self._row :: self._rows] = memoryview(array("i", bytes(NAMES * calcsize("i"))))
        self._minutes: _Table | None = None

    def place(self, name: str) -> Place | None:
        """This worker's place for a name; None where the table is full."""
        counts = self._counts.of(name)
        return None if counts is None else Place(counts, self._row)

    def window(self, name: str, seconds: float) -> SharedWindow | None:
        """What all workers take of a limit per so many seconds; None where the table is full or the disk is."""
        try:
            if self._minutes is None:
                cells = self._rows * WORDS
                names = min(MINUTES, MINUTES_BYTES // (cells * calcsize("q")))
                self._minutes = _Table(self._folder / "minutes", names, cells, "q")
            words = self._minutes.of(name)
        except OSError as error:
            log.warning("workers cannot share limits per minute; each has its equal share: %s", error)
            return None
        return None if words is None else SharedWindow(words, self._row, seconds)


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
        log.warning("workers cannot share counts; each has its equal share of every limit: %s", error)
        return None
