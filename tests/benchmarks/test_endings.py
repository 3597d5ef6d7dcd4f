"""However a benchmark is stopped, nothing that it started goes on."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.chaos_answers import Kind
from tests.benchmarks.chaos_backend import TOKENS_PER_SECOND, scale_for, token_seconds
from tests.benchmarks.chaos_clients import KINDS, LEARNING_PATIENCE
from tests.benchmarks.chaos_fleet import BACKENDS
from tests.benchmarks.process import ROOT, family, python_module

PATIENCE = 60.0


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether it runs; one that ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_malformed_storm_ends_its_gateway(number: signal.Signals, tmp_path: Path) -> None:
    """The gateway's parent process and its workers are gone, whether the storm could clean up or not."""
    command = python_module("tests.benchmarks.malformed", "--requests", "1000000", "--workers", "2")
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as storm:
        # The storm, the gateway, its resource tracker and two workers.
        until(lambda: len(family(storm.pid)) >= 5)
        started = family(storm.pid)[1:]

        storm.send_signal(number)

        until(lambda: not any(map(alive, [storm.pid, *started])))
        # Read first, so that a failure shows what it said.
        assert (tmp_path / "log").read_text().count("Traceback") == 0
    assert storm.returncode == (-number if number is signal.SIGKILL else 130)


def test_a_signal_to_the_chaos_run_ends_all_of_its_fleet(tmp_path: Path) -> None:
    """Six back ends, Redis and the gateway with its workers."""
    command = python_module("tests.benchmarks.chaos", "--quick", "--seconds", "100", "--keep", str(tmp_path))
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as run:
        until(lambda: b"one of six back ends hangs" in (tmp_path / "log").read_bytes())
        started = family(run.pid)[1:]

        run.send_signal(signal.SIGINT)

        until(lambda: not any(map(alive, [run.pid, *started])))
    assert len(started) >= BACKENDS + 1 + 1 + 3
    assert run.returncode == 130


@pytest.mark.parametrize("streams", [1, 60, 200, 1000, 5000])
def test_the_back_ends_are_as_slow_as_their_clients_are_many(streams: int) -> None:
    """All clients together get the same number of tokens, and each its longest answer within the limits of policy and
    harness, even while half of the back ends are ill."""

    def seconds(kind: Kind, at_once: float) -> float:
        return kind.tokens * token_seconds(at_once) / scale

    scale = scale_for(streams, BACKENDS)
    together = streams * scale / token_seconds(streams / BACKENDS)
    longest = max(KINDS, key=lambda kind: kind.tokens)

    assert 0.0 < scale <= 1.0
    assert together <= TOKENS_PER_SECOND * 1.01
    if streams <= 1000:
        assert seconds(longest, 1) < LEARNING_PATIENCE / 4
        assert seconds(longest, 2 * streams / BACKENDS) < 100.0
