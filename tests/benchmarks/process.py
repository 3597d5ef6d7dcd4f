"""Child processes of a benchmark: started on their own core, timed and weighed through /proc (Linux).

CPU time is utime + stime of a process and of all its descendants, with the time of children that have ended and been
waited for; its grain is one clock tick (10 ms), so measured windows last seconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import free_port

_SET_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of Linux's prctl."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
ROOT = Path(__file__).resolve().parents[2]
"""The checkout: children run here, so that `gateway` and `tests` can be imported."""


def _fields(pid: int) -> list[str] | None:
    """`/proc/PID/stat` after the command's name (which may hold spaces); None if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def family(pid: int) -> list[int]:
    """`pid` and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _fields(int(entry))) is not None:
            children.setdefault(int(stat[1]), []).append(int(entry))
    found = [pid]
    for member in found:
        found.extend(children.get(member, ()))
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU seconds used so far by the processes `pids`, their waited-for children included."""
    return sum(sum(map(int, stat[11:15])) for pid in pids if (stat := _fields(pid)) is not None) / _TICKS


def rss_bytes(pids: Sequence[int]) -> int:
    """Resident bytes of the processes `pids`; a page that two of them share counts twice."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the two sides run on; empty is wherever the kernel likes."""

    target: frozenset[int]
    load: frozenset[int]

    @classmethod
    def split(cls) -> Cores:
        """The first core for the target and the second for load and upstream; no pinning on one core."""
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            return cls(frozenset(), frozenset())
        return cls(frozenset(usable[:1]), frozenset(usable[1:2]))


@contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """Children started inside inherit `cores`; this thread gets its own back afterwards."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ending_in_order(main: Callable[[], int]) -> int:
    """`main`'s exit code, or 130 where a signal ended it. SIGTERM and SIGHUP end it as Ctrl-C does: what is on the
    stack cleans up, and children end. Ctrl-C works even where a shell had the program started with that ignored.
    """

    def interrupt(number: int, frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: interrupt, signal.SIGHUP: interrupt}
    for number, handler in handlers.items():
        signal.signal(number, handler)
    try:
        return main()
    except KeyboardInterrupt:
        return 130


def bound_to_parent(number: signal.Signals) -> Callable[[], None] | None:
    """What a child must do before it runs its program, so that it gets this signal when the thread that started it
    ends, even by SIGKILL; None where the system has no such thing."""
    if not sys.platform.startswith("linux"):
        return None
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def bind() -> None:
        prctl(_SET_DEATH_SIGNAL, int(number))
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

    return bind


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    return [free_port() for _ in range(count)]


class StartFailed(Exception):
    """A child ended, or did not answer in time; the message holds the tail of its output."""


@dataclass(slots=True)
class Child:
    """A running program in its own process group; leaving the context ends the group.

    Entering raises StartFailed when there is no such program. The thread that enters must stay.
    """

    argv: Sequence[str]
    log: Path
    cores: frozenset[int] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT
    """The working directory."""
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}
        assert self._process is None, "started twice"
        try:
            with self.log.open("wb") as log, pinned(self.cores):
                self._process = subprocess.Popen(
                    list(self.argv), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    cwd=self.folder, env=environment, start_new_session=True,
                    preexec_fn=bound_to_parent(signal.SIGTERM),
                )  # fmt: skip
        except OSError as error:
            raise StartFailed(str(error)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        for signum, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(process.pid, signum)
                process.wait(patience)
                return
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def output(self) -> str:
        """The last lines that the program printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def wait_until(self, answers: Callable[[], bool], patience: float) -> float:
        """Seconds until `answers()` is true. Raises StartFailed when the program ends or patience does."""
        assert self._process is not None, "not started"
        started = time.monotonic()
        while not answers():
            if self._process.poll() is not None:
                raise StartFailed(f"ended with status {self._process.returncode}\n{self.output()}")
            if time.monotonic() - started > patience:
                raise StartFailed(f"no answer within {patience:.0f} s\n{self.output()}")
            time.sleep(0.02)
        return time.monotonic() - started


def python_module(name: str, *arguments: str) -> list[str]:
    """The command line of `python -m name` in this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def listens(port: int) -> bool:
    """Whether 127.0.0.1:`port` accepts a connection."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5):
            return True
    except OSError:
        return False
