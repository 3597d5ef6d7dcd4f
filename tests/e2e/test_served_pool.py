"""A request that another pool served than the one that was decided for: everything is told of the one that did."""

from __future__ import annotations

import asyncio

from tests.answers import completion, reply
from tests.gateways import Running, gateway, two_pools
from tests.raw_client import Answer, ask, chat, get
from tests.stub import Answer as Answering
from tests.stub import Call, Stub

GOOD = completion(3, 5)
BROKEN = reply({"error": {"message": "x"}}, 503)
ASKED = chat("Explain the tides in detail.")


async def told(running: Running, answer: Answer, pool: str, other: str, reason: str) -> None:
    """Headers, metrics and decision log name the pool that served, and no sample names the other."""
    await running.until(lambda: running.counted("gateway_requests_total", pool=pool) == 1)
    row = (await get(running.url, "/gateway/decisions?limit=1")).json()["decisions"][0]  # type: ignore[index]

    assert answer.status == 200
    assert (answer.header("x-gateway-pool"), answer.header("x-gateway-reason")) == (pool, reason)
    assert (row["decision"]["pool"], row["decision"]["reason"]) == (pool, reason)
    for name, value in (("output_tokens_total", 5), ("request_seconds_count", 1), ("decisions_total", 1)):
        assert running.counted("gateway_" + name, pool=pool) == value
        assert running.counted("gateway_" + name, pool=other) == 0


async def test_after_a_failover_the_pool_that_answered_is_named() -> None:
    """RETRY-03, RETRY-04: tokens and seconds count for the pool that made them, though the other was chosen."""
    async with Stub(GOOD) as plain, Stub(BROKEN) as mtp, gateway(two_pools(plain.url, mtp.url)) as running:
        answer = await ask(running.url, ASKED, headers=(("x-gateway-pool", "mtp"),))
        await told(running, answer, "plain", "mtp", "spill")

        assert running.counted("gateway_retries_total", pool="mtp") == 1


async def test_out_of_the_queue_the_pool_that_had_a_place_is_named() -> None:
    """ROUTE-09: where both pools are full, the first free place may be the other's, whose speed is learned then."""
    holds = {"plain": asyncio.Event(), "mtp": asyncio.Event()}

    def held(name: str) -> Answering:
        async def answer(call: Call) -> None:
            if b"hold" in call.request.body:
                await holds[name].wait()
            await GOOD(call)

        return answer

    async with Stub(held("plain")) as plain, Stub(held("mtp")) as mtp:
        policy = two_pools(plain.url, mtp.url).replace("defaults: {", "defaults: {limits: {in_flight: 1}, ")
        async with gateway(policy) as running:
            busy = [
                asyncio.create_task(ask(running.url, chat("hold"), headers=(("x-gateway-pool", name),)))
                for name in holds
            ]
            await running.until(lambda: running.in_flight == 2)
            asked = (("x-gateway-pool", "mtp"), ("x-gateway-session", "s"))
            waiting = asyncio.create_task(ask(running.url, ASKED, headers=asked))
            await running.until(lambda: running.core.pools.admission.waiting == 1)
            holds["plain"].set()
            answer = await waiting
            holds["mtp"].set()
            await asyncio.gather(*busy)

            assert answer.header("x-gateway-pool") == "plain"
            await running.until(lambda: running.counted("gateway_requests_total", pool="plain") == 2)
            assert running.counted("gateway_decisions_total", pool="plain", reason="spill") == 1
            assert running.counted("gateway_output_tokens_total", pool="plain") == 10
            assert ("plain", plain.url) in running.core.learned.routing.sticky._homes
            assert ("mtp", plain.url) not in running.core.learned.routing.sticky._homes
