"""The HTTP protocol's own differences from uvicorn's, on raw sockets."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.server import LONGEST_HEAD
from tests.answers import reply, stream
from tests.gateways import gateway, one_pool
from tests.raw_client import RawClient, chat, connected
from tests.stub import Stub

OK = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
JSON = b"content-type: application/json\r\n"
DONE = b"data: [DONE]\n\n"
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"


def request(body: bytes, headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    first = b"POST /v1/chat/completions HTTP/" + version + b"\r\nhost: g\r\n" + headers + JSON
    return first + b"content-length: %d\r\n\r\n" % len(body) + body


async def sent(client: RawClient, raw: bytes) -> None:
    client.writer.write(raw)
    await client.writer.drain()


async def everything(client: RawClient) -> bytes:
    return await asyncio.wait_for(client.reader.read(-1), 60)


@pytest.mark.parametrize("split", [False, True])
async def test_an_offer_of_another_protocol_changes_nothing(split: bool) -> None:
    """Java's HTTP client offers h2c with every request: the body arrives, and so do requests after it."""
    body = json.dumps(chat()).encode()
    raw = request(body, H2C)
    async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        for _ in range(2):
            await sent(client, raw[: -len(body)] if split else raw)
            if split:
                await asyncio.sleep(0.01)
                await sent(client, body)
            assert (await asyncio.wait_for(client.answer(), 60)).status == 200
        await sent(client, request(body) + raw + request(body))
        assert [(await asyncio.wait_for(client.answer(), 60)).status for _ in range(3)] == [200] * 3

        assert [seen.body for seen in stub.requests] == [body] * 5
        assert not {b"upgrade", b"http2-settings", b"connection"} & stub.requests[0].names()


WEBSOCKET = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: c2Ft\r\n"


async def test_a_websocket_is_an_offer_as_well() -> None:
    """Nothing here speaks it: a chat is served as ever, and what a back end has at such a path is the answer."""
    body = json.dumps(chat()).encode()
    opening = b"GET /v1/realtime?model=m HTTP/1.1\r\nhost: x\r\n" + WEBSOCKET + b"\r\n"
    async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await sent(client, request(body, WEBSOCKET) + request(body))
        assert [(await asyncio.wait_for(client.answer(), 60)).status for _ in range(2)] == [200] * 2
        stub.answer = reply({"detail": "Not Found"}, 404)
        await sent(client, opening)
        told = await asyncio.wait_for(client.answer(), 60)

        assert (told.status, told.json()) == (404, {"detail": "Not Found"})
        assert [seen.body for seen in stub.requests[:2]] == [body] * 2
        assert all(not {b"upgrade", b"connection"} & seen.names() for seen in stub.requests)


async def test_a_tunnel_is_refused() -> None:
    """The gateway is no forward proxy: CONNECT opens nothing."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running, connected(running.url) as client:
        await sent(client, b"CONNECT example.test:443 HTTP/1.1\r\nhost: example.test:443\r\n\r\n")

        assert (await asyncio.wait_for(client.head(), 60))[0] in (400, 404, 405)


async def test_http_1_0_gets_a_stream_without_chunks() -> None:
    """An old proxy in front cannot read them: the body ends with the connection."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    async with (
        Stub(stream(event, DONE)) as stub,
        gateway(one_pool(stub.url)) as running,
        connected(running.url) as client,
    ):
        await sent(client, request(json.dumps(chat(stream=True)).encode(), version=b"1.0"))
        _, headers = await client.head()

        assert "transfer-encoding" not in dict(headers)
        assert await everything(client) == event + DONE


async def test_http_1_0_gets_a_whole_answer_with_its_length() -> None:
    """And the connection ends after it, as the old version has it."""
    async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await sent(client, request(json.dumps(chat()).encode(), version=b"1.0"))
        got = await asyncio.wait_for(client.answer(), 60)

        assert got.json() == OK
        assert await everything(client) == b""


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n"])
async def test_what_is_no_http_is_refused_in_the_common_form(raw: bytes) -> None:
    """ERROR-01: also where no request came to be."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running, connected(running.url) as client:
        await sent(client, raw)
        got = await asyncio.wait_for(client.answer(), 60)

        assert got.status == 400
        assert got.header("content-type") == "application/json"
        assert got.error["type"] == "invalid_request_error"
        assert await everything(client) == b""


async def test_a_head_without_end_is_refused() -> None:
    """One connection cannot fill the memory."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running, connected(running.url) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\nx: ")
        client.writer.write(b"a" * 8 * LONGEST_HEAD)
        status, _ = await asyncio.wait_for(client.head(), 60)

        assert status == 431


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: "


async def test_a_body_that_is_no_body_is_the_clients_error() -> None:
    """BODY-06: who sends nonsense amid a body gets a 400 and is counted by it, not as a client that has left."""
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n"
    async with gateway(one_pool("http://127.0.0.1:1")) as running, connected(running.url) as client:
        await sent(client, raw[:-4])
        await running.until(lambda: running.core.running == 1)
        await sent(client, raw[-4:])

        assert (await everything(client)).startswith(b"HTTP/1.1 400 ")
        await running.until(lambda: running.counted("gateway_requests_total") == 1)
        assert running.counted("gateway_requests_total", outcome="client_error") == 1


@pytest.mark.parametrize("raw", [CHUNKED + b"gzip\r\n\r\n{}", CHUNKED + b"chunked\r\n\r\n2\r\n{}\r\nzz\r\n"])
async def test_a_body_that_breaks_the_protocol_is_refused_in_the_common_form(raw: bytes) -> None:
    """A client learns what was wrong with a request whose head was well, and another request's answer stays whole."""
    answer = stream(b"data: 1\n\n", DONE, gate=(gate := asyncio.Event()))
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running:
        async with connected(running.url) as client:
            await sent(client, raw)
            told = await everything(client)
            assert told.startswith(b"HTTP/1.1 400 ")
            assert b'"bad_request"' in told
        async with connected(running.url) as client:
            await sent(client, request(json.dumps(chat(stream=True)).encode()))
            await stub.until(lambda: len(stub.requests) == 1)
            await sent(client, raw)
            gate.set()
            assert b"HTTP/1.1 400 " not in await everything(client)
        await running.until(lambda: running.in_flight == 0)
