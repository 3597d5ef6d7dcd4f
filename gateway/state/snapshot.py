"""Learned state in files, for a gateway without Redis: one file per name and process, read together at the start.

A file is written next to its final place, flushed to disk and renamed, so that a reader sees the old one or the new one
and never a part. Its first line carries a format version and a checksum; a file that does not match is ignored with one
warning. Each process writes only its own file, so that no worker overwrites another's.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

log = logging.getLogger("gateway.state")

_MAGIC = "gateway-snapshot 1"
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
MOST_FILES = 64
"""Files of one name that are read, newest first: a bound on what renamed processes can pile up."""
KEPT = 30 * 86400.0
"""Seconds after which another process's file is deleted."""


class Snapshots:
    """A folder of snapshot files. Its methods block: call them from a thread."""

    def __init__(self, folder: Path, replica: str, *, wall: Callable[[], float] = time.time) -> None:
        """`replica` names this process alike across restarts, such as its worker number."""
        self.folder = folder
        self.replica = _UNSAFE.sub("_", replica)
        self._wall = wall
        self._warned: set[Path] = set()
        self._write_failed = False

    def exchange(self, name: str, blob: bytes | None) -> Mapping[str, bytes]:
        """Saves `blob` if given, then loads every process's: the verb `Store.share`."""
        if blob is not None:
            self.save(name, blob)
        return self.load(name)

    def save(self, name: str, blob: bytes) -> bool:
        """Replaces this process's file. False, with one warning until it works again, where the disk refuses."""
        place = self.folder / f"{_UNSAFE.sub('_', name)}.{self.replica}.snapshot"
        draft = place.with_suffix(f".{os.getpid()}.draft")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(f"{_MAGIC} {sha256(blob).hexdigest()}\n".encode())
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(place)
            self._flush_folder()
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            if not self._write_failed:
                log.warning("learned state cannot be saved to %s: %s", self.folder, error.strerror)
            self._write_failed = True
            return False
        self._write_failed = False
        return True

    def load(self, name: str) -> dict[str, bytes]:
        """Blobs by process, this one's included; files that cannot be used are left out."""
        prefix = _UNSAFE.sub("_", name) + "."
        found: dict[str, bytes] = {}
        for place in self._files(prefix):
            if (blob := self._read(place)) is not None:
                found[place.name[len(prefix) : -len(".snapshot")]] = blob
        return found

    def _files(self, prefix: str) -> list[Path]:
        """The newest files of a name; those that nobody has renewed for long are deleted on the way."""
        aged: list[tuple[float, Path]] = []
        try:
            for place in self.folder.glob(prefix + "*.snapshot"):
                age = self._wall() - place.stat().st_mtime
                if age > KEPT:
                    place.unlink(missing_ok=True)
                else:
                    aged.append((age, place))
        except OSError:
            # Another process deletes as well; what is left is still of use.
            pass
        return [place for _, place in sorted(aged)[:MOST_FILES]]

    def _read(self, place: Path) -> bytes | None:
        try:
            head, _, blob = place.read_bytes().partition(b"\n")
        except OSError as error:
            self._warn(place, error.strerror or "unreadable")
            return None
        if head == f"{_MAGIC} {sha256(blob).hexdigest()}".encode():
            return blob
        known = head.startswith(_MAGIC.encode() + b" ")
        self._warn(place, "its checksum does not match" if known else "no snapshot of this version")
        return None

    def _warn(self, place: Path, why: str) -> None:
        if place not in self._warned:
            log.warning("snapshot %s is ignored: %s", place, why)
        self._warned.add(place)

    def _flush_folder(self) -> None:
        """Makes the rename itself survive a power cut."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
