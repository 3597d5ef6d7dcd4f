"""Clients that leave: the back end hears of it, and nothing stays counted."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from gateway.api.usage import SILENT_STREAMS
from tests.answers import close, cut_stream, hang, reply, stream
from tests.e2e.events import DONE, delta, usage
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat, connected
from tests.stub import Call, Stub

STREAM = json.dumps(chat(stream=True)).encode()
WHOLE = json.dumps(chat()).encode()
PATH = "/v1/chat/completions"


async def headers_only(call: Call) -> None:
    """vLLM's way: status and headers at once, the first token much later."""
    await call.head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
    await call.hang()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_leaving_amid_a_stream_closes_the_upstream_connection(how: str) -> None:
    """CANCEL-01: after three chunks the client goes; the back end's connection is closed."""
    endless = stream(*(delta(str(n)) for n in range(3)), finish=False)
    async with Stub(endless) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await client.send(PATH, STREAM)
        await client.head()
        await client.chunk()
        getattr(client, how)()

        await asyncio.wait_for(stub.connections[0].closed.wait(), 60)
        assert stub.connections[0].by_client
        await running.until(lambda: running.counted("gateway_requests_total", outcome="client_closed") == 1)
        assert running.in_flight == 0


@pytest.mark.parametrize("body", [WHOLE, STREAM])
@pytest.mark.parametrize("answer", [hang, headers_only])
async def test_leaving_before_the_first_byte_closes_it_too(body: bytes, answer: object) -> None:
    """CANCEL-02: a request that is not streamed, or whose first token has not come, is cancelled as well."""
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:  # type: ignore[arg-type]
        await client.send(PATH, body)
        await stub.until(lambda: bool(stub.requests))
        assert running.in_flight == 1
        client.close()

        await asyncio.wait_for(stub.connections[0].closed.wait(), 60)
        await running.until(lambda: running.counted("gateway_requests_total", outcome="client_closed") == 1)
        assert running.in_flight == 0


async def test_no_slot_is_lost_after_many_cut_streams() -> None:
    """CANCEL-03: twenty streams, each left after one chunk; the gauge is 0."""
    async with Stub(stream(delta("a"), finish=False)) as stub, gateway(one_pool(stub.url)) as running:

        async def leave() -> None:
            async with connected(running.url) as client:
                await client.send(PATH, STREAM)
                await client.head()
                await client.chunk()

        await asyncio.gather(*(leave() for _ in range(20)))
        await running.until(lambda: running.counted("gateway_requests_total", outcome="client_closed") == 20)

        assert running.in_flight == 0
        await stub.until(lambda: stub.open == 0)


async def test_no_slot_is_lost_after_timeouts_and_failures() -> None:
    """CANCEL-04: five requests that time out and five that the back end drops; the gauge is 0."""
    policy = one_pool("{url}", extra=", timeouts: {first_byte: 50ms}, retry: {attempts: 1}")
    async with Stub(hang) as stub, gateway(policy.replace("{url}", stub.url)) as running:
        stub.script.extend([hang] * 5 + [close] * 5)
        statuses = [(await ask(running.url, chat())).status for _ in range(10)]

        assert statuses == [504] * 5 + [502] * 5
        assert running.in_flight == 0
        assert running.counted("gateway_requests_total", outcome="timeout") == 5


async def test_a_storm_of_every_kind_of_end_leaves_nothing_behind() -> None:
    """CANCEL-05: hundreds of requests, most ending badly; every count returns to zero and no task is left."""
    kinds = [
        reply({"choices": []}),
        stream(delta("a", "stop"), DONE),
        cut_stream(delta("a")),
        cut_stream(delta("a"), with_reset=True),
        reply({"error": {"message": "no"}}, 500),
        close,
        stream(delta("a"), finish=False),
    ]
    async with Stub() as stub, gateway(one_pool(stub.url, extra=", timeouts: {idle: 300ms}")) as running:
        stub.script.extend(kinds * 40)
        before = len(asyncio.all_tasks())

        async def one(number: int) -> None:
            async with connected(running.url) as client:
                await client.send(PATH, STREAM if number % 2 else WHOLE)
                if number % 3:
                    # Every third leaves at once, the others after as much as comes.
                    with suppress(asyncio.IncompleteReadError):
                        await client.reader.readexactly(2000)

        async def limited(number: int) -> None:
            async with slots:
                with suppress(TimeoutError):
                    await asyncio.wait_for(one(number), 1)

        slots = asyncio.Semaphore(20)
        await asyncio.gather(*(limited(n) for n in range(100)))
        await running.until(lambda: running.in_flight == 0)

        pools = list(running.core.pools)
        assert all(e.connector.statistics().active == 0 for pool in pools for e in pool.endpoints)
        await running.until(lambda: len(asyncio.all_tasks()) <= before + len(stub.connections) * 4)


async def test_a_client_that_half_closes_after_its_request_counts_as_gone() -> None:
    """CANCEL-07: one listener sees the end of the client's side on a real socket."""
    async with Stub(hang) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await client.send(PATH, WHOLE)
        await stub.until(lambda: bool(stub.requests))
        client.writer.write_eof()

        await asyncio.wait_for(stub.connections[0].closed.wait(), 60)
        await running.until(lambda: running.in_flight == 0)


async def test_a_client_that_leaves_within_its_own_body_is_no_failure() -> None:
    """CANCEL-08: the frame has no middleware of the kind that swallows a disconnect; half a body is no request."""
    async with Stub() as stub, gateway(one_pool(stub.url)) as running:
        async with connected(running.url) as client:
            client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{")
            await client.writer.drain()
        await running.until(lambda: running.counted("gateway_requests_total", outcome="client_closed") == 1)

        assert stub.requests == []


async def test_the_next_request_on_the_connection_is_served_after_a_finished_one() -> None:
    """The watch for a leaving client does not swallow the next request of a kept connection."""
    ok = reply({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    async with Stub(ok) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        for _ in range(8):
            await client.send(PATH, WHOLE)
            assert (await client.answer()).status == 200

        assert len(stub.requests) == 8
        assert len(stub.connections) == 1


async def test_a_client_that_closes_at_the_end_mark_has_had_a_whole_answer() -> None:
    """SDKs close the connection at `[DONE]`; that is no leaving, and its tokens are counted."""
    held = stream(delta("a", "stop"), usage(9, 7), DONE, finish=False)
    async with Stub(held) as stub, gateway(one_pool(stub.url)) as running:
        async with connected(running.url) as client:
            await client.send(PATH, STREAM)
            await client.head()
            got = b""
            while DONE not in got:
                got += await client.chunk()
        await running.until(lambda: running.counted("gateway_requests_total", outcome="ok") == 1)

        assert running.counted("gateway_output_tokens_total", pool="plain") == 7
        assert running.in_flight == 0
        await stub.until(lambda: stub.open == 0)


async def test_streams_closed_at_their_end_mark_show_a_silent_pool() -> None:
    """Clients that never wait for the body's end teach all the same that a pool tells no usage unasked."""
    held = stream(delta("a", "stop"), DONE, finish=False)
    async with Stub(held) as stub, gateway(one_pool(stub.url)) as running:
        for number in range(SILENT_STREAMS):
            async with connected(running.url) as client:
                await client.send(PATH, STREAM)
                await client.head()
                got = b""
                while DONE not in got:
                    got += await client.chunk()
            await running.until(
                lambda number=number: running.counted("gateway_requests_total", outcome="ok") == number + 1  # type: ignore[misc]
            )

        assert running.core.usage_habits.asks("plain")
