"""Answers that come in one piece, through a real gateway."""

from __future__ import annotations

import asyncio
import json
from itertools import count

from gateway.upstream.proxy import GATHER_BYTES
from tests.answers import hang, reply, text
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat, connected
from tests.stub import Call, Stub

OK = reply({"id": "c", "model": "m", "choices": []})


async def test_a_whole_answer_has_the_time_of_its_tokens_before_its_first_byte() -> None:
    """TIMEOUT-02: an engine at work sends nothing of it before the last token; a stream has the first byte's limit."""
    done = asyncio.Event()
    made = count()

    async def generating(call: Call) -> None:
        if call.request.target == b"/metrics":
            return await text(b'vllm:generation_tokens_total{model_name="m"} %d\n' % next(made))(call)
        if call.request.method == b"GET":
            return await text(b"", 404)(call)
        if b'"stream": true' in call.request.body:
            return await hang(call)
        await done.wait()
        await OK(call)

    # The limit is well above the interval: a page that is late does not make the engine one that hangs.
    extra = ", timeouts: {first_byte: 1s}, telemetry: {interval: 100ms}"
    async with Stub(generating) as stub, gateway(one_pool(stub.url, extra=extra)) as running:
        endpoint = running.core.pools["plain"].endpoints[0]
        await running.until(lambda: endpoint.generated_at > 0)
        whole = asyncio.create_task(ask(running.url, chat(max_tokens=2000)))
        await running.until(lambda: endpoint.in_flight == 1)
        late = await ask(running.url, chat(max_tokens=2000, stream=True))
        done.set()

        assert (late.status, late.error["code"]) == (504, "upstream_timeout")
        assert (await whole).status == 200


async def test_a_back_end_that_tells_nothing_has_the_first_bytes_limit_alone() -> None:
    """TIMEOUT-02: no page says that it is at work, so a hung one is found as soon as the policy says."""
    async with (
        Stub(hang) as stub,
        gateway(one_pool(stub.url, extra=", timeouts: {first_byte: 50ms}")) as running,
    ):
        late = await ask(running.url, chat())

        assert (late.status, late.error["code"]) == (504, "upstream_timeout")


async def test_a_large_answer_that_is_cut_is_truncated() -> None:
    """SSE-06: once its beginning has gone out, a whole answer that breaks off is cut for the client and counted so."""

    async def cut(call: Call) -> None:
        await call.head(200, [("content-type", "application/json"), ("content-length", str(3 * GATHER_BYTES))])
        await call.send(b'{"x": "' + bytes(2 * GATHER_BYTES))
        call.connection.close()

    async with Stub(cut) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await client.send("/v1/chat/completions", json.dumps(chat()).encode())
        status, _ = await asyncio.wait_for(client.head(), 60)
        rest = await asyncio.wait_for(client.reader.read(), 60)
        await running.until(lambda: running.counted("gateway_requests_total") == 1)

        assert status == 200
        assert GATHER_BYTES < len(rest) < 3 * GATHER_BYTES
        assert running.counted("gateway_requests_total", outcome="truncated") == 1
        assert running.core.pools["plain"].endpoints[0].breaker.consecutive == 1
