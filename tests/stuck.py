"""Ends a block that would hold up the event loop, as a search does that takes the square of its text's length."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_stuck(seconds: int = 60) -> Iterator[None]:
    """Raises AssertionError out of the block after more seconds than any machine needs. In the main thread only."""

    def stuck(*_: object) -> None:
        raise AssertionError("this takes far longer than its text is long")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
