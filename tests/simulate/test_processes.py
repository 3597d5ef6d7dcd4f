"""Worker processes of a simulation that is stopped."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children

import pytest

from gateway.simulate.processes import worker_pool


def test_an_interrupt_ends_what_the_workers_play() -> None:
    """Ctrl-C must not wait for hours of submitted cells, nor leave a process behind."""
    played: list[Future[None]] = []

    def play() -> None:
        with worker_pool(2) as pool:
            played.extend(pool.submit(time.sleep, 120.0) for _ in range(8))
            while not any(future.running() for future in played):
                pass
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play()

    assert not active_children()
    assert all(isinstance(future.exception(0.0), BrokenProcessPool) for future in played)


def test_workers_leave_ctrl_c_to_the_command() -> None:
    """The terminal sends it to every process; a worker's traceback would hide what the command says."""
    with worker_pool(1) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN
        assert pool.submit(os.getpid).result() != os.getpid()
