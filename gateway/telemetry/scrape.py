"""Scrapes every endpoint's `/metrics` about once per interval, one task per endpoint.

A hanging endpoint delays no other; it runs into its own deadline. First scrapes are spread over the interval and each
wait is jittered, then rounded to a grid of `TICKS` per interval with a random phase per process: scrapes that share a
wake-up cost half as much as separate ones. After a failure the wait doubles, up to `MAX_BACKOFF` seconds. Large pages
are parsed in a thread. A failure is logged when its reason changes, and once when it ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random

from gateway.telemetry.complaint import complaint, no_metrics
from gateway.telemetry.endpoint import EndpointTelemetry
from gateway.telemetry.exposition import OFF_LOOP_BYTES
from gateway.telemetry.fetch import Fetch, FetchFailed
from gateway.telemetry.identity import Identity, ServedModel, parse_models, parse_version
from gateway.telemetry.view import TelemetryView
from gateway.telemetry.vllm import PageLayout, PageReader, Snapshot

log = logging.getLogger("gateway.telemetry")

MATCH_SECONDS = 0.5
"""Interval at which the tasks are matched to the live pools."""
MAX_BACKOFF = 8.0
TICKS = 4
"""Grid points per scrape interval."""
IDENTITY_SECONDS = 2.0
"""Deadline for `/version` and for `/v1/models`."""
IDENTITY_RETRY = 30.0


class Scraper:
    """Keeps one task per endpoint of the live pools. `run` until cancelled."""

    def __init__(
        self,
        view: TelemetryView,
        fetch: Fetch,
        rng: Random,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._view = view
        self._fetch = fetch
        self._rng = rng
        self._clock = clock
        self._sleep = sleep
        self._phase = rng.random()
        self._reader = PageReader()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                await self._match()
                await self._sleep(MATCH_SECONDS)
        finally:
            tasks = list(self._tasks.values())
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _match(self) -> None:
        view = self._view
        view.match()
        for url, task in list(self._tasks.items()):
            if url not in view.endpoints():
                del self._tasks[url]
                task.cancel()
                await self._fetch.forget(url)
            elif task.done():
                del self._tasks[url]
                if not task.cancelled() and (fault := task.exception()):
                    # A bug here must not end an endpoint's telemetry: the task starts again below.
                    log.error("telemetry task failed", exc_info=fault, extra={"fields": {"endpoint": url}})
        for url in view.endpoints():
            if url not in self._tasks:
                self._tasks[url] = asyncio.create_task(self._follow(url))

    async def _follow(self, url: str) -> None:
        endpoint = self._view.endpoints()[url]
        await self._sleep(self._until_tick(endpoint, self._clock(), endpoint.target.interval * self._rng.random()))
        while self._view.endpoints().get(url) is endpoint:
            began = self._clock()
            await self.scrape(endpoint)
            await self._identify(endpoint)
            await self._sleep(self._until_tick(endpoint, began, self._wait(endpoint)))

    def _wait(self, endpoint: EndpointTelemetry) -> float:
        """Seconds from the start of one scrape to the start of the next."""
        interval = endpoint.target.interval
        doublings = min(endpoint.failures, 16)
        wait = interval if not doublings else max(interval, min(interval * 2.0**doublings, MAX_BACKOFF))
        return wait * (0.8 + 0.4 * self._rng.random())

    def _until_tick(self, endpoint: EndpointTelemetry, began: float, wait: float) -> float:
        """Seconds until the tick nearest to `began + wait`, or until the next tick if that is past."""
        step, now = endpoint.target.interval / TICKS, self._clock()
        following = math.floor(now / step - self._phase) + 1
        tick = max(round((began + wait) / step - self._phase), following)
        return (tick + self._phase) * step - now

    async def scrape(self, endpoint: EndpointTelemetry) -> None:
        """Fetches one page and hands it to the view, or records the failure."""
        target = endpoint.target
        began = self._clock()
        own = target.in_flight()
        deadline = min(max(5.0 * target.interval, 1.0), target.stale_after)
        try:
            page = await self._fetch.get(target.url, "/metrics", target.api_key, deadline)
        except FetchFailed as failure:
            self._failed(endpoint, str(failure))
            return
        # A request of ours that began or ended meanwhile may be on the page: count it as ours, not as another client's.
        own = max(own, target.in_flight())
        snapshot = await self._parsed(page, self._clock(), endpoint.layout)
        if not snapshot.readings:
            if self._failed(endpoint, no_metrics(page)):
                # It answers all the same: who it is, and what it serves, may have changed.
                endpoint.wants_identity = True
            endpoint.answers = True
            return
        if endpoint.error is not None:
            log.info("telemetry from endpoint again", extra={"fields": {"endpoint": target.url}})
        self._view.accept(target.url, snapshot, own)
        endpoint.page_bytes = len(page)
        endpoint.seconds = self._clock() - began

    @staticmethod
    def _failed(endpoint: EndpointTelemetry, reason: str) -> bool:
        """Records a failure; logs it, and returns True, if it is another one than before."""
        if news := endpoint.fail(reason):
            fields = {"endpoint": endpoint.target.url, "why": endpoint.why()}
            log.warning("no telemetry from endpoint", extra={"fields": fields})
        return news

    async def _parsed(self, page: bytes, at: float, layout: PageLayout) -> Snapshot:
        if len(page) > OFF_LOOP_BYTES:
            return await asyncio.to_thread(self._reader.read, page, at, layout)
        return self._reader.read(page, at, layout)

    async def _identify(self, endpoint: EndpointTelemetry) -> None:
        """Fetches version and models at the start and after an outage or a restart, and every `IDENTITY_RETRY`
        seconds while they are unknown or a model of the policy is missing, which may be loaded later."""
        now, asked, old = self._clock(), endpoint.identity_asked, endpoint.identity
        due = endpoint.wants_identity or asked is None
        if not due and asked is not None and now - asked >= IDENTITY_RETRY:
            untold = old.version is None or not old.models or endpoint.complaint is not None
            due = untold or bool(self._view.missing(endpoint.target.url))
        if not endpoint.answers or not due:
            return
        endpoint.wants_identity = False
        endpoint.identity_asked = now
        version = parse_version((await self._quietly(endpoint, "/version"))[0])
        listed, reason = await self._quietly(endpoint, "/v1/models")
        models = parse_models(listed)
        # Keep known values until there are new ones.
        endpoint.identity = replace(old, version=version or old.version, models=models or old.models)
        if endpoint.identity != old and old != Identity():
            fields = {"endpoint": endpoint.target.url, "version": endpoint.identity.version}
            log.info("another engine answers at this endpoint", extra={"fields": fields})
        self._judge(endpoint, listed, reason, models if reason is None else endpoint.identity.models)

    def _judge(
        self, endpoint: EndpointTelemetry, listed: bytes, reason: str | None, told: Sequence[ServedModel]
    ) -> None:
        """Logs once why the endpoint cannot serve, and once when it can again."""
        target, before = endpoint.target, endpoint.complaint
        missing = self._view.missing(target.url)
        endpoint.complaint = complaint(reason, listed, told, missing, keyed=bool(target.api_key))
        if endpoint.complaint and endpoint.complaint != before:
            fields = {"endpoint": target.url, "why": endpoint.complaint}
            log.warning("endpoint cannot serve as it is", extra={"fields": fields})
        elif before and not endpoint.complaint:
            log.info("endpoint serves what the policy asks for", extra={"fields": {"endpoint": target.url}})

    async def _quietly(self, endpoint: EndpointTelemetry, path: str) -> tuple[bytes, str | None]:
        """(body, None) or (b"", reason). Not every server has the path, so a failure is not logged."""
        try:
            return await self._fetch.get(endpoint.target.url, path, endpoint.target.api_key, IDENTITY_SECONDS), None
        except FetchFailed as failure:
            return b"", str(failure)
