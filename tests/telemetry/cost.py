"""What telemetry costs: `python -m tests.telemetry.cost`.

Prints its parameters, then the CPU time of parsing a page and of scraping many endpoints once a second. The endpoints
are one process that sends a simulated drafting server's page; its CPU time is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from functools import partial
from multiprocessing.connection import Connection
from random import Random
from typing import Literal

from gateway.telemetry.checklist import MtpChecklist
from gateway.telemetry.fetch import ConnectorFetch, Fetch
from gateway.telemetry.scrape import Scraper
from gateway.telemetry.view import TelemetryView
from gateway.telemetry.vllm import PageLayout, PageReader
from gateway.upstream.client import Timeouts
from gateway.upstream.connect import connect
from tests.sim.helpers import FAST_MTP, sim
from tests.telemetry.helpers import FakeModel, FakeMtp, FakePools, pool


async def page_of_a_server() -> bytes:
    """A drafting server's page after some traffic."""
    async with sim(FAST_MTP) as server:
        await asyncio.gather(*(server.chat(f"Explain item {i}.", max_tokens=60) for i in range(8)))
        return (await server.client.get("/metrics")).content


def back_ends(page: bytes, count: int, ready: Connection) -> None:
    """Serves the page on as many ports, with counters that move."""
    answers = iter(range(1, 10**9))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                moved = page + b'vllm:prompt_tokens_total{engine="1",model_name="e4b"} %d.0\n' % next(answers)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(moved) + moved)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(count)]
        ready.send([server.sockets[0].getsockname()[1] for server in servers])
        await asyncio.Event().wait()

    asyncio.run(serve())


def parse_ms(page: bytes, times: int) -> float:
    reader, layout = PageReader(), PageLayout()
    reader.read(page, 0.0, layout)
    began = time.process_time()
    for _ in range(times):
        reader.read(page, 0.0, layout)
    return (time.process_time() - began) / times * 1000


async def scrape_share(urls: list[str], fetch: Fetch, seconds: float) -> tuple[float, float]:
    """(CPU share of one core, scrapes per second)."""
    pools = FakePools([pool("mtp", *urls, k=2)])
    view = TelemetryView(pools, lambda: [FakeModel("e4b", ("mtp",))], time.monotonic)
    MtpChecklist(view, FakeMtp, time.monotonic)
    task = asyncio.create_task(Scraper(view, fetch, Random(1), time.monotonic).run())
    # The start (connections, identities) is not what a second costs.
    await asyncio.sleep(3)
    before, cpu, began = _scrapes(view), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    wall = time.monotonic() - began
    share, rate = (time.process_time() - cpu) / wall, (_scrapes(view) - before) / wall
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return share, rate


def _scrapes(view: TelemetryView) -> int:
    return sum(endpoint.scrapes for endpoint in view.endpoints().values())


async def measure(endpoints: int, seconds: float) -> None:
    page = await page_of_a_server()
    noise = b'vllm:request_prompt_tokens_bucket{engine="0",le="5.0",model_name="e4b"} 1.0\n'
    large = page + noise * (10_000_000 // len(noise))
    print(f"parse {len(page)} bytes: {parse_ms(page, 300):.3f} ms; {len(large)} bytes: {parse_ms(large, 3):.1f} ms")
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=back_ends, args=(page, endpoints, theirs), daemon=True
    )
    process.start()
    try:
        urls = [f"http://127.0.0.1:{port}" for port in await asyncio.to_thread(mine.recv)]
        ways: tuple[Literal["lean", "httpx"], ...] = ("lean", "httpx")
        for via in ways:
            fetch = ConnectorFetch(partial(connect, via=via), Timeouts())
            share, rate = await scrape_share(urls, fetch, seconds)
            print(f"{via}: {endpoints} endpoints at 1 s: {share:.2%} of a core, {rate:.1f} scrapes/s")
            await fetch.aclose()
    finally:
        process.terminate()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--endpoints", type=int, default=32)
    options.add_argument("--seconds", type=float, default=15.0)
    chosen = options.parse_args()
    asyncio.run(measure(chosen.endpoints, chosen.seconds))
