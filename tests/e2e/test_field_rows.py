"""Reports from other gateways that no other test names: labels, grammars with several choices, heartbeats."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.breaker import Gate
from tests.answers import completion, reply
from tests.gateways import Running, gateway, one_pool, two_pools
from tests.raw_client import ask, chat, connected, get
from tests.stub import Call, Stub

GOOD = completion(3, 5)
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


async def series(running: Running) -> set[str]:
    """Every series on the page of metrics, without its value."""
    page = (await get(running.url, "/metrics")).body.decode()
    return {line.rpartition(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}


async def test_invented_names_make_no_series() -> None:
    """METRIC-03: however many models clients make up, the page stays as long as it was."""
    async with Stub(GOOD) as stub, gateway(one_pool(stub.url)) as running:
        assert (await ask(running.url, {**chat(), "model": "made-up"})).status == 404
        before = await series(running)
        for number in range(100):
            assert (await ask(running.url, {**chat(), "model": f"made-up-{number}"})).status == 404
        await running.until(lambda: running.counted("gateway_requests_total") == 101)

        assert await series(running) == before
        assert running.counted("gateway_requests_total", model="other", outcome="client_error") == 101


@pytest.mark.parametrize("name", ["x" * 10_000, ["m"], None, 5, {"m": 1}, True, "", "\x00", '"\n\\', "模型"])
async def test_a_name_of_any_form_makes_no_label(name: object) -> None:
    """METRIC-04: long, of another type, with quotes or line ends: the client's error, and the page can be read."""
    async with Stub(GOOD) as stub, gateway(one_pool(stub.url) + "  second: {pools: [plain]}\n") as running:
        answer = await ask(running.url, {**chat(), "model": name})
        await running.until(lambda: running.counted("gateway_requests_total") == 1)
        page = (await get(running.url, "/metrics")).body.decode()

        assert answer.status in (400, 404)
        assert answer.error["param"] == "model"
        assert 'gateway_requests_total{model="other",outcome="client_error",pool="none",task="none"} 1.0' in page
        assert stub.requests == []


@pytest.mark.parametrize("status", [400, 500])
async def test_several_choices_with_a_schema_may_fail_without_harm(status: int) -> None:
    """SPEC-05: such a request keeps off the drafting pool, its error passes, and no endpoint is given up for it."""
    error = {"error": {"message": "grammar", "type": "x", "param": None, "code": status}}

    async def picky(call: Call) -> None:
        await (reply(error, status) if b'"n": 2' in call.request.body else GOOD)(call)

    async with Stub(picky) as plain, Stub(GOOD) as mtp, gateway(two_pools(plain.url, mtp.url)) as running:
        failed = [await ask(running.url, chat(n=2, response_format=SCHEMA)) for _ in range(3)]
        served = await ask(running.url, chat(response_format=SCHEMA))

        assert [(answer.status, answer.json()) for answer in failed] == [(status, error)] * 3
        assert (served.status, served.header("x-gateway-pool")) == (200, "plain")
        assert mtp.requests == []
        assert all(endpoint.breaker.gate is Gate.OPEN for pool in running.core.pools for endpoint in pool.endpoints)


async def test_a_heartbeat_is_a_comment_that_no_reader_takes_for_an_event() -> None:
    """TIMEOUT-06: timers that count events do not see it, as the policy's comment says; nor does a parser."""
    gate = asyncio.Event()

    async def late(call: Call) -> None:
        await gate.wait()
        await GOOD(call)

    policy = one_pool("URL") + "server: {heartbeat: 20ms}\n"
    async with (
        Stub(late) as stub,
        gateway(policy.replace("URL", stub.url)) as running,
        connected(running.url) as client,
    ):
        body = b'{"model": "m", "messages": [], "stream": true}'
        await client.send("/v1/chat/completions", body)
        await client.head()
        beats = [await asyncio.wait_for(client.chunk(), 60) for _ in range(2)]
        gate.set()

        assert beats == [b": keep-alive\n\n"] * 2


@pytest.mark.parametrize("path", ["/invocations", "/v1/made/up"])
async def test_what_a_drafting_engine_refuses_keeps_off_it_on_any_path(path: str) -> None:
    """SPEC-03: a chat may come by a path that is only passed on, such as SageMaker's."""
    async with Stub(GOOD) as plain, Stub(GOOD) as mtp:
        policy = two_pools(plain.url, mtp.url).replace("pools: [plain, mtp]", "pools: [mtp, plain]")
        async with gateway(policy) as running:
            assert (await ask(running.url, chat(), path)).header("x-gateway-pool") == "mtp"
            for more in ({"min_p": 0.1}, {"logit_bias": {"1": 1}}):
                assert (await ask(running.url, chat(**more), path)).header("x-gateway-pool") == "plain"


async def test_a_probe_takes_no_connection_from_requests() -> None:
    """POOL-01: with as many requests as `limits.connections` allows, a health probe that runs refuses none of them."""

    async def answer(call: Call) -> None:
        if call.request.target == b"/health":
            await call.hang()
        await completion(3, 5)(call)

    async with Stub(answer) as stub:
        policy = one_pool(stub.url, extra=", limits: {connections: 1}, health: {interval: 1s}")
        async with gateway(policy) as running:
            await stub.until(lambda: len(stub.requests) == 1)

            assert (await ask(running.url, chat())).status == 200
            assert [request.target for request in stub.requests[:2]] == [b"/health", b"/v1/chat/completions"]
