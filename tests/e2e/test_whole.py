"""Answers that come in one piece, through a real gateway."""

from __future__ import annotations

import asyncio

from tests.answers import hang, reply
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat
from tests.stub import Call, Stub

OK = reply({"id": "c", "model": "m", "choices": []})


async def test_a_whole_answer_has_the_time_of_its_tokens_before_its_first_byte() -> None:
    """TIMEOUT-02: an engine sends nothing of it before the last token; a stream has the first byte's limit alone."""
    done = asyncio.Event()

    async def generating(call: Call) -> None:
        if b'"stream": true' in call.request.body:
            return await hang(call)
        await done.wait()
        await OK(call)

    async with (
        Stub(generating) as stub,
        gateway(one_pool(stub.url, extra=", timeouts: {first_byte: 50ms}")) as running,
    ):
        whole = asyncio.create_task(ask(running.url, chat(max_tokens=2000)))
        await stub.until(lambda: len(stub.requests) == 1)
        late = await ask(running.url, chat(max_tokens=2000, stream=True))
        done.set()

        assert (late.status, late.error["code"]) == (504, "upstream_timeout")
        assert (await whole).status == 200
        assert len(stub.requests) == 2
