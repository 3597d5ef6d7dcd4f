"""A real Chromium for tests of the status page."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

PATIENCE_MS = 60_000
"""How long what is expected may take to show; Playwright's own five seconds are few on a busy machine."""
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """Its path. Skips the test where there is none; CI has one."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine: sh tests/system-parts.sh")
    return found


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        # Without its sandbox, which containers and root accounts cannot have; it only ever sees loopback.
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def page(browser: Browser, url: str, *, locale: str = "en-US", width: int = 1280) -> AsyncIterator[Page]:
    """The page at a gateway. Fails on any error that the page's scripts raise or its security policy reports."""
    context = await browser.new_context(locale=locale, viewport={"width": width, "height": 800})
    faults: list[str] = []
    shown = await context.new_page()
    shown.set_default_timeout(PATIENCE_MS)
    shown.on("pageerror", lambda error: faults.append(str(error)))
    shown.on("console", lambda line: faults.append(line.text) if "Security Policy" in line.text else None)
    await shown.goto(url + "/")
    yield shown
    await context.close()
    assert faults == []
