"""Simulated engines for benchmarks under test, each on a thread of its own: the commands run their own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest

from gateway.cli import run
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.servers import serve_in_thread

SCALE = 10.0
TRIES = 3
T = TypeVar("T")


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


def scales(report: dict[str, Any]) -> bool:
    """Whether two slices give clearly more than one."""
    one, two = report["scaling"]
    return bool(two["tok_s"] > 1.3 * one["tok_s"])


async def undisturbed(measure: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """What is measured, by up to `TRIES` measurements until one holds; the last one, for asserts to show, where none
    does. Engines play in real time, so that a machine that does other things moves a figure now and then; one that is
    wrong by itself is wrong each time."""
    for _ in range(TRIES):
        found = await measure()
        if holds(found):
            break
    return found


def undisturbed_command(
    capsys: pytest.CaptureFixture[str], holds: Callable[[dict[str, Any]], bool], *words: str
) -> dict[str, Any]:
    """`measured`, in the way of `undisturbed`."""

    async def measure() -> dict[str, Any]:
        return await asyncio.to_thread(measured, capsys, *words)

    return asyncio.run(undisturbed(measure, holds))


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON of `gateway bench WORDS --json`, which must succeed."""
    code = run(["bench", *words, "--json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    report: dict[str, Any] = json.loads(out.out)
    return report
