"""One task that owns one Redis client and turns submitted commands into pipelines.

While a pipeline is under way, new commands gather and go together in the next (group commit). Callers hold futures
only: one that is cancelled neither cancels the command nor leaves an answer for the next caller to read. Waiting for
the lane is no failure; only what Redis or the connection says is. After any failure of the connection the client is
thrown away with all its sockets and a new one is made, so that no half-read answer survives.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from redis.exceptions import NoScriptError, ResponseError

from gateway.state.link import Link
from gateway.state.scripts import Script

log = logging.getLogger("gateway.state")

_WORD = re.compile(r"(?<![\w.])(?!ERR\b)[A-Z]{3,16}(?= )")


class Pipeline(Protocol):
    """What a lane needs of redis-py's pipelines."""

    def execute_command(self, *args: Any) -> Any: ...

    async def execute(self, raise_on_error: bool = ...) -> list[Any]: ...


class Client(Protocol):
    """What a lane needs of a client, whether for one server, behind Sentinel or for a cluster."""

    def pipeline(self) -> Pipeline: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Command:
    """A script on one key, or a plain command whose words are all in `args`."""

    script: Script | None
    key: str
    args: tuple[str | bytes | int, ...]

    def words(self, *, whole: bool) -> tuple[str | bytes | int, ...]:
        """For the wire. `whole` sends the script's text, which also makes Redis remember it."""
        if self.script is None:
            return self.args
        head = ("EVAL", self.script.text) if whole else ("EVALSHA", self.script.sha)
        return (*head, 1, self.key, *self.args)


class Lane:
    """Create it anywhere, and `start` it on the event loop that it is to run on."""

    def __init__(
        self,
        connect: Callable[[], Client],
        link: Link,
        *,
        clock: Callable[[], float],
        deadline: float,
        batch: int = 128,
        capacity: int = 4096,
    ) -> None:
        """`deadline`: seconds for one pipeline, connecting included. `capacity`: commands that may wait."""
        self.link = link
        self.strikes = 0
        """Pipelines in a row that took longer than `slow_after`."""
        self.slow_after = float("inf")
        self._connect = connect
        self._clock = clock
        self._deadline = deadline
        self._batch = batch
        self._capacity = capacity
        self._client: Client | None = None
        self._queue: deque[tuple[Command, asyncio.Future[Any]]] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._busy_since: float | None = None
        self._closing = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gateway-redis-lane")

    async def aclose(self) -> None:
        """Lets the pipeline under way end, which the deadline bounds. Cancelling it is the last resort only: the
        client library can swallow a cancellation that meets an answer, and would then leave the task running."""
        self._closing = True
        self._wake.set()
        if self._task and not (await asyncio.wait((self._task,), timeout=2 * self._deadline + 0.1))[0]:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=self._deadline)
        self._fail_waiting()
        await self._drop_client()

    @property
    def busy_for(self) -> float:
        """Seconds that the pipeline under way has taken so far."""
        return 0.0 if self._busy_since is None else self._clock() - self._busy_since

    def submit(self, command: Command) -> asyncio.Future[Any] | None:
        """A future of the reply, whose result is None after a failure. None at once if too many commands wait or the
        lane is closed."""
        if len(self._queue) >= self._capacity or self._closing or self._task is None:
            return None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((command, future))
        self._wake.set()
        return future

    async def _run(self) -> None:
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and not self._closing:
                rows = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
                try:
                    replies = await self._serve([command for command, _ in rows])
                except asyncio.CancelledError:
                    _deliver(rows, [None] * len(rows))
                    raise
                _deliver(rows, replies)
                if not self.link.connected:
                    self._fail_waiting()

    async def _serve(self, commands: list[Command]) -> list[Any]:
        """Runs one pipeline under the deadline. Failures become None replies and count on the link."""
        self._busy_since = began = self._clock()
        try:
            async with asyncio.timeout(self._deadline):
                replies = await self._round(commands)
        except Exception as error:
            # redis-py raises classes with no common base (cluster errors), the socket raises its own, and a fault of
            # the client library must not end this task either: whatever it is, shared state is out of reach.
            log.debug("shared state: a pipeline failed", exc_info=error)
            self.link.failed(_named(error))
            await self._drop_client()
            return [None] * len(commands)
        finally:
            self._busy_since = None
        self.strikes = self.strikes + 1 if self._clock() - began > self.slow_after else 0
        failures = [reply for reply in replies if isinstance(reply, Exception)]
        if failures:
            self.link.failed(_named(failures[0]))
            await self._drop_client()
        else:
            self.link.succeeded()
        return [None if isinstance(reply, Exception) else reply for reply in replies]

    async def _round(self, commands: list[Command]) -> list[Any]:
        """One pipeline; scripts that Redis has forgotten are sent again with their text."""
        if self._client is None:
            self._client = self._connect()
        replies = await _execute(self._client, commands, whole=False)
        forgotten = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if forgotten:
            again = await _execute(self._client, [commands[i] for i in forgotten], whole=True)
            for i, reply in zip(forgotten, again, strict=True):
                replies[i] = reply
        return replies

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        # Closing can fail in as many ways as using can, and what is dropped owes nobody an answer.
        with suppress(Exception):
            async with asyncio.timeout(self._deadline):
                await client.aclose()

    def _fail_waiting(self) -> None:
        rows = list(self._queue)
        self._queue.clear()
        _deliver(rows, [None] * len(rows))


def _named(error: Exception) -> str:
    """Its class, and the word with which Redis says why it refuses, such as OOM or READONLY."""
    word = _WORD.search(str(error)) if type(error) is ResponseError else None
    return type(error).__name__ + (f" {word[0]}" if word else "")


def _deliver(rows: list[tuple[Command, asyncio.Future[Any]]], replies: list[Any]) -> None:
    for (_, future), reply in zip(rows, replies, strict=True):
        if not future.done():
            future.set_result(reply)


async def _execute(client: Client, commands: list[Command], *, whole: bool) -> list[Any]:
    pipeline = client.pipeline()
    for command in commands:
        pipeline.execute_command(*command.words(whole=whole))
    return await pipeline.execute(raise_on_error=False)
