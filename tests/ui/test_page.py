"""The status page as Chromium shows it, on a gateway with live traffic."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.gateways import Running, gateway
from tests.raw_client import ask, chat
from tests.servers import serve
from tests.ui.browser import chromium, page

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
