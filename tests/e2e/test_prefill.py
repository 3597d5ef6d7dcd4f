"""Prompts are held until the engine gets to them, through a real gateway: order, leaving, dying, and what is shown.

The gateway's time stands still, so that no prompt counts as computed before its first byte comes.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from gateway.policy.load import parse_policy
from gateway.upstream.prefill import LONGEST
from tests.answers import reply, stream
from tests.gateways import Running, gateway, one_pool
from tests.raw_client import ask, chat, connected, counted, get
from tests.stub import Answer, Call, Stub
from tests.upstream.live import Clock

EVENT = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
LONG, MIDDLE, SHORT = "word " * 900, "word " * 500, "word " * 50
LIMITS = ", limits: {prefill: 1000}"


def first_token_after(gate: asyncio.Event) -> Answer:
    """A stream whose first token comes once the gate is open."""
    return stream(EVENT, DONE, gate=gate, gate_before=0)


def prompts(stub: Stub) -> list[int]:
    """The lengths of the prompts in the order in which they came to the engine."""
    return [len(json.loads(request.body)["messages"][0]["content"]) for request in stub.requests]


def held(running: Running) -> int:
    return sum(endpoint.prefill.waiting for pool in running.core.pools for endpoint in pool.endpoints)


async def test_a_short_prompt_passes_long_ones_that_the_engine_has_not_begun() -> None:
    """The engine would compute them in order of arrival; here the short one is sent first."""
    gate = asyncio.Event()
    async with (
        Stub(first_token_after(gate)) as stub,
        gateway(one_pool(stub.url, extra=LIMITS), clock=Clock()) as running,
    ):
        tasks = [asyncio.create_task(ask(running.url, chat(LONG, stream=True)))]
        await stub.until(lambda: len(stub.requests) == 1)
        for text in (LONG, MIDDLE, SHORT):
            tasks.append(asyncio.create_task(ask(running.url, chat(text, stream=True))))
            await running.until(lambda: held(running) + len(stub.requests) == len(tasks))

        assert (len(stub.requests), held(running)) == (2, 2)
        assert await counted(running.url, "gateway_prefill_waiting", pool="plain") == 2
        (pool,) = json.loads((await get(running.url, "/gateway/pools")).body)["pools"]
        assert (pool["in_flight"], pool["waiting"], pool["endpoints"][0]["held"]) == (4, 0, 2)
        gate.set()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert prompts(stub) == [len(LONG), len(SHORT), len(MIDDLE), len(LONG)]
        await running.until(lambda: running.in_flight == 0)
        assert held(running) == 0


async def test_a_client_that_leaves_while_it_is_held_is_never_sent() -> None:
    """CANCEL: its slot is free at once, and the engine never hears of it."""
    gate = asyncio.Event()
    async with (
        Stub(first_token_after(gate)) as stub,
        gateway(one_pool(stub.url, extra=LIMITS), clock=Clock()) as running,
    ):
        first = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
        await stub.until(lambda: len(stub.requests) == 1)
        async with connected(running.url) as client:
            await client.send("/v1/chat/completions", json.dumps(chat(LONG, stream=True)).encode())
            await running.until(lambda: held(running) == 1)
        await running.until(lambda: held(running) == 0 and running.in_flight == 1)
        gate.set()

        assert (await first).status == 200
        assert len(stub.requests) == 1


async def test_the_limit_on_the_first_event_begins_when_the_request_is_sent() -> None:
    """TIMEOUT-05: what waited here for longer than `timeouts.first_byte` has all of that limit before it."""
    gate, comment = asyncio.Event(), b": begun\n\n"
    clock = Clock()
    policy = one_pool("{url}", extra=f"{LIMITS}, breaker: {{stall: off}}, timeouts: {{first_byte: 20s}}")
    async with Stub(first_token_after(gate)) as stub:
        second = stream(comment, EVENT, DONE, gate=gate, gate_before=1)
        async with gateway(policy.replace("{url}", stub.url), clock=clock) as running:
            tasks = [asyncio.create_task(ask(running.url, chat(LONG, stream=True)))]
            await stub.until(lambda: len(stub.requests) == 1)
            stub.answer = second
            tasks.append(asyncio.create_task(ask(running.url, chat(LONG, stream=True))))
            await running.until(lambda: held(running) == 1)
            clock.pass_(LONGEST)
            await stub.until(lambda: len(stub.requests) == 2)
            gate.set()

            assert [answer.status for answer in await asyncio.gather(*tasks)] == [200, 200]
            assert running.counted("gateway_retries_total") == 0


async def test_a_held_request_goes_elsewhere_when_its_engine_is_found_dead() -> None:
    """Nothing was sent of it, so that this costs it none of its attempts."""
    async with Stub(hanging) as dead, Stub(stream(EVENT, DONE)) as well:
        policy = one_pool(dead.url, well.url, extra=f"{LIMITS}, retry: {{attempts: 1}}")
        async with gateway(policy, clock=Clock()) as running:
            (pool,) = list(running.core.pools)
            endpoint = next(e for e in pool.endpoints if e.url == dead.url)
            other = next(e for e in pool.endpoints if e.url == well.url)
            other.weight = 0.0
            other.refresh()
            first = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
            await dead.until(lambda: len(dead.requests) == 1)
            second = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
            await running.until(lambda: held(running) == 1)
            other.weight = 1.0
            other.refresh()
            endpoint.probed(False)

            assert (await second).status == 200
            assert (len(dead.requests), len(well.requests)) == (1, 1)
            assert await counted(running.url, "gateway_retries_total", pool="plain") >= 1
            first.cancel()
            await asyncio.wait([first])


async def test_a_held_request_goes_elsewhere_when_a_reload_takes_its_engine_away() -> None:
    """RELOAD-05: what was sent there stays; what was not is no longer for an engine that has left."""
    gate = asyncio.Event()
    async with (
        Stub(first_token_after(gate)) as old,
        Stub(stream(EVENT, DONE)) as new,
        gateway(one_pool(old.url, extra=LIMITS), clock=Clock()) as running,
    ):
        first = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
        await old.until(lambda: len(old.requests) == 1)
        second = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
        await running.until(lambda: held(running) == 1)
        running.core.pools.apply(parse_policy(one_pool(new.url, extra=LIMITS), "policy.yaml", {}))

        assert (await second).status == 200
        assert (len(old.requests), len(new.requests)) == (1, 1)
        gate.set()
        assert (await first).status == 200
        await running.until(lambda: running.in_flight == 0)


async def test_a_held_request_is_decided_anew_when_a_reload_renames_its_pool(tmp_path: Path) -> None:
    """RELOAD-05: with its pool there is no other endpoint to move to, and its engine has left all the same."""
    file, gate = tmp_path / "policy.yaml", asyncio.Event()
    async with Stub(first_token_after(gate)) as old, Stub(stream(EVENT, DONE)) as new:
        file.write_text(one_pool(old.url, extra=LIMITS))
        async with gateway(file, clock=Clock()) as running:
            first = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
            await old.until(lambda: len(old.requests) == 1)
            second = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
            await running.until(lambda: held(running) == 1)
            file.write_text(one_pool(new.url, extra=LIMITS).replace("plain", "renamed"))
            await running.until(lambda: running.core.pools.find("plain") is None)
            await new.until(lambda: len(new.requests) == 1)
            gate.set()

            assert ((await second).header("x-gateway-pool"), (await first).status) == ("renamed", 200)
            assert len(old.requests) == 1
            await running.until(lambda: running.counted("gateway_requests_total", outcome="ok") == 2)


async def test_a_label_that_is_to_be_decoded_is_decided_anew_when_a_reload_renames_its_pool(tmp_path: Path) -> None:
    """RELOAD-05: that the engine was asked for the label, in vain, is no attempt that would be repeated."""
    file, gate = tmp_path / "policy.yaml", asyncio.Event()

    async def without_labels(call: Call) -> None:
        asked = call.request.target == b"/v1/decisions"
        await (reply({}, 404) if asked else first_token_after(gate))(call)

    choice = {**chat(LONG, stream=True), "structured_outputs": {"choice": ["yes", "no"]}, "temperature": 0}
    async with Stub(without_labels) as old, Stub(stream(EVENT, DONE)) as new:
        policy = one_pool(old.url, extra=LIMITS).replace("pools: [plain]", "pools: [plain], decisions: true")
        file.write_text(policy)
        async with gateway(file, clock=Clock()) as running:
            first = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
            await old.until(lambda: len(old.requests) == 1)
            second = asyncio.create_task(ask(running.url, choice))
            await running.until(lambda: held(running) == 1)
            assert old.requests[1].target == b"/v1/decisions"
            file.write_text(one_pool(new.url, extra=LIMITS).replace("plain", "renamed"))
            await running.until(lambda: running.core.pools.find("plain") is None)
            gate.set()

            answer = await second
            assert (answer.status, answer.header("x-gateway-pool"), (await first).status) == (200, "renamed", 200)
            assert [len(old.requests), len(new.requests)] == [2, 1]


async def test_a_retry_that_is_held_when_a_reload_renames_its_pool_is_still_served(tmp_path: Path) -> None:
    """RELOAD-05: what was sent once is not decided anew, so the engine that leaves is all there is for it."""
    file, gate = tmp_path / "policy.yaml", asyncio.Event()
    async with Stub(first_token_after(gate)) as old, Stub(reply({}, 502)) as broken, Stub() as new:
        file.write_text(one_pool(old.url, broken.url, extra=LIMITS))
        async with gateway(file, clock=Clock()) as running:
            first = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
            await running.until(lambda: len(old.requests) == 1)
            second = asyncio.create_task(ask(running.url, chat(LONG, stream=True)))
            await running.until(lambda: held(running) == 1)
            assert len(broken.requests) >= 1
            file.write_text(one_pool(new.url, extra=LIMITS).replace("plain", "renamed"))
            await running.until(lambda: running.core.pools.find("plain") is None)
            gate.set()

            assert ((await first).status, (await second).status) == (200, 200)
            assert not new.requests


async def hanging(call: Call) -> None:
    await call.hang()
