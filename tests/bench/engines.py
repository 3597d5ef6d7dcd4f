"""Simulated engines for benchmarks under test, each on a thread of its own: the commands run their own event loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from gateway.cli import run
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.servers import serve_in_thread

SCALE = 10.0


@contextmanager
def engines(*ks: int, profile: str = "g4-slice", scale: float = SCALE, **settings: Any) -> Iterator[list[str]]:
    """URLs of one engine for each k, all of the same model and hardware."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                serve_in_thread(
                    create_app(SimSettings(served_names=("e4b",), k=k, profile=profile, time_scale=scale, **settings))
                )
            )
            for k in ks
        ]


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON of `gateway bench WORDS --json`, which must succeed."""
    code = run(["bench", *words, "--json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    report: dict[str, Any] = json.loads(out.out)
    return report
