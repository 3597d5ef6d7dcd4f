"""Counters before their first event, on the page that Prometheus reads: `rate` sees no increase in what begins at 1."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.answers import reply
from tests.e2e.test_process import process
from tests.gateways import one_pool
from tests.raw_client import ask, chat, get
from tests.stub import Stub

FAILING = reply({"error": {"message": "not now"}}, 503)


async def page(url: str) -> dict[tuple[str, str, str], float]:
    """The page's values by name, pool and what else tells (class, outcome or reason)."""
    told: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families((await get(url, "/metrics")).body.decode()):
        for sample in family.samples:
            what = next((sample.labels[name] for name in ("class", "outcome", "reason") if name in sample.labels), "")
            key = sample.name, sample.labels.get("pool", ""), what
            told[key] = told.get(key, 0.0) + sample.value
    return told


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
async def test_the_first_retry_is_an_increase(tmp_path: Path, options: tuple[str, ...]) -> None:
    """METRIC-01: at 0 from the start, and for a pool that a reload brings; with workers each event counts once."""
    async with Stub(FAILING) as one, Stub(FAILING) as two:
        file = tmp_path / "policy.yaml"
        file.write_text(one_pool(one.url, two.url))
        async with process(file, *options) as (_, url):
            retried = ("gateway_retries_total", "plain", "status_503")
            refused = ("gateway_requests_total", "none", "rejected")
            start = await page(url)
            assert (start[retried], start[refused]) == (0.0, 0.0)
            assert (
                start["gateway_output_tokens_total", "plain", ""],
                start["gateway_legacy_guided_total", "", ""],
            ) == (0.0, 0.0)

            assert (await ask(url, chat())).status == 503
            async with asyncio.timeout(60):
                # A worker hands over what it counts within a moment, and the other one may answer before.
                while not (after := await page(url)).get(("gateway_requests_total", "plain", "backend_error")):
                    await asyncio.sleep(0.05)
            assert after[retried] == 1.0
            assert after["gateway_requests_total", "plain", "backend_error"] == 1.0
            assert after["gateway_requests_total", "plain", "timeout"] == 0.0

            file.write_text(
                one_pool(one.url, two.url).replace("models:", f"  more: {{endpoints: ['{one.url}']}}\nmodels:")
            )
            async with asyncio.timeout(60):
                while ("gateway_retries_total", "more", "lost") not in (reloaded := await page(url)):
                    await asyncio.sleep(0.05)
            assert reloaded["gateway_retries_total", "more", "lost"] == 0.0
            assert reloaded[retried] == 1.0
