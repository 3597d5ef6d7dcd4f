"""A policy edited while the gateway serves."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from tests.answers import reply, stream
from tests.e2e.events import DONE, delta
from tests.gateways import gateway, one_pool, two_pools
from tests.raw_client import ask, chat, connected, get
from tests.stub import Stub


async def state(url: str) -> dict[str, object]:
    return (await get(url, "/gateway/policy")).json()


async def test_operators_view_and_traffic_agree_after_a_reload(tmp_path: Path) -> None:
    """RELOAD-04: the page, the answer's version header and the chosen back end change together."""
    file = tmp_path / "policy.yaml"
    async with Stub(reply({"choices": []})) as first, Stub(reply({"choices": []})) as second:
        file.write_text(one_pool(first.url))
        async with gateway(file) as running:
            before = await ask(running.url, chat())
            file.write_text(one_pool(second.url))
            await running.until(lambda: running.core.active.version == 2)
            after = await ask(running.url, chat())
            told = await state(running.url)

            assert before.header("x-gateway-policy") != after.header("x-gateway-policy") == told["hash"]
            assert (len(first.requests), len(second.requests)) == (1, 1)
            assert second.url in json.dumps(told["policy"])
            assert running.counted("gateway_policy_reload_total", result="ok") == 1
            assert abs(time.time() - told["reload"]["loaded_at"]) < 600  # type: ignore[index]


async def test_a_broken_edit_changes_nothing(tmp_path: Path) -> None:
    """RELOAD-03: the old policy goes on, the error is counted and shown."""
    file = tmp_path / "policy.yaml"
    async with Stub(reply({"choices": []})) as stub:
        file.write_text(one_pool(stub.url))
        async with gateway(file) as running:
            file.write_text("version: 1\npools: {nope")
            await running.until(lambda: running.counted("gateway_policy_reload_total", result="failed") == 1)

            assert (await ask(running.url, chat())).status == 200
            reload = (await state(running.url))["reload"]
            assert isinstance(reload, dict)
            assert "policy.yaml:2" in reload["last_error"]


async def test_a_running_stream_keeps_its_policy_and_its_endpoint(tmp_path: Path) -> None:
    """RELOAD-05: an endpoint that a reload removes serves its stream to the end, then it is let go."""
    file = tmp_path / "policy.yaml"
    gate = asyncio.Event()
    answer = stream(delta("one"), delta("two", "stop"), DONE, gate=gate)
    async with Stub(answer) as old, Stub(reply({"choices": []})) as new:
        file.write_text(one_pool(old.url))
        async with gateway(file) as running, connected(running.url) as client:
            await client.send("/v1/chat/completions", json.dumps(chat(stream=True)).encode())
            await client.head()
            await client.chunk()
            file.write_text(two_pools(new.url, new.url))
            await running.until(lambda: running.core.active.version == 2)
            later = await ask(running.url, chat())
            gate.set()
            rest = b""
            while piece := await asyncio.wait_for(client.chunk(), 60):
                rest += piece

            assert later.status == 200
            assert len(old.requests) == 1
            assert rest == delta("two", "stop") + DONE
            await old.until(lambda: old.open == 0)
