"""However an exchange ends, its place is given back, once, and the end is judged as it was."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.types import Result
from gateway.upstream.breaker import Gate
from tests.epp.dataplane import BUFFERED, CHAT, DUPLEX, STREAM, Exchange, Picker, one_endpoint, picker
from tests.epp.test_duplex import DONE, EVENT

ONE_PLACE = ", limits: {in_flight: 1, queue: 4, queue_wait: 30s}"


async def hang_up(one: Exchange, how: str) -> None:
    """The client has left: Envoy resets the stream, or closes its side of it."""
    if how == "reset":
        one.call.cancel()
    else:
        await one.call.done_writing()


async def ended(running: Picker, result: Result) -> None:
    await running.until(lambda: running.outcomes)
    assert [outcome.result for outcome in running.outcomes] == [result]
    await running.until(lambda: running.core.running == 0)
    assert running.in_flight == 0
    assert not running.core.pools.admission.waiting


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_stream_cut_amid_the_response_gives_its_place_back(how: str) -> None:
    """LEASE: a client that leaves in the middle of an answer is a closed client, and no fault of the endpoint."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.sent(STREAM)
        await one.response_head(kind="text/event-stream")
        await one.answer()
        await one.response_body(EVENT % b"null")
        await one.answer()
        await hang_up(one, how)
        await ended(running, Result.CLIENT_CLOSED)
        assert all(e.breaker.consecutive == 0 for pool in running.core.pools for e in pool.endpoints)


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_stream_cut_after_the_end_mark_is_a_whole_answer(how: str) -> None:
    """SDKs close at `[DONE]`."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.sent(STREAM)
        await one.response_head(kind="text/event-stream")
        await one.answer()
        for part in (EVENT % b'"stop"', DONE):
            await one.response_body(part)
            await one.answer()
        await hang_up(one, how)
        await ended(running, Result.OK)


@pytest.mark.parametrize("page", [b"<html>Please sign in</html>", b'{"error": {"message": "x", "code": 500}}'])
async def test_a_page_with_status_200_is_the_endpoints_fault(page: bytes) -> None:
    """RETRY-08: Envoy sends it on as it is; metrics and breaker know better."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.sent(CHAT)
        await one.response_head(kind="text/html")
        await one.response_body(page, ended=True)
        await ended(running, Result.BACKEND_ERROR)
        assert all(e.breaker.consecutive == 1 for pool in running.core.pools for e in pool.endpoints)


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("modes", [DUPLEX, BUFFERED], ids=["duplex", "buffered"])
async def test_a_stream_cut_before_the_response_gives_its_place_back(how: str, modes: object) -> None:
    """The engine has the request and the client has gone."""
    async with picker(one_endpoint()) as running, running.exchange(modes) as one:  # type: ignore[arg-type]
        await one.request_head()
        if modes is BUFFERED:
            await one.answer()
        await one.request_body(CHAT)
        await one.answer()
        await running.until(lambda: running.in_flight == 1)
        await hang_up(one, how)
        await ended(running, Result.CLIENT_CLOSED)


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_stream_cut_amid_the_request_ends(how: str) -> None:
    """No place was taken yet; nothing is left running."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.request_head()
        await one.request_body(CHAT[:10], ended=False)
        await running.until(lambda: running.core.running == 1)
        await hang_up(one, how)
        await ended(running, Result.CLIENT_CLOSED)


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_client_that_leaves_the_queue_takes_its_entry_along(how: str) -> None:
    """The one in front is not disturbed."""
    policy = one_endpoint(pool=ONE_PLACE)
    async with picker(policy) as running, running.exchange() as first, running.exchange() as second:
        await first.sent()
        await second.request_head()
        await second.request_body(CHAT)
        await running.until(lambda: running.core.pools["only"].waiting == 1)
        await hang_up(second, how)
        await running.until(lambda: running.outcomes)
        assert running.outcomes[0].result is Result.CLIENT_CLOSED
        assert (running.core.pools["only"].waiting, running.in_flight) == (0, 1)


async def test_a_message_that_makes_no_sense_ends_the_stream() -> None:
    """A mode that is not known here, or a header that is none: nobody waits for ever, and the place is given back."""
    async with picker(one_endpoint()) as running:
        async with running.exchange(None) as one:
            head = {"headers": {"headers": [{"key": ":path", "raw_value": b"/v1/models"}]}}
            message = ProcessingRequest(request_headers=head)
            message.protocol_config.request_body_mode = 77
            await one.call.write(message)
            with pytest.raises(grpc.aio.AioRpcError):
                await one.answer()
        async with running.exchange() as one:
            await one.sent(STREAM)
            assert running.in_flight == 1
            await one.response_head(headers={"\u4f60": "x"})
            await ended(running, Result.CLIENT_CLOSED)


async def test_the_last_parts_and_the_close_may_come_together() -> None:
    """Envoy closes its side as soon as it has said all; what it said before is still relayed."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.sent(STREAM)
        await one.response_head(kind="text/event-stream")
        for _ in range(40):
            await one.response_body(EVENT % b"null")
        await one.response_body(DONE, ended=True)
        await one.call.done_writing()
        await one.answer()
        found = b""
        while True:
            part = (await one.answer()).response_body.response.body_mutation.streamed_response
            found += part.body
            if part.end_of_stream:
                break
        assert found == EVENT % b"null" * 40 + DONE
        await ended(running, Result.OK)


async def test_a_stream_that_ends_without_its_mark_is_truncated() -> None:
    """CUT: half an answer must not look like a whole one, so it ends with an error event."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.sent(STREAM)
        found = await one.streamed(EVENT % b"null")
        assert b"upstream_error" in found
        await ended(running, Result.TRUNCATED)


async def test_an_endpoint_that_refuses_rests() -> None:
    """503 with `Retry-After` from an engine: no new request goes there for so long."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.sent()
        await one.response_head(503, headers={"retry-after": "5"})
        await one.response_body(b'{"error":{"message":"full","code":503}}', ended=True)
        await one.answer()
        await ended(running, Result.BACKEND_ERROR)
        (endpoint,) = running.core.pools["only"].endpoints
        assert not endpoint.available()


async def test_errors_in_streams_that_are_the_clients_do_not_shut_an_endpoint() -> None:
    """A 200 stream that begins with a 400 is the request's fault, however often."""
    event = b'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}\n\n'
    async with picker(one_endpoint()) as running:
        for _ in range(8):
            async with running.exchange() as one:
                await one.sent(STREAM)
                await one.streamed(event, DONE)
        await running.until(lambda: len(running.outcomes) == 8)
        assert running.core.pools["only"].endpoints[0].breaker.gate is Gate.OPEN


async def test_failures_shut_an_endpoint() -> None:
    """Envoy's own 503 for a back end that is not there counts like one of the back end."""
    async with picker(one_endpoint()) as running:
        for _ in range(8):
            async with running.exchange() as one:
                await one.request_head()
                await one.request_body(CHAT)
                if (await one.answer()).WhichOneof("response") == "immediate_response":
                    break
                await one.answer()
                await one.response_head(503, "text/plain")
                await one.response_body(b"upstream connect error", ended=True)
                await one.answer()
        assert running.core.pools["only"].endpoints[0].breaker.gate is not Gate.OPEN


async def test_prompts_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Neither what passes nor what is refused leaves its text in a log, at the most talkative level."""
    caplog.set_level(logging.DEBUG)
    async with picker(one_endpoint()) as running:
        async with running.exchange() as one:
            await one.sent(CHAT.replace(b"hello there", b"xyzzy"))
            await one.response_head(ended=True)
            await one.answer()
        async with running.exchange() as one:
            await one.request_head()
            await one.request_body(b'{"model":"m","messages":"xyzzy"')
            await one.answer()
        await running.until(lambda: len(running.outcomes) == 2)
    assert caplog.records
    assert "xyzzy" not in caplog.text


async def test_health_is_told_by_service_and_turns_when_draining() -> None:
    """Liveness stays, readiness and the service itself go, so that the data plane takes another replica."""
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    services = ["", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"]
    async with picker(one_endpoint()) as running:
        stub = health_pb2_grpc.HealthStub(running.channel)

        async def said(service: str) -> int:
            return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)

        async def until(service: str, status: int) -> None:
            async with asyncio.timeout(60):
                while await said(service) != status:
                    await asyncio.sleep(0.01)

        for service in ("liveness", *services):
            await until(service, serving)
        running.core.draining = True
        for service in services:
            await until(service, not_serving)
        assert await said("liveness") == serving
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await said("nothing")
