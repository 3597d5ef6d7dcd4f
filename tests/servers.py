"""Real servers for tests: an ASGI app under uvicorn on a free loopback port, for the length of a `with` block."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    """A uvicorn server that says when it listens, and leaves the process's signal handlers alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listener(host: str) -> socket.socket:
    # asyncio turns Nagle off only where the protocol is named.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, 0))
    return sock


def _config(app: Any, options: dict[str, Any]) -> uvicorn.Config:
    defaults: dict[str, Any] = {
        "log_config": None,
        "lifespan": "auto",
        "timeout_graceful_shutdown": 1,
        "access_log": False,
    }
    return uvicorn.Config(app, **{**defaults, **options})


@asynccontextmanager
async def serve(app: Any, *, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[str]:
    """Serves `app` from a task of the running loop and yields its base URL, `http://127.0.0.1:PORT`.

    Client and server share the loop, so a client under test must be asynchronous; use `serve_in_thread` for
    synchronous ones. `options` go to `uvicorn.Config`.

    Raises:
        RuntimeError: the app's startup failed.
    """
    sock = _listener(host)
    server = _Server(_config(app, options))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.listening.is_set():
            if task.done():
                await task
                raise RuntimeError("the server ended before it listened")
            await asyncio.sleep(0.001)
        yield f"http://{host}:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        sock.close()


@contextmanager
def serve_in_thread(app: Any, *, host: str = "127.0.0.1", **options: Any) -> Iterator[str]:
    """Like `serve`, on an event loop in a thread of its own: for synchronous clients.

    Raises:
        RuntimeError: the app's startup failed.
    """
    sock = _listener(host)
    server = _Server(_config(app, options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        while not server.listening.wait(0.01):
            if not thread.is_alive():
                raise RuntimeError("the server ended before it listened")
        yield f"http://{host}:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        sock.close()
