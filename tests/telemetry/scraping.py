"""A scraper at work on real servers, and servers that answer as a test says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Literal

from gateway.telemetry.checklist import MtpChecklist
from gateway.telemetry.fetch import ConnectorFetch, Fetch, FetchFailed
from gateway.telemetry.scrape import Scraper
from gateway.telemetry.view import TelemetryView
from gateway.upstream.client import Timeouts
from gateway.upstream.connect import connect
from tests.telemetry.helpers import FakeModel, FakeMtp, FakePool, FakePools

EVERY = 0.02
"""Scrape interval, seconds; servers run twenty times as fast as real ones."""


@dataclass
class Running:
    """A scraper at work."""

    view: TelemetryView
    checklist: MtpChecklist
    pools: FakePools

    async def until(self, true: Callable[[], object]) -> None:
        """Waits for a state that scraping brings about."""
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.005)

    async def scraped(self, url: str, times: int = 1) -> None:
        """Waits until a page that was asked for from now on has been read."""
        record = self.view.endpoints()[url]
        goal = record.scrapes + times + 1
        await self.until(lambda: record.scrapes >= goal)


@asynccontextmanager
async def connector_fetch(via: Literal["auto", "httpx"] = "auto", connect_within: float = 2.0) -> AsyncIterator[Fetch]:
    fetch = ConnectorFetch(partial(connect, via=via), Timeouts(connect=connect_within))
    try:
        yield fetch
    finally:
        await fetch.aclose()


httpx_fetch = partial(connector_fetch, "httpx")


class _Patient:
    """A fetch that gives each page a minute: where a pause of this machine must not pass for an endpoint's silence."""

    def __init__(self, inner: Fetch) -> None:
        self._inner = inner
        self.forget, self.aclose = inner.forget, inner.aclose

    async def get(self, url: str, path: str, api_key: bytes | None, seconds: float) -> bytes:
        return await self._inner.get(url, path, api_key, 60.0)


@asynccontextmanager
async def patient_fetch() -> AsyncIterator[Fetch]:
    async with connector_fetch(connect_within=60.0) as fetch:
        yield _Patient(fetch)


@asynccontextmanager
async def scraping(*pools: FakePool, fetch: Any = connector_fetch, window: float = 600.0) -> AsyncIterator[Running]:
    mine = FakePools(list(pools))
    view = TelemetryView(mine, lambda: [FakeModel("e4b", tuple(p.name for p in mine))], time.monotonic)
    checklist = MtpChecklist(view, lambda: FakeMtp(window=window), time.monotonic)
    async with fetch() as pages:
        task = asyncio.create_task(Scraper(view, pages, Random(1), time.monotonic).run())
        try:
            running = Running(view, checklist, mine)
            await running.until(lambda: view.endpoints())
            yield running
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Switch:
    """An app in front of another that can be exchanged, as a restarted server at the same address is."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def answering(pages: Mapping[str, Callable[[], bytes | Awaitable[bytes]]]) -> Any:
    """An app whose paths answer with what these functions give."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        page = pages.get(scope["path"])
        made = page() if page else b""
        body = made if isinstance(made, bytes) else await made
        await send({"type": "http.response.start", "status": 200 if page else 404, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app


class Told:
    """Pages without a server: a fetch that answers, or fails, as it is told."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.failing = False
        self.asked = 0

    async def get(self, url: str, path: str, api_key: bytes | None, seconds: float) -> bytes:
        if path != "/metrics":
            return b""
        self.asked += 1
        if self.failing:
            raise FetchFailed("status 503")
        return self.page.encode()

    async def forget(self, url: str) -> None:
        return None

    async def aclose(self) -> None:
        return None
