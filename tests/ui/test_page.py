"""The status page as Chromium shows it, on a gateway with live traffic."""

from __future__ import annotations

import os
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from gateway.app import build
from gateway.policy.load import parse_policy
from gateway.settings import Settings
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.answers import reply
from tests.gateways import Running, gateway, two_pools
from tests.raw_client import ask, chat
from tests.servers import serve
from tests.stub import Stub
from tests.ui.browser import chromium, page
from tests.ui.held import two_held

PROMPT = "Is this review positive or negative? One word: <b>zebra</b> soup was cold."


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    plain = create_app(SimSettings(served_names=("m",), time_scale=100))
    drafting = create_app(SimSettings(served_names=("m",), k=2, time_scale=100))
    async with serve(plain) as one, serve(drafting) as two:
        policy = f"""
version: 1
pools:
  plain: {{endpoints: ["{one}"]}}
  mtp: {{endpoints: ["{two}"], speculative: {{method: mtp, tokens: 2}}}}
models:
  m: {{pools: [plain, mtp], architecture: dense}}
"""
        async with gateway(policy) as live:
            yield live


async def test_traffic_shows_live(browser: Browser, running: Running) -> None:
    """An empty gateway says what to do; a request that comes in shows without a reload: flow, decision, pools."""
    async with page(browser, running.url) as shown:
        await expect(shown.locator("#status")).to_have_text("Live")
        await expect(shown.locator("#flow .empty code")).to_contain_text(f"{running.url}/v1/chat/completions")

        await ask(running.url, chat(PROMPT))

        await expect(shown.locator("#last tbody tr")).to_have_count(1)
        await expect(shown.locator("#last tbody")).to_contain_text("classification")
        await expect(shown.locator("#last tbody .race")).to_contain_text(re.compile("plain.*mtp"))
        await expect(shown.locator("#flow > svg")).to_have_attribute(
            "aria-label", re.compile(r"classification → \w+: 1")
        )
        await expect(shown.locator("#pools .good")).to_have_count(2)
        await expect(shown.locator("#even > svg")).to_have_attribute("aria-label", re.compile(r"^m: .*MTP"))
        assert "zebra" not in await shown.content()
        await expect(shown.locator("#canary")).to_be_hidden()


async def test_a_canary_is_shown_beside_the_live_policy(browser: Browser, tmp_path: Path) -> None:
    """Requests, failures and times of both, and what flips, in both languages."""
    answer = reply({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
    async with Stub(answer) as plain, Stub(answer) as mtp:
        live = two_pools(plain.url, mtp.url, "static")
        (tmp_path / "canary.yaml").write_text(
            live.replace("threshold: 64", "threshold: 0") + "canary: {share: 0.5}\n", "utf-8"
        )
        settings = Settings(canary_policy=str(tmp_path / "canary.yaml"))
        app = build(settings, parse_policy(live, "policy.yaml", {}), env={}, rng=random.Random(7))
        async with serve(app, loop="asyncio", http="httptools", lifespan="on") as url:
            for _ in range(20):
                await ask(url, {"model": "m", "prompt": "Once upon a time", "max_tokens": 4}, "/v1/completions")
            async with page(browser, url) as shown:
                drafted, rows = len(mtp.requests), rows_of(shown)
                await expect(rows).to_have_count(2)
                await expect(rows.nth(1)).to_contain_text(re.compile(rf"Canary{drafted} \({drafted * 5}%\)0%.*s"))
                await expect(shown.locator("#canaryFlips")).to_contain_text(f"plain → mtp {drafted}.")
                if folder := os.environ.get("GATEWAY_TEST_SCREENSHOTS"):
                    for theme in ("light", "dark"):
                        await shown.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
                        await shown.locator("#canary").screenshot(path=f"{folder}/canary-{theme}.png")
            async with page(browser, url, locale="ja-JP", width=360) as shown:
                await expect(shown.locator("#h-canary")).to_have_text("カナリアポリシー")
                await expect(rows_of(shown).nth(0)).to_contain_text("現行")
                assert await shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


def rows_of(shown: Page) -> Locator:
    return shown.locator("#canary tbody tr")


async def test_streams_held_for_their_engine_are_told_while_there_are_any(browser: Browser) -> None:
    """The tile, the pool and the endpoint say how many, and behind what; a quiet page says nothing of it."""
    async with two_held() as held:
        async with page(browser, held.running.url) as shown:
            await expect(shown.locator("#tiles")).to_contain_text("0 waiting, 2 held for prefill")
            await expect(shown.locator("#pools .pool > div").first).to_contain_text("2 held for prefill")
            await expect(shown.locator("#pools li")).to_contain_text(
                re.compile(r"up · 3 running, 2 held behind [\d,]+ prompt tokens")
            )
            await screenshot(shown, "held-en")
        async with page(browser, held.running.url, locale="ja-JP", width=360) as shown:
            await expect(shown.locator("#pools li")).to_contain_text("プリフィル待ち 2（処理中")
            assert await shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await screenshot(shown, "held-ja")
        async with page(browser, held.running.url) as shown:
            await held.end()
            await expect(shown.locator("#pools li")).to_contain_text("up · 0 running")
            assert "held" not in await shown.locator("#board").inner_text()
            await screenshot(shown, "held-none")


async def screenshot(shown: Page, name: str) -> None:
    """For a human eye, where a folder is named."""
    if folder := os.environ.get("GATEWAY_TEST_SCREENSHOTS"):
        await shown.screenshot(path=f"{folder}/{name}.png", full_page=True)


async def test_a_request_is_explained_without_being_sent(browser: Browser, running: Running) -> None:
    """The box tells task, length, each pool's time and the winner; markup in a prompt stays text."""
    async with page(browser, running.url) as shown:
        await shown.fill("#prompt", PROMPT)
        await shown.click("#try button")

        await expect(shown.locator("#told")).to_contain_text("classification")
        await expect(shown.locator("#told .race .won")).to_have_count(2)
        await shown.check("#json")
        await shown.click("#try button")
        await expect(shown.locator("#told .bad")).to_contain_text("This is no JSON")
    assert running.counted("gateway_requests_total") == 0


async def test_it_is_bilingual_and_fits_a_phone(browser: Browser, running: Running) -> None:
    """A Japanese browser gets Japanese; at 360 pixels nothing sticks out; the toggles work by keyboard."""
    async with page(browser, running.url, locale="ja-JP", width=360) as shown:
        await expect(shown.locator("#h-flow")).to_have_text("リクエストの行き先")
        await expect(shown.locator("html")).to_have_attribute("lang", "ja")
        assert await shown.evaluate("document.documentElement.scrollWidth <= innerWidth")

        await shown.focus("#language")
        await shown.keyboard.press("Enter")
        await expect(shown.locator("#h-flow")).to_have_text("Where requests go")
        before = await shown.evaluate("getComputedStyle(document.body).backgroundColor")
        await shown.focus("#theme")
        await shown.keyboard.press("Enter")
        await shown.keyboard.press("Enter")
        await expect(shown.locator("html")).to_have_attribute("data-theme", "dark")
        assert await shown.evaluate("getComputedStyle(document.body).backgroundColor") != before


async def test_a_protected_gateway_asks_for_the_key(browser: Browser) -> None:
    """The shell is open and tells nothing; a wrong key is refused, the right one shows the status."""
    policy = """
version: 1
pools: {p: {endpoints: ["http://127.0.0.1:1"]}}
models: {secret-model: {pools: [p]}}
access: {operator_key: {env: OPS}}
"""
    async with gateway(policy, {"OPS": "sesame"}) as running, page(browser, running.url) as shown:
        await expect(shown.locator("#login")).to_be_visible()
        await expect(shown.locator("#board")).to_be_hidden()
        await shown.fill("#key", "wrong")
        await shown.keyboard.press("Enter")
        await expect(shown.locator("#loginError")).to_contain_text("does not open")
        assert "secret-model" not in await shown.content()

        await shown.fill("#key", "sesame")
        await shown.keyboard.press("Enter")
        await expect(shown.locator("#board")).to_be_visible()
        await expect(shown.locator("#evenModel")).to_contain_text("secret-model")
        assert "sesame" not in shown.url
