"""A cap on the requests of this process, so that a slow back end cannot pile them up until memory or files run out.

A request holds two open files, the client's socket and the back end's. Idle clients hold one each, which a count of
requests does not show, so the open files themselves are counted now and then, if the system tells.
"""

from __future__ import annotations

import logging
import os
import resource

from gateway.errors import NothingAvailable

log = logging.getLogger("gateway")

MANY_FILES = 1 << 20
RESERVE = 64
"""Files kept for the listener, logs, probes, the policy and shared state."""
FILES_EACH = 2
RETRY_AFTER_SECONDS = 1


class Shedder:
    """Refuses new requests of this process above `cap`, or when files run short."""

    __slots__ = ("_refusing", "_running", "_seen", "_short", "cap", "files", "shed")

    def __init__(self, cap: int, files: int = MANY_FILES) -> None:
        self.cap = cap
        """Concurrent requests, waiting ones included."""
        self.files = files
        """The limit on open files; set at start, see `raise_file_limit`."""
        self._running = 0
        self.shed = 0
        """Requests refused since the start."""
        self._seen = 0
        self._refusing = False
        self._short = False

    @property
    def limit(self) -> int:
        """Concurrent requests that are admitted: the cap, or what the limit on files allows if that is less."""
        return max(1, min(self.cap, (self.files - RESERVE) // FILES_EACH))

    def check(self, running: int) -> None:
        """Raises NothingAvailable if `running` requests, the new one included, are too many."""
        self._running = running
        if self._short or running > self.limit:
            self.shed += 1
            what = "too many open files" if self._short else f"too many requests: {self._most()}"
            raise NothingAvailable(f"this gateway process has {what}", retry_after=RETRY_AFTER_SECONDS)

    def _most(self) -> str:
        """How many may run, and whose limit that is."""
        whose = "server.max_requests" if self.limit == self.cap else "half of the open files, ulimit -n"
        return f"at most {self.limit} at one time ({whose})"

    def look(self) -> None:
        """Tells of refusals, once for as long as they go on, and counts open files if many requests run, as listing
        them takes a while. Called once a second."""
        refusing = self.shed > self._seen
        if refusing and not self._refusing and not self._short:
            log.warning("refusing requests: %s; more processes or replicas take more", self._most())
        self._seen, self._refusing = self.shed, refusing
        short = False
        if self._running * FILES_EACH * 4 > self.files or self._short:
            short = self.files - open_files() < RESERVE // 2
        if short and not self._short:
            log.warning("refusing requests: nearly all of %d files are open (ulimit -n)", self.files)
        self._short = short


def open_files() -> int:
    """Files that this process has open; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def raise_file_limit(wanted: int) -> int:
    """Lifts the soft limit on open files towards what `wanted` requests need; returns the limit as it is then.

    Logs a warning where the hard limit does not allow it, with the number to ask for.
    """
    need = wanted * FILES_EACH + RESERVE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return need
    if soft < need:
        aim = need if hard == resource.RLIM_INFINITY else min(need, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
            soft = aim
        except (OSError, ValueError):
            log.info("the limit on open files stays at %d", soft)
    if soft < need:
        log.warning(
            "at most %d files may be open (ulimit -n), which is enough for %d requests at once and not for %d; "
            "%d files are needed for those",
            soft,
            max(1, (soft - RESERVE) // FILES_EACH),
            wanted,
            need,
        )
    return soft
