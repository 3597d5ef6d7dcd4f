"""Which models are served: what engines say of themselves is shown where readiness is asked for."""

from __future__ import annotations

from typing import Any

from tests.gateways import Running, gateway
from tests.raw_client import get
from tests.sim.helpers import FAST, sim


def policy(*urls: str, model: str = "m", more: str = "") -> str:
    pools = ", ".join(f'p{n}: {{endpoints: ["{url}"]{more}}}' for n, url in enumerate(urls))
    names = ", ".join(f"p{n}" for n in range(len(urls)))
    return f"""
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: 50ms}}}}
pools: {{{pools}}}
models: {{{model}: {{pools: [{names}]}}}}
"""


async def ready(running: Running) -> tuple[int, dict[str, Any]]:
    answer = await get(running.url, "/ready")
    return answer.status, answer.json()


async def told(running: Running, *urls: str) -> None:
    """Until these engines have said what they serve."""
    await running.until(lambda: all(running.core.watch.view.identity(url).models for url in urls))


async def test_a_model_that_no_engine_lists_is_shown() -> None:
    """MODEL-01: `/ready` says which endpoint, and what it was looked for; traffic goes there, so it is ready."""
    async with sim(FAST) as engine, gateway(policy(engine.url, model="other")) as running:
        await told(running, engine.url)
        status, body = await ready(running)

    assert (status, body["models_without_pool"]) == (200, [])
    found = {"model": "other", "pool": "p0", "served_name": "other", "endpoints": [engine.url]}
    assert body["models_not_served"] == [found]


async def test_one_engine_that_serves_it_is_enough() -> None:
    """The other one is shown all the same."""
    async with sim(FAST) as engine, sim(FAST) as wrong:
        text = policy(engine.url, wrong.url, model="e4b")
        text = text.replace(f'["{wrong.url}"]', f'["{wrong.url}"], model: nothing')
        async with gateway(text) as running:
            await told(running, engine.url, wrong.url)
            status, body = await ready(running)

    assert status == 200
    assert [row["pool"] for row in body["models_not_served"]] == ["p1"]


async def test_the_name_that_is_sent_upstream_counts() -> None:
    """A pool's `model` is what its engines are asked for."""
    async with sim(FAST) as engine, gateway(policy(engine.url, model="public", more=", model: e4b")) as running:
        await told(running, engine.url)
        status, body = await ready(running)

    assert status == 200
    assert "models_not_served" not in body
