"""Scraping real servers on loopback: simulated vLLMs, and some that misbehave."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.policy.load import load_policy
from gateway.telemetry.checklist import MtpChecklist
from gateway.telemetry.fetch import MAX_PAGE_BYTES
from gateway.telemetry.identity import ServedModel
from gateway.telemetry.mtp import MtpState
from gateway.telemetry.scrape import Scraper
from gateway.telemetry.view import TelemetryView
from gateway.upstream.connect import connect
from gateway.upstream.pools import Pools
from tests.servers import serve
from tests.sim.helpers import FAST, FAST_MTP, Server, sim
from tests.telemetry.helpers import Clock, FakePools, engine, pool
from tests.telemetry.scraping import (
    EVERY,
    Switch,
    Told,
    answering,
    connector_fetch,
    httpx_fetch,
    patient_fetch,
    scraping,
)


async def _talk(server: Server, count: int = 6, tokens: int = 120) -> None:
    await asyncio.gather(*(server.chat(f"Explain item {i}.", max_tokens=tokens, ignore_eos=True) for i in range(count)))


@pytest.mark.parametrize("fetch", [httpx_fetch, connector_fetch])
async def test_acceptance_equals_the_servers_own_counters(fetch: Any) -> None:
    """What the checklist says of two servers together is what their counters say, exactly."""
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(sim(replace(FAST_MTP, seed=seed))) for seed in (1, 2)]
        running = await stack.enter_async_context(
            scraping(pool("mtp", one.url, two.url, k=2, interval=EVERY), fetch=fetch)
        )
        for server in (one, two):
            await running.scraped(server.url)
            await _talk(server)
            await running.scraped(server.url)
        metrics = [await server.metrics() for server in (one, two)]
        found = running.checklist.reports()[0].acceptance
        totals = running.view.spec_totals()["e4b"]

    def both(name: str, position: int | None = None) -> float:
        key = () if position is None else (("position", str(position)),)
        return sum(m[f"vllm:spec_decode_num_{name}_total"][key] for m in metrics)

    assert found is not None
    assert found.drafts == totals["drafts"] == both("drafts")
    assert found.rate == both("accepted_tokens") / both("draft_tokens")
    assert found.mean_length == 1 + both("accepted_tokens") / both("drafts")
    assert found.positions == tuple(both("accepted_tokens_per_pos", i) / both("drafts") for i in (0, 1))


async def test_who_answers_is_asked_at_the_start() -> None:
    """Version, served names and context length are known soon after the first page; the key is sent along."""
    async with sim(replace(FAST, api_key="secret")) as server:
        mine = pool("plain", server.url, interval=EVERY)
        mine.endpoints[0].api_key = b"secret"
        async with scraping(mine) as running:
            await running.until(lambda: running.view.identity(server.url).models)
            identity = running.view.identity(server.url)

    assert identity.version is not None
    assert identity.version.startswith("0.33")
    assert [model.name for model in identity.models] == ["e4b", "gemma"]
    assert identity.context_length("gemma") == 16384


async def test_a_restarted_server_is_asked_again_and_counted_on() -> None:
    """A new process at the same address, with another model and lower counters: totals go on, identity is new."""
    page = engine(spec_decode_num_drafts_total=50.0, spec_decode_num_draft_tokens_total=100.0)
    later = engine(spec_decode_num_drafts_total=7.0, spec_decode_num_draft_tokens_total=14.0)
    old = {
        "/metrics": lambda: page.encode(),
        "/version": lambda: b'{"version":"0.30.0"}',
        "/v1/models": lambda: b'{"data":[{"id":"e4b","root":"base","max_model_len":8192}]}',
    }
    new = {**old, "/metrics": lambda: later.encode(), "/version": lambda: b'{"version":"0.33.0"}'}
    switch = Switch(answering(old))
    async with serve(switch, lifespan="off") as url, scraping(pool("mtp", url, k=2, interval=EVERY)) as running:
        await running.until(lambda: running.view.identity(url).version == "0.30.0")
        switch.app = answering(new)
        await running.until(lambda: running.view.identity(url).version == "0.33.0")
        await running.scraped(url)
        record = running.view.endpoints()[url]
        totals = running.view.spec_totals()["e4b"]

    assert record.track.restarts == 1
    assert (totals["drafts"], totals["draft_tokens"]) == (57.0, 114.0)
    assert record.identity.models == (ServedModel("e4b", "base", None, 8192),)


@pytest.mark.parametrize("fetch", [httpx_fetch, connector_fetch])
async def test_a_hanging_endpoint_delays_no_other(fetch: Any) -> None:
    """One endpoint never answers; the others are read on, and the hanging one fails by its own deadline."""
    hang: list[asyncio.Event] = []

    async def never() -> bytes:
        hang.append(asyncio.Event())
        await hang[-1].wait()
        return b""

    async with (
        serve(answering({"/metrics": never}), lifespan="off") as stuck,
        sim(FAST) as server,
        # Deadlines are five intervals: the hanging one's is long enough for the others to be read meanwhile.
        scraping(pool("stuck", stuck, interval=0.5), pool("plain", server.url, interval=EVERY), fetch=fetch) as running,
    ):
        await running.until(lambda: hang)
        await running.scraped(server.url, times=3)
        while_hanging = running.view.endpoints()[stuck].errors
        await running.until(lambda: running.view.endpoints()[stuck].errors)
        for event in hang:
            event.set()
        error = running.view.endpoints()[stuck].error

    assert (while_hanging, error) == (0, "timeout")


async def test_failures_are_said_once_and_recovery_too(caplog: pytest.LogCaptureFixture) -> None:
    """A server whose metrics fail is logged once however often it is tried; its return is logged, and it is asked who
    it is."""
    async with (
        sim(FAST) as server,
        scraping(pool("plain", server.url, interval=EVERY), fetch=patient_fetch) as running,
    ):
        record = running.view.endpoints()[server.url]
        await running.until(lambda: record.identity.models)
        with caplog.at_level(logging.INFO, "gateway.telemetry"):
            await server.faults(metrics_down=True)
            await running.until(lambda: record.failures >= 3)
            asked = record.identity_asked
            await server.faults()
            await running.until(lambda: record.failures == 0 and record.identity_asked != asked)
        messages = [row.getMessage() for row in caplog.records if row.name == "gateway.telemetry"]

    assert messages == ["no telemetry from endpoint", "telemetry from endpoint again"]
    assert record.errors >= 3


async def test_a_large_page_is_read_and_a_larger_one_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Ten megabytes are read, off the loop; beyond the limit the page is refused, and that is said once."""
    noise = b'vllm:request_prompt_tokens_bucket{engine="0",le="5.0",model_name="e4b"} 1.0\n'
    size = [10_000_000]

    def page() -> bytes:
        return noise * (size[0] // len(noise)) + engine(num_requests_running=3.0).encode()

    async with (
        serve(answering({"/metrics": page}), lifespan="off") as url,
        scraping(pool("plain", url, interval=0.2)) as running,
    ):
        record = running.view.endpoints()[url]
        await running.until(lambda: record.scrapes)
        running_now, read_bytes = running.view.pool_load("plain").in_flight, record.page_bytes
        size[0] = MAX_PAGE_BYTES + 1000
        with caplog.at_level(logging.WARNING, "gateway.telemetry"):
            await running.until(lambda: record.errors >= 2)

    assert running_now == 3.0
    assert read_bytes > 9_999_000
    assert record.error == f"page above {MAX_PAGE_BYTES} bytes"
    assert [row.getMessage() for row in caplog.records] == ["no telemetry from endpoint"]


async def test_the_pace_is_the_interval_and_slower_for_a_dead_endpoint() -> None:
    """About one page per interval, never two within half of it; a dead endpoint is tried every few seconds."""
    clock, told, slept = Clock(), Told(engine(num_requests_running=1.0)), list[float]()
    view = TelemetryView(FakePools([pool("plain", "http://a")]), list, clock)
    view.match()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds
        if clock.now > 1400.0:
            raise asyncio.CancelledError
        if clock.now > 1200.0:
            told.failing = True

    with suppress(asyncio.CancelledError):
        await Scraper(view, told, Random(5), clock, sleep)._follow("http://a")
    alive, dead = slept[1:190], slept[-20:]

    assert sum(alive) / len(alive) == pytest.approx(1.0, abs=0.05)
    assert all(0.5 <= wait <= 1.5 for wait in alive)
    assert len({round(wait, 6) for wait in alive}) > 1
    assert all(5.0 <= wait <= 10.0 for wait in dead)


async def test_the_scraper_follows_the_pools() -> None:
    """An endpoint that a reload adds is scraped, one that it removes is not any more."""
    async with sim(FAST) as one, sim(FAST) as two, scraping(pool("plain", one.url, interval=EVERY)) as running:
        first = running.view.endpoints()[one.url]
        await running.until(lambda: first.scrapes)
        running.pools.pools[:] = [pool("plain", two.url, interval=EVERY)]
        running.view.match()
        await running.until(lambda: (record := running.view.endpoints().get(two.url)) and record.scrapes)
        stopped = first.scrapes
        await running.scraped(two.url, times=5)

    assert first.scrapes == stopped
    assert list(running.view.endpoints()) == [two.url]


async def test_a_collapse_of_a_simulated_server_is_seen_and_its_end() -> None:
    """The drafter of a real (simulated) engine drifts under traffic: drifting; repaired: healthy again."""
    async with sim(FAST_MTP) as server, scraping(pool("mtp", server.url, k=2, interval=EVERY), window=10.0) as running:

        async def traffic_until(state: MtpState) -> None:
            async with asyncio.timeout(60):
                while running.checklist.state("mtp", "e4b") is not state:
                    await _talk(server, count=8, tokens=60)

        await traffic_until(MtpState.HEALTHY)
        await server.faults(drift=0.3)
        await traffic_until(MtpState.DRIFTING)
        (report,) = running.checklist.reports()
        await server.faults()
        await traffic_until(MtpState.HEALTHY)

    assert report.advice
    assert report.recent is not None
    assert report.recent.rate < 0.25


async def test_the_real_pools_and_policy_fit(tmp_path: Path) -> None:
    """The view reads the gateway's own pools and policy as they are, and scrapes what they name."""
    async with sim(FAST_MTP) as server:
        file = tmp_path / "policy.yaml"
        file.write_text(
            "version: 1\n"
            "defaults: {telemetry: {interval: 20ms}}\n"
            f'pools: {{mtp: {{endpoints: ["{server.url}"], speculative: {{method: mtp, tokens: 2}}}}}}\n'
            "models: {gemma: {pools: [mtp]}}\n"
        )
        policy = load_policy(str(file), {})
        pools = Pools(lambda endpoint, _: connect(endpoint.url), Random(1), time.monotonic)
        pools.apply(policy)
        view = TelemetryView(pools, lambda: policy.models.values(), time.monotonic)
        checklist = MtpChecklist(view, lambda: policy.mtp, time.monotonic)
        async with connector_fetch() as fetch:
            view.match()
            (record,) = view.endpoints().values()
            scraper = Scraper(view, fetch, Random(1), time.monotonic)
            await scraper.scrape(record)
            await _talk(server, count=2)
            await scraper.scrape(record)
        await pools.aclose()

    assert view.disagreements() == ()
    assert [(row.pool, row.model, row.tokens) for row in checklist.reports()] == [("mtp", "gemma", 2)]
