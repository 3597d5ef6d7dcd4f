"""Starts an engine per draft depth from a command template, waits until it serves, and stops it again."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from gateway.bench.client import BenchError, Endpoint, Target, UsageError

POLL = 0.25
STOP = 30.0
"""Seconds from SIGTERM to SIGKILL."""


class Launcher:
    """One engine at a time. The command runs without a shell; `{k}` is the depth, `{speculative}` is `none` or `mtp`.

    A command that exits with 0 has handed the engine to a supervisor (such as compose); the engine is still expected
    at the URL. Any other server that answers there would be measured in its place, so that where one does already, only
    such a command may replace it.
    """

    def __init__(self, template: str, url: str, seconds: float) -> None:
        """Raises UsageError for a template without `{k}`."""
        if "{k}" not in template:
            raise UsageError("--command needs {k}, as in: gateway sim --speculative mtp --k {k} --port 9000")
        self._template = template
        self._url = url
        self._seconds = seconds

    def command(self, k: int) -> list[str]:
        """The command's arguments for depth `k`."""
        kind = "mtp" if k else "none"
        return [word.replace("{k}", str(k)).replace("{speculative}", kind) for word in shlex.split(self._template)]

    @asynccontextmanager
    async def running(self, k: int) -> AsyncIterator[None]:
        """Runs the engine for the block. Raises BenchError if it does not come up."""
        words = self.command(k)
        endpoint = Endpoint(Target(label=f"k={k}", url=self._url), monotonic)
        taken = await endpoint.ready()
        try:
            process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
        except OSError as error:
            raise BenchError(f"--command: {words[0]}: {error.strerror}") from error
        try:
            await self._serving(process, k, endpoint, taken=taken)
            yield
        finally:
            await endpoint.aclose()
            await _stop(process)

    async def _serving(self, process: asyncio.subprocess.Process, k: int, endpoint: Endpoint, *, taken: bool) -> None:
        until = monotonic() + self._seconds
        while True:
            if process.returncode:
                raise BenchError(f"--command for k={k} exited with code {process.returncode}; see its output above")
            waits = taken and process.returncode is None
            if not waits and await endpoint.ready():
                return
            if monotonic() > until:
                what = "another server answers" if waits else "nothing serves"
                remedy = "stop it first" if waits else "--start-timeout"
                raise BenchError(f"k={k}: {what} at {self._url} after {self._seconds:g} s ({remedy})")
            await asyncio.sleep(POLL)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
