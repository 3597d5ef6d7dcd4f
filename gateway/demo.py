"""`gateway demo`: simulated plain and MTP back ends, dense and MoE, a gateway in front of them, and a short tour.

Everything runs in this process on loopback, without a GPU, Redis or configuration. The back ends play the DGX Spark's
published speeds faster than real time; the times in the tour's table are the Spark's. They are simulated, and are
labelled so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import uvicorn
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gateway.app import build
from gateway.logs import configure
from gateway.policy.load import parse_policy
from gateway.server import ClientConnection
from gateway.settings import Settings, port
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from gateway.terminal import seconds

HARDWARE = "dgx-spark"
MODELS = {
    "gemma-4-e4b": ("google/gemma-4-E4B-it", "dense", "e4b"),
    "gemma-4-26b": ("google/gemma-4-26B-A4B-it", "moe", "26b"),
}
SPEED = 4.0
"""Simulated seconds per real second, so that the tour takes seconds."""
DRAFT_TOKENS = 2
WIDE = 120
"""Columns that every column of the tour's table needs."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One request of the tour."""

    title: str
    model: str
    prompt: str
    extra: Mapping[str, Any] = field(default_factory=dict)


LONG = {"max_tokens": 160}

TOUR = (
    Stop(
        "label a review",
        "gemma-4-e4b",
        "Is this review positive or negative? Answer with one word.\n\nThe soup was cold and the waiter rude.",
    ),
    Stop(
        "感想を分類 (Japanese)",
        "gemma-4-e4b",
        "次の感想を「肯定」か「否定」の一語で分類してください。\n\n料理はおいしく、店員も親切でした。",
    ),
    Stop(
        "pick one of four labels",
        "gemma-4-26b",
        "Which team should get this ticket? 'My invoice shows the wrong address.'",
        {"structured_outputs": {"choice": ["billing", "shipping", "returns", "other"]}},
    ),
    Stop("explain at length", "gemma-4-e4b", "Explain how tides work, in detail, for a curious adult.", LONG),
    Stop(
        "詳しく説明 (Japanese)",
        "gemma-4-e4b",
        "量子コンピュータの仕組みを、初心者にもわかるように詳しく説明してください。",
        LONG,
    ),
    Stop("write a program", "gemma-4-26b", "Write a Python class for an LRU cache with unit tests.", LONG),
    Stop("write an essay", "gemma-4-26b", "Write an essay on the history of the lighthouse.", LONG),
    Stop(
        "a story, with min_p", "gemma-4-e4b", "Tell me a long story about a lighthouse keeper.", {**LONG, "min_p": 0.05}
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address of the gateway (default 127.0.0.1)")
    parser.add_argument(
        "--port", type=port, default=8080, help="port of the gateway (default 8080; 0 for any free one)"
    )
    parser.add_argument("--once", action="store_true", help="end after the tour")


def main(args: argparse.Namespace) -> int:
    """Runs the demo until ctrl-c, or to the end of the tour. Raises OSError where it cannot listen."""
    configure("text", "error")
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    with suppress(KeyboardInterrupt):
        return asyncio.run(_run(args, console))
    return 0


async def _run(args: argparse.Namespace, console: Console) -> int:
    async with simulated_back_ends() as urls:
        policy_text = demo_policy(urls)
        app = build(Settings(), parse_policy(policy_text, "demo policy", os.environ), env=os.environ, rng=Random(1))
        listener = _listen(args.host, args.port)
        async with _served(app, listener) as base:
            console.print(f"[bold]MTP gateway[/] on {base}/v1 with four [italic]simulated[/] vLLM back ends:")
            for pool, url in urls.items():
                console.print(f"  {pool:16} {url}")
            await _tour(base, urls, console)
            if args.once:
                return 0
            _say_what_next(base, console)
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.set)
            await stop.wait()
    return 0


@asynccontextmanager
async def simulated_back_ends() -> AsyncIterator[dict[str, str]]:
    """Four servers; yields each one's URL by pool name."""
    async with AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for name, (served, _, short) in MODELS.items():
            for kind, k in (("plain", 0), ("mtp", DRAFT_TOKENS)):
                settings = SimSettings(model=served, served_names=(name,), k=k, profile=HARDWARE, time_scale=SPEED)
                urls[f"{short}-{kind}"] = await stack.enter_async_context(
                    _served(create_app(settings), _listen("127.0.0.1", 0))
                )
        yield urls


def demo_policy(urls: dict[str, str]) -> str:
    """The demo's policy, as one would write it by hand."""
    pools = "\n".join(
        f'  {name}: {{endpoints: ["{url}"], profile: {HARDWARE}'
        + (f", speculative: {{method: mtp, tokens: {DRAFT_TOKENS}}}" if name.endswith("mtp") else "")
        + "}"
        for name, url in urls.items()
    )
    models = "\n".join(
        f"  {name}: {{pools: [{short}-plain, {short}-mtp], architecture: {kind}}}"
        for name, (_, kind, short) in MODELS.items()
    )
    rule = "{name: labels stay plain, when: {task: [classification, multiple_choice]}, prefer: plain}"
    return f"version: 1\npools:\n{pools}\nmodels:\n{models}\nrouting:\n  rules:\n    - {rule}\n"


class _Quiet(uvicorn.Server):
    """A server beside others in one process: it leaves the signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _served(app: Any, listener: socket.socket) -> AsyncIterator[str]:
    """Serves an ASGI application on a bound socket; yields its base URL once it listens."""
    config = uvicorn.Config(
        app,
        http=ClientConnection,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        lifespan="auto",
    )
    server = _Quiet(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                raise SystemExit("the demo could not start; see the error above")
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        # What still runs is cut off after a moment on purpose; that is not an error to log.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        server.should_exit = True
        await task


def _listen(host: str, port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off only if the protocol is named; a token would wait 40 ms for an ACK.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port} ({error.strerror}); try --port 0") from None
    return listener


@dataclass(frozen=True, slots=True)
class Visited:
    """The result of one request of the tour. Times are simulated seconds; None if the other pool refuses it."""

    stop: Stop
    headers: Mapping[str, str]
    detail: str
    took: float
    other: float | None


def tour_table(rows: Sequence[Visited], width: int) -> Table:
    """The tour's table; below `WIDE` columns without the task and the rule's name, for which there is no room."""
    wide = width >= WIDE
    table = Table(
        title="A short tour; times are simulated: a DGX Spark, played "
        f"{SPEED:g} times as fast, k={DRAFT_TOKENS} drafted tokens",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1) if wide else (0, 1, 0, 0),
    )
    for column in ("request", "model", *(("task",) if wide else ()), "tokens", "pool", "why", "took", "other pool"):
        table.add_column(column, justify="right" if column in ("tokens", "took", "other pool") else "left")
    for row in rows:
        table.add_row(
            row.stop.title,
            row.stop.model.removeprefix("gemma-4-"),
            *((row.headers["x-gateway-task"],) if wide else ()),
            f"~{row.headers['x-gateway-predicted-output-tokens']}",
            "[green]plain[/]" if row.headers["x-gateway-pool"].endswith("plain") else "[magenta]MTP[/]",
            row.headers["x-gateway-reason"] + (f" ({row.detail})" if row.detail and wide else ""),
            seconds(row.took),
            "refused" if row.other is None else seconds(row.other),
        )
    return table


async def _tour(base: str, urls: Mapping[str, str], console: Console) -> None:
    """Sends the tour's requests one after the other and prints where each went, why, and the other pool's time."""
    rows: list[Visited] = []
    async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
        await client.get("/v1/models")
        with Live(tour_table(rows, console.width), console=console, auto_refresh=False) as live:
            for stop in TOUR:
                rows.append(await _visit(client, urls, stop))
                live.update(tour_table(rows, console.width), refresh=True)
    if not console.is_terminal:
        # Live ends its last line on terminals only.
        console.line()


async def _visit(client: httpx.AsyncClient, urls: Mapping[str, str], stop: Stop) -> Visited:
    body = {"model": stop.model, "messages": [{"role": "user", "content": stop.prompt}], **stop.extra}
    explained = (await client.post("/gateway/explain", json=body)).json()
    took, answer = await _timed(client, "", body)
    other = next(row for row in explained["pools"] if row["pool"] != answer.headers["x-gateway-pool"])
    cost = None
    if not (other["out"] or "").startswith("refuses"):
        # Sent straight to the other back end, so that the gateway learns from and counts its own decisions only.
        cost = (await _timed(client, urls[other["pool"]], body))[0]
    return Visited(stop, answer.headers, explained["decision"]["detail"] or "", took, cost)


async def _timed(client: httpx.AsyncClient, base: str, body: Mapping[str, Any]) -> tuple[float, httpx.Response]:
    """Simulated seconds that an answer took, and the answer."""
    begun = time.perf_counter()
    answer = await client.post(base + "/v1/chat/completions", json=body)
    return (time.perf_counter() - begun) * SPEED, answer


def _say_what_next(base: str, console: Console) -> None:
    body = json.dumps({"model": "gemma-4-e4b", "messages": [{"role": "user", "content": "Hello"}]})
    console.print(
        f"\nIt keeps serving until ctrl-c. Watch it in a browser, or in another terminal:\n"
        f"  [bold]{base}/[/]\n"
        f"  gateway top --url {base}\n"
        "Point any OpenAI SDK at it, or ask it yourself:\n"
        f"  OpenAI(base_url=[bold]'{base}/v1'[/], api_key='none')\n"
        f"  curl -i {base}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"    -d '{body}'",
        highlight=False,
        soft_wrap=True,
    )
