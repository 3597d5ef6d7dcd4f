"""What requests leave behind: nothing that only a garbage collection would find."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.answers import close, cut_stream, hang, reply, stream
from tests.e2e.events import DONE, delta
from tests.gateways import Running, gateway, one_pool
from tests.ports import free_port
from tests.raw_client import ask, chat, connected
from tests.stub import Answer, Stub

WHOLE = reply({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]})
BREAKER_OFF = ", retry: {attempts: 1}, breaker: {failures: 0, success_rate: 0, stall: off}"
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


@contextmanager
def cycles() -> Iterator[list[str]]:
    """The classes of the gateway's own objects that the block leaves in cycles, at its end."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("gateway.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def at_rest(running: Running) -> None:
    await running.until(lambda: not running.core.running and not running.in_flight)
    running.core.afterwards.flush()
    # A connection that the client has closed is told so at the loop's next turns.
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("answer", "more", "status"),
    [
        (WHOLE, {}, 200),
        (stream(delta("x"), DONE), {"stream": True}, 200),
        (cut_stream(delta("x")), {"stream": True}, 200),
        (reply({"error": {"message": "no"}}, 400), {}, 400),
        (reply({}, 503), {}, 503),
        (close, {}, 502),
        (hang, {}, 504),
    ],
    ids=["whole", "stream", "cut", "refused", "busy", "lost", "late"],
)
async def test_a_request_leaves_no_cycle(answer: Answer, more: dict[str, object], status: int) -> None:
    """However it ends, request, response and connection go as soon as they are let go."""
    async with Stub(answer) as stub:
        extra = BREAKER_OFF + (", timeouts: {first_byte: 50ms}" if status == 504 else "")
        async with gateway(one_pool(stub.url, extra=extra)) as running:
            assert (await ask(running.url, chat(**more))).status == status
            await at_rest(running)
            with cycles() as found:
                for _ in range(3):
                    await ask(running.url, chat(**more))
                await at_rest(running)

    assert found == []


@pytest.mark.parametrize("body", [b"{", b'{"model": "none"}', b"[1]"])
async def test_a_request_that_is_turned_away_leaves_no_cycle(body: bytes) -> None:
    """The parser's error would otherwise hold the whole body."""
    async with Stub(WHOLE) as stub, gateway(one_pool(stub.url)) as running:
        await ask(running.url, body)
        await at_rest(running)
        with cycles() as found:
            assert (await ask(running.url, body)).status in (400, 404)
            await at_rest(running)

    assert found == []


async def test_a_failover_leaves_no_cycle() -> None:
    """The first attempt's error is let go although nobody hears of it."""
    url = f"http://127.0.0.1:{free_port()}"
    extra = ", breaker: {failures: 0, success_rate: 0}"
    async with Stub(WHOLE) as good, gateway(one_pool(good.url, url, extra=extra)) as running:
        await ask(running.url, chat())
        await at_rest(running)
        with cycles() as found:
            for _ in range(12):
                assert (await ask(running.url, chat())).status == 200
            await at_rest(running)
            assert running.counted("gateway_retries_total") > 0

    assert found == []


async def test_a_client_that_leaves_leaves_no_cycle() -> None:
    """In the middle of a request, and by a reset, which ends no timer of the server by itself."""
    async with Stub(hang) as stub, gateway(one_pool(stub.url)) as running:
        await ask(running.url, b"{")
        with cycles() as found:
            for _ in range(3):
                async with connected(running.url) as client:
                    await client.send("/v1/chat/completions", BODY)
                    await running.until(lambda: running.in_flight > 0)
                    client.reset()
                    await at_rest(running)

    assert found == []
