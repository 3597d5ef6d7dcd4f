"""A simulated back end for the chaos run that keeps a journal of the requests it saw and the ones it finished.

    python -m tests.benchmarks.chaos_backend --port 9001 --k 2 --scale 0.2 --journal backend-0.log

A line is written with one system call and no buffer, so that what a killed process did is still on the disk:
`B ID` when a completion request has arrived, `E ID` when its whole answer has been handed to a connection that the
gateway had not closed. (A process that was stopped may have an answer ready which nobody waits for any more.) The ID
is the `x-request-id` that the gateway sends along, which is the client's own.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from gateway.profiles import match_profile
from gateway.sim.http import Message, Receive, Scope, Send
from gateway.sim.server import SimApp, create_app
from gateway.sim.settings import SimSettings

MODEL = "chaos-model"
TOKENS_PER_SECOND = 2000.0
"""Of all clients together: what one machine with two cores can carry besides everything else."""
PROMPT, CONTEXT = 50, 150
"""Tokens of a usual request, and beside them its answer's."""
ERROR_ONLY = b'data: {"error"'


def settings_of(port: int, k: int, scale: float) -> SimSettings:
    return SimSettings(served_names=(MODEL,), port=port, k=k, time_scale=scale)


def token_seconds(streams: float) -> float:
    """Between two tokens of a stream at real speed, where one plain back end has so many: a step, and the prompts that
    join it."""
    settings = settings_of(0, 0, 1.0)
    profile = match_profile(settings.profile, settings.model, settings.architecture)
    batch = min(max(round(streams), 1), settings.max_num_seqs)
    return profile.step_seconds(batch, 0, CONTEXT) + profile.prefill_stall_seconds(PROMPT, 0)


def scale_for(streams: int, backends: int) -> float:
    """The back ends' speed against real ones with which so many clients make `TOKENS_PER_SECOND`, at most 1: the more
    clients, the slower each answer."""
    return min(1.0, TOKENS_PER_SECOND * token_seconds(streams / backends) / streams)


class Journal:
    """An append-only file of marks."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def mark(self, letter: str, request_id: str) -> None:
        os.write(self._file, f"{letter} {request_id}\n".encode())


@dataclass(slots=True)
class Executed:
    """What all back ends' journals say together."""

    seen: dict[str, list[int]] = field(default_factory=dict)
    """By request ID, the back ends that it reached, in the order of the files."""
    finished: dict[str, int] = field(default_factory=dict)
    """By request ID, how often a whole answer was given."""


def read_journals(paths: Iterable[Path]) -> Executed:
    found = Executed()
    for number, path in enumerate(paths):
        for line in path.read_text().splitlines() if path.exists() else ():
            letter, _, request_id = line.partition(" ")
            if letter == "B":
                found.seen.setdefault(request_id, []).append(number)
            else:
                found.finished[request_id] = found.finished.get(request_id, 0) + 1
    return found


class Watched:
    """Notes the end of one answer on its way out. Looks like the server's own `send` to the simulated back end, which
    reaches through it for the connection when a fault cuts it."""

    def __init__(self, send: Send, journal: Journal, request_id: str) -> None:
        self._send = send
        self._journal = journal
        self._request_id = request_id
        self._status = 0
        self.transport: Any = getattr(getattr(send, "__self__", None), "transport", None)

    async def send(self, message: Message) -> None:
        ends = message["type"] == "http.response.body" and not message.get("more_body")
        # A stream that consists of an error only has executed nothing.
        wanted = ends and self._status == 200 and not message["body"].startswith(ERROR_ONLY) and not self._abandoned()
        await self._send(message)
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif wanted:
            self._journal.mark("E", self._request_id)

    def _abandoned(self) -> bool:
        """Whether the other side has closed, even if the event loop has not been told yet."""
        with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as peeked:
            try:
                return not peeked.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True


class JournalledApp:
    """The simulated server, with each completion request in the journal."""

    def __init__(self, app: SimApp, journal: Journal) -> None:
        self._app = app
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/") or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"?")
        request_id = given.decode("latin-1")
        self._journal.mark("B", request_id)
        await self._app(scope, receive, Watched(send, self._journal, request_id).send)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A simulated back end with a journal.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--k", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--journal", type=Path, required=True)
    options = parser.parse_args(arguments)
    settings = settings_of(options.port, options.k, options.scale)
    app = JournalledApp(create_app(settings), Journal(options.journal))
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        timeout_keep_alive=5,
        access_log=False,
        log_level="warning",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
