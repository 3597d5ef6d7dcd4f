"""Worker processes that never outlive the command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool that ends at once if the block does so by an exception, such as ctrl-C.

    Without this, `ProcessPoolExecutor` would first play all that was submitted.
    """
    # Ctrl-C reaches every process of the terminal; only the parent may react, and it takes the others along.
    with ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield pool
        except BaseException:
            for child in active_children():
                child.terminate()
            raise
