"""`gateway serve`: the gateway in one process, or in several that share the port."""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import uvicorn

from gateway import settings
from gateway.app import build
from gateway.exposition import shared_by_workers
from gateway.logs import configure
from gateway.policy.load import load_policy
from gateway.server import ClientConnection
from gateway.tracing import exporter_of

STOP_SECONDS = 2
"""What the server itself waits for once the gateway has drained."""

add_arguments = settings.add_arguments


def main(args: argparse.Namespace) -> int:
    """Serves until stopped. Raises InvalidSetting, PolicyInvalid, or OSError where it cannot listen."""
    chosen = settings.resolve(vars(args), os.environ)
    if not chosen.policy:
        raise settings.InvalidSetting("--policy FILE is missing; try policies/default.yaml, or `gateway demo`")
    lines = configure(chosen.log_format, chosen.log_level)
    policy = load_policy(chosen.policy, os.environ)
    # Here too, so that a mistake is one line and not one of each worker.
    exporter_of(os.environ)
    settings.check_free(chosen.host, chosen.port)
    if chosen.state_dir:
        settings.check_folder(chosen.state_dir)
    # Worker processes build their own application from the environment.
    os.environ.update({settings.env_name(name): str(getattr(chosen, name)) for name in chosen.__slots__})
    # After a graceful stop uvicorn raises the signal once more; a drained gateway has exited with 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    if chosen.workers == 1:
        _run_server(build(chosen, policy, env=os.environ, lines=lines, own_process=True), chosen)
        return 0
    with shared_by_workers(os.environ):
        _run_server("gateway.app:from_environment", chosen)
    return 0


def _run_server(app: Any, chosen: settings.Settings) -> None:
    """Serves until stopped; `app` is the application, or the name of its factory for worker processes."""
    uvicorn.run(
        app,
        factory=chosen.workers > 1,
        workers=chosen.workers,
        host=chosen.host,
        port=chosen.port,
        loop="uvloop",
        http=ClientConnection,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
