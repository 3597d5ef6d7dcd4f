"""HTTP itself, on raw sockets: uploads that stream, packed bodies, CORS, Expect, pipelining, keep-alive."""

from __future__ import annotations

import asyncio
import gzip
import json

import httpx
import pytest

from gateway.api.form import HELD_IN_MEMORY
from tests.answers import reply
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat, connected, get
from tests.stub import Call, Stub

OK = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
FORM = (("content-type", "multipart/form-data; boundary=b"),)
MODEL = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
END = b"\r\n--b--\r\n"
PATH = "/v1/audio/transcriptions"


def head(framing: str) -> bytes:
    return f"POST {PATH} HTTP/1.1\r\nhost: g\r\n{framing}\r\ncontent-type: {FORM[0][1]}\r\n\r\n".encode()


class TestUploads:
    async def test_a_form_with_the_model_in_front_streams_through(self) -> None:
        """The back end gets the beginning while the client still holds the rest back."""
        async with Stub(reply({"text": "hi"}), read_body=False) as stub:
            came = asyncio.Event()

            async def answer(call: Call) -> None:
                first = await call.connection._take(lambda buffer: len(buffer) or -1)
                assert first is not None
                came.set()
                while not call.request.body.endswith(b"0\r\n\r\n"):
                    call.request.body += await call.connection._take(lambda buffer: len(buffer) or -1) or b""
                await reply({"text": "hi"})(call)

            stub.answer = answer
            async with gateway(one_pool(stub.url)) as running, connected(running.url) as client:
                form = MODEL + FILE + bytes(1000) + END
                client.writer.write(head(f"content-length: {len(form)}") + form[:200])
                await asyncio.wait_for(came.wait(), 60)
                client.writer.write(form[200:])
                got = await asyncio.wait_for(client.answer(), 60)

                assert got.json() == {"text": "hi"}

    @pytest.mark.parametrize("size", [100, 3 * HELD_IN_MEMORY])
    async def test_the_model_may_come_after_the_file(self, size: int) -> None:
        """As the JavaScript SDK sends it; the back end gets every byte, and its served name."""
        form = FILE + bytes(size) + b"\r\n" + MODEL.replace(b"m\r\n", b"alias\r\n") + b"--b--\r\n"
        policy = one_pool("{url}", extra=", model: served").replace(
            "{pools: [plain]}", "{pools: [plain], aliases: [alias]}"
        )
        async with Stub(reply({"text": "hi"})) as stub, gateway(policy.replace("{url}", stub.url)) as running:
            got = await ask(running.url, form, PATH, headers=FORM)

            assert got.status == 200
            assert stub.requests[0].body == form.replace(b"\r\n\r\nalias\r\n", b"\r\n\r\nserved\r\n")

    async def test_the_size_limit_holds(self) -> None:
        """BODY-01: by the declared length at once, and by count where none is declared."""
        policy = one_pool("{url}") + "server: {max_body_bytes: 100000}\n"
        form = MODEL + FILE + bytes(200_000) + END
        async with Stub(reply({})) as stub, gateway(policy.replace("{url}", stub.url)) as running:
            declared = await ask(running.url, form, PATH, headers=FORM)
            async with connected(running.url) as client:
                client.writer.write(head("transfer-encoding: chunked") + b"%x\r\n%b\r\n" % (len(form), form))
                counted = await asyncio.wait_for(client.answer(), 60)

            assert (declared.status, counted.status) == (413, 413)
            await running.until(lambda: running.in_flight == 0)

    async def test_a_client_that_leaves_within_its_upload_ends_it(self) -> None:
        """CANCEL-08: the back end's connection is closed, and nothing is left in flight."""
        async with Stub(reply({})) as stub, gateway(one_pool(stub.url)) as running:
            async with connected(running.url) as client:
                client.writer.write(head("content-length: 9999") + MODEL + FILE)
                await running.until(lambda: running.in_flight == 1)
            await running.until(lambda: running.in_flight == 0)
            await running.until(lambda: running.counted("gateway_requests_total", outcome="client_closed") == 1)

    async def test_a_client_that_leaves_after_its_upload_is_noticed(self) -> None:
        """The watch for the client begins where the upload ends."""

        async def hold(call: Call) -> None:
            await call.hang()

        async with Stub(hold) as stub, gateway(one_pool(stub.url)) as running:
            async with connected(running.url) as client:
                await client.send(PATH, MODEL + FILE + END, headers=FORM)
                await stub.until(lambda: bool(stub.requests))
            await asyncio.wait_for(stub.connections[0].closed.wait(), 60)
            await running.until(lambda: running.in_flight == 0)

    async def test_an_upload_goes_to_another_endpoint_where_nothing_was_sent(self) -> None:
        """A refused connection has taken nothing of the stream."""
        async with (
            Stub(reply({"text": "hi"})) as stub,
            gateway(one_pool("http://127.0.0.1:1", stub.url)) as running,
        ):
            for _ in range(6):
                assert (await ask(running.url, MODEL + FILE + END, PATH, headers=FORM)).status == 200

    async def test_an_upload_that_has_gone_too_far_is_not_retried(self) -> None:
        """RETRY-04: the back end's own answer comes back, and no other place is taken for what cannot be sent again."""
        busy = reply({"error": {"message": "full", "code": 503}}, 503, [("retry-after", "7")])
        form = MODEL + FILE + bytes(3 * HELD_IN_MEMORY) + END
        async with Stub(busy) as one, Stub(busy) as other, gateway(one_pool(one.url, other.url)) as running:
            got = await ask(running.url, form, PATH, headers=FORM)
            await running.until(lambda: running.counted("gateway_requests_total", outcome="backend_error") == 1)

            assert (got.status, got.header("retry-after")) == (503, "7")
            assert len(one.requests) + len(other.requests) == 1
            assert running.counted("gateway_retries_total") == 0
            assert sum(endpoint.started for endpoint in running.core.pools["plain"].endpoints) == 1

    async def test_a_small_chunked_upload_can_be_sent_again(self) -> None:
        """RETRY-07: all of it has been kept, though no length told so."""
        form = MODEL + FILE + END
        busy, good = reply({}, 503), reply({"text": "hi"})
        async with Stub(busy) as one, Stub(good) as other, gateway(one_pool(one.url, other.url)) as running:
            for _ in range(4):
                async with connected(running.url) as client:
                    client.writer.write(head("transfer-encoding: chunked"))
                    client.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(form), form))
                    assert (await asyncio.wait_for(client.answer(), 60)).json() == {"text": "hi"}
            assert len(one.requests) > 0


class TestPackedBodies:
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
    async def test_a_packed_body_goes_on_unpacked(self, path: str) -> None:
        """HEADER-01: vLLM does not unpack, so the back end gets plain bytes without the label."""
        raw = json.dumps(chat("あ" * 5000)).encode()
        async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url)) as running:
            got = await ask(running.url, gzip.compress(raw), path, headers=(("content-encoding", "gzip"),))

            assert got.status == 200
            assert stub.requests[0].body == raw
            assert stub.requests[0].get(b"content-encoding") is None
            assert stub.requests[0].get(b"content-length") == str(len(raw)).encode()

    async def test_bombs_broken_and_unknown_packings_are_refused(self) -> None:
        """413, 400 and 415, and none of them reaches a back end."""
        policy = one_pool("{url}") + "server: {max_body_bytes: 100000}\n"
        async with Stub(reply(OK)) as stub, gateway(policy.replace("{url}", stub.url)) as running:
            for raw, coding, status in (
                (gzip.compress(bytes(50_000_000)), "gzip", 413),
                (b"{}", "gzip", 400),
                (b"{}", "br", 415),
            ):
                got = await ask(running.url, raw, headers=(("content-encoding", coding),))
                assert got.status == status
                assert got.error["message"]
            assert stub.requests == []


class TestCors:
    POLICY = 'server: {cors: ["https://app.example.com"]}\naccess: {keys: [{name: a, env: KEY}]}\n'
    ORIGIN = ("origin", "https://app.example.com")

    async def test_a_page_of_an_allowed_origin_may_call(self) -> None:
        """The preflight needs no key; answers and errors carry the origin, and the page may read our headers."""
        async with (
            Stub(reply(OK, headers=[("access-control-allow-origin", "*")])) as stub,
            gateway(one_pool(stub.url) + self.POLICY, {"KEY": "k" * 24}) as running,
        ):
            asked = (("access-control-request-method", "POST"), ("access-control-request-headers", "authorization"))
            before = await ask(running.url, b"", method="OPTIONS", headers=(self.ORIGIN, *asked))
            refused = await ask(running.url, chat(), headers=(self.ORIGIN,))
            got = await ask(running.url, chat(), headers=(self.ORIGIN, ("authorization", "Bearer " + "k" * 24)))
            other = await ask(running.url, chat(), headers=(("origin", "https://evil.example"),))

        assert (before.status, refused.status, got.status) == (204, 401, 200)
        assert before.header("access-control-allow-headers") == "authorization"
        for answer in (before, refused, got):
            values = [value for name, value in answer.headers if name == "access-control-allow-origin"]
            assert values == ["https://app.example.com"]
            assert answer.header("vary") == "origin"
        assert "x-request-id" in str(got.header("access-control-expose-headers"))
        assert other.header("access-control-allow-origin") is None

    async def test_it_is_off_by_default(self) -> None:
        """No policy, no header."""
        async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url)) as running:
            got = await ask(running.url, chat(), headers=(self.ORIGIN,))

            assert got.header("access-control-allow-origin") is None


class TestOptions:
    OPERATOR = "access: {keys: [{name: a, env: KEY}], operator_key: {env: KEY_2}}\n"

    async def test_every_path_says_what_it_takes(self) -> None:
        """`OPTIONS`, which needs no key, and a 405 list the same; the frame's paths answer like the routed ones."""
        env = {"KEY": "k" * 24, "KEY_2": "o" * 24}
        key = (("authorization", f"Bearer {env['KEY']}"),)
        async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url) + self.OPERATOR, env) as running:
            for path, methods in (
                ("/health", "GET, HEAD, OPTIONS"),
                ("/ready", "GET, HEAD, OPTIONS"),
                ("/metrics", "GET, HEAD, OPTIONS"),
                ("/v1/models", "GET, HEAD, OPTIONS"),
                ("/v1/models/m", "GET, HEAD, OPTIONS"),
                ("/gateway/pools", "GET, HEAD, OPTIONS"),
                ("/gateway/decisions", "GET, HEAD, OPTIONS"),
                ("/gateway/explain", "POST, OPTIONS"),
                ("/", "GET, HEAD, OPTIONS"),
                ("/v1/chat/completions", "POST, OPTIONS"),
            ):
                got = await ask(running.url, b"", path, method="OPTIONS")
                assert (path, got.status, got.header("allow"), got.body) == (path, 204, methods, b"")
                refused = await ask(running.url, b"{}", path, method="DELETE", headers=key)
                assert (path, refused.status, refused.header("allow")) == (path, 405, methods)
            nowhere = await ask(running.url, b"", "/nowhere", method="OPTIONS")

            assert nowhere.status == 404
            assert stub.requests == []

    async def test_head_is_answered_where_get_is(self) -> None:
        """Status and headers of the GET, no body; the connection goes on."""
        async with (
            Stub(reply(OK)) as stub,
            gateway(one_pool(stub.url)) as running,
            httpx.AsyncClient(base_url=running.url) as http,
        ):
            for path in ("/health", "/ready", "/metrics", "/v1/models", "/gateway/pools", "/gateway/policy"):
                head, whole = await http.head(path), await http.get(path)
                assert (path, head.status_code, head.content) == (path, whole.status_code, b"")
                assert head.headers["content-type"] == whole.headers["content-type"]

    async def test_a_preflight_of_a_page_is_still_one(self) -> None:
        """On the frame's paths too: the origin, the method that was asked for, no key."""
        policy = 'server: {cors: ["https://app.example.com"]}\naccess: {operator_key: {env: KEY}}\n'
        asked = (TestCors.ORIGIN, ("access-control-request-method", "GET"))
        async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url) + policy, {"KEY": "k" * 24}) as running:
            for path in ("/v1/models", "/health", "/gateway/pools"):
                got = await ask(running.url, b"", path, method="OPTIONS", headers=asked)
                assert (got.status, got.header("access-control-allow-methods")) == (204, "GET")
                assert got.header("access-control-allow-origin") == "https://app.example.com"
            plain = await ask(running.url, b"", "/health", method="OPTIONS", headers=(TestCors.ORIGIN,))

        assert plain.header("allow") == "GET, HEAD, OPTIONS"
        assert plain.header("access-control-allow-origin") == "https://app.example.com"


async def test_expect_100_continue_is_answered_before_the_body() -> None:
    """A client that waits for the word gets it; one whose body is too large gets 413 in its place."""
    body = json.dumps(chat()).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-type: application/json\r\n"
    async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url)) as running:
        async with connected(running.url) as client:
            client.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode())
            assert (await asyncio.wait_for(client.head(), 60))[0] == 100
            client.writer.write(body)
            assert (await asyncio.wait_for(client.answer(), 60)).status == 200
        async with connected(running.url) as client:
            client.writer.write(f"{head}content-length: 99999999999\r\n\r\n".encode())
            assert (await asyncio.wait_for(client.answer(), 60)).status == 413

        assert stub.requests[0].get(b"expect") is None


async def test_pipelined_requests_are_answered_in_order() -> None:
    """HTTP/1.1 allows the next request before the answer; none is lost, mixed up or answered twice."""

    async def echo(call: Call) -> None:
        await reply({"choices": [], "said": json.loads(call.request.body)["n"]})(call)

    async with Stub(echo) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        for number in range(6):
            path = "/v1/chat/completions" if number % 3 else "/v1/embeddings"
            await client.send(
                path, json.dumps({"model": "m", "n": number}).encode(), headers=(("x-request-id", f"r{number}"),)
            )
        for number in range(6):
            got = await asyncio.wait_for(client.answer(), 60)
            assert got.json()["said"] == number
            assert got.header("x-request-id") == f"r{number}"


async def test_a_connection_is_kept_after_errors_of_every_kind() -> None:
    """Keep-alive holds through 400, 404 and 405; the next request on it is served."""
    async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        for body, path, method, status in (
            (b"{", "/v1/chat/completions", "POST", 400),
            (b'{"model":"nope"}', "/v1/chat/completions", "POST", 404),
            (b"", "/v1/chat/completions", "GET", 405),
            (b"", "/nowhere", "GET", 404),
            (b'{"model":"m"}', "/v1/chat/completions", "POST", 200),
        ):
            await client.send(path, body, method=method)
            assert (await asyncio.wait_for(client.answer(), 60)).status == status


async def test_request_ids_are_kept_made_and_returned() -> None:
    """HEADER-07, HEADER-08: the client's own id, or a made one, on every path and on errors."""
    async with Stub(reply(OK)) as stub, gateway(one_pool(stub.url)) as running:
        given = await ask(running.url, chat(), headers=(("x-request-id", "abc"),))
        made = await ask(running.url, chat(), "/v1/embeddings")
        error = await ask(running.url, b"{", headers=(("x-request-id", "abc"),))
        stored = await get(running.url, "/v1/responses/x")

        assert (given.header("x-request-id"), error.header("x-request-id")) == ("abc", "abc")
        assert made.header("x-request-id") == (stub.requests[1].get(b"x-request-id") or b"").decode() != ""
        assert stored.header("x-request-id")
