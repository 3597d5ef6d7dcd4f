"""A policy edited while the gateway serves."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.answers import reply, stream
from tests.e2e.events import DONE, delta
from tests.gateways import gateway, one_pool, two_pools
from tests.raw_client import ask, chat, connected, counted, get
from tests.stub import Call, Stub


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
    """RELOAD-03: the old policy goes on, the error is counted and shown, and so is its end with the file as before."""
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

            file.write_text(one_pool(stub.url))
            await running.until(lambda: running.counted("gateway_policy_reload_total", result="ok") == 1)
            told = await state(running.url)
            assert isinstance(told["reload"], dict)
            assert (told["version"], told["reload"]["last_error"]) == (1, None)


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


RENAMED = """
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}}}
pools:
  renamed: {{endpoints: ["{url}"], model: served}}
models:
  {model}: {{pools: [renamed]}}
"""


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", chat()), ("/v1/embeddings", {"model": "m", "input": "hi"})],
    ids=["routed", "passed through"],
)
async def test_a_request_that_waits_for_a_pool_that_goes_is_decided_anew(
    tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    """RELOAD-05: no request is dropped because a reload renames or replaces its pool while it is queued."""
    file = tmp_path / "policy.yaml"
    gate = asyncio.Event()

    async def slow(call: Call) -> None:
        await gate.wait()
        await reply({"choices": [], "model": "m"})(call)

    async with Stub(slow) as old, Stub(reply({"choices": [], "model": "served"})) as new:
        file.write_text(one_pool(old.url, extra=", limits: {in_flight: 1}"))
        async with gateway(file) as running:
            first = asyncio.create_task(ask(running.url, body, path))
            await old.until(lambda: len(old.requests) == 1)
            waiting = asyncio.create_task(ask(running.url, body, path))
            await running.until(lambda: running.core.pools["plain"].waiting == 1)
            assert await counted(running.url, "gateway_waiting", pool="plain") == 1
            file.write_text(RENAMED.format(url=new.url, model="m"))
            answer = await waiting
            gate.set()

            assert (answer.status, answer.header("x-gateway-pool")) == (200, "renamed")
            assert new.requests[0].json() == {**body, "model": "served"}
            assert (await first).status == 200
            assert len(old.requests) == 1
            await running.until(lambda: running.counted("gateway_requests_total", outcome="ok") == 2)
            # What waits for a pool that is gone would keep an alert firing.
            page = (await get(running.url, "/metrics")).body.decode()
            gauges = ("gateway_waiting{", "gateway_prefill_waiting{", "gateway_in_flight_limit{", "gateway_in_flight{")
            shown = [line for line in page.splitlines() if line.startswith(gauges)]
            assert len(shown) == 4
            assert all('pool="renamed"' in line for line in shown)


STRICTER = """
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}}}
server: {{client_hints: false}}
pools:
  renamed: {{endpoints: ["{url}"]}}
  gold: {{endpoints: ["{gold}"]}}
models:
  m: {{pools: [renamed, gold]}}
routing: {{rules: [{{name: gold, when: {{header: {{x-tier: gold}}}}, require: gold}}]}}
access: {{keys: [{{name: k, env: KEY, pools: [renamed, gold]}}]}}
"""


async def test_what_is_decided_anew_is_the_new_policys(tmp_path: Path) -> None:
    """RELOAD-05: its rules, headers and keys, its view of hints and its name; nothing of the old one's is left."""
    file = tmp_path / "policy.yaml"
    gate = asyncio.Event()
    sent = (("authorization", "Bearer s"), ("x-gateway-output-tokens", "777"), ("x-gateway-task", "math"))
    old_keys = "access: {keys: [{name: k, env: KEY, pools: [plain]}]}\n"
    slow = stream(delta("one", "stop"), DONE, gate=gate, gate_before=0)
    async with Stub(slow) as old, Stub(reply({"choices": []})) as new, Stub(reply({"choices": []})) as gold:
        file.write_text(one_pool(old.url, extra=", limits: {in_flight: 1}") + old_keys)
        async with gateway(file, {"KEY": "s"}) as running:
            first = asyncio.create_task(ask(running.url, chat(stream=True), headers=sent))
            await old.until(lambda: len(old.requests) == 1)
            tiers = ("gold", "none")
            tasks = [asyncio.create_task(ask(running.url, chat(), headers=(*sent, ("x-tier", t)))) for t in tiers]
            await running.until(lambda: running.core.pools["plain"].waiting == 2)
            file.write_text(STRICTER.format(url=new.url, gold=gold.url))
            answers = await asyncio.gather(*tasks)
            gate.set()

            assert (await first).header("x-gateway-predicted-output-tokens") == "777"
            assert [answer.status for answer in answers] == [200, 200]
            assert {answer.header("x-gateway-policy") for answer in answers} == {
                running.core.active.policy.version_hash
            }
            assert answers[0].header("x-gateway-pool") == "gold"
            assert {answer.header("x-gateway-task") for answer in answers}.isdisjoint({"math"})
            assert {answer.header("x-gateway-predicted-output-tokens") for answer in answers}.isdisjoint({"777"})


async def test_a_stream_that_has_begun_to_beat_is_told_when_a_reload_ends_heartbeats(tmp_path: Path) -> None:
    """RELOAD-05, TIMEOUT-05: decided anew, it gets the other back end's refusal within the stream that has begun."""
    file = tmp_path / "policy.yaml"
    gate = asyncio.Event()
    refusal = reply({"error": {"message": "too long", "code": 400}}, 400)
    async with Stub(stream(delta("one", "stop"), DONE, gate=gate, gate_before=0)) as old, Stub(refusal) as new:
        file.write_text(one_pool(old.url, extra=", limits: {in_flight: 1}") + "server: {heartbeat: 20ms}\n")
        async with gateway(file) as running, connected(running.url) as client:
            first = asyncio.create_task(ask(running.url, chat(stream=True)))
            await old.until(lambda: len(old.requests) == 1)
            await client.send("/v1/chat/completions", json.dumps(chat(stream=True)).encode())
            assert (await client.head())[0] == 200
            file.write_text(RENAMED.format(url=new.url, model="m"))
            told = b""
            while piece := await client.chunk():
                told = piece
            gate.set()

            assert told.lstrip().startswith(b'data: {"error": {"message": "too long"')
            assert (await first).body.endswith(DONE)


async def test_a_request_that_waits_for_a_model_that_goes_is_told(tmp_path: Path) -> None:
    """RELOAD-05: what cannot be decided anew, because its model has gone as well, ends at once."""
    file = tmp_path / "policy.yaml"
    gate = asyncio.Event()
    async with Stub(stream(delta("one", "stop"), DONE, gate=gate, gate_before=0)) as old, Stub() as new:
        file.write_text(one_pool(old.url, extra=", limits: {in_flight: 1}"))
        async with gateway(file) as running:
            first = asyncio.create_task(ask(running.url, chat(stream=True)))
            await old.until(lambda: len(old.requests) == 1)
            waiting = asyncio.create_task(ask(running.url, chat()))
            await running.until(lambda: running.core.pools["plain"].waiting == 1)
            file.write_text(RENAMED.format(url=new.url, model="other"))
            answer = await waiting
            gate.set()

            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            told = (answer.header("x-gateway-policy"), answer.header("x-gateway-pool"))
            assert told == (running.core.active.policy.version_hash, None)
            assert (await first).body == delta("one", "stop") + DONE
            assert not new.requests
