"""Bodies, headers and errors through a real gateway: what passes unchanged, and what is refused in which shape."""

from __future__ import annotations

import gzip
import json

import openai
import pytest

from tests.answers import close, hang, reply, text
from tests.gateways import gateway, one_pool, two_pools
from tests.raw_client import ask, chat, get
from tests.stub import Call, Stub

OK = reply({"id": "c", "model": "m", "choices": []})


async def test_a_body_of_ten_megabytes_passes_and_a_larger_one_is_refused() -> None:
    """BODY-01: an image message of 10 MB works; over the limit it is 413 with an error object."""
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000_000}}]
    async with Stub(OK) as stub, gateway(one_pool(stub.url) + "server: {max_body_bytes: 11000000}\n") as running:
        good = await ask(running.url, chat(image))
        large = await ask(running.url, chat("x" * 11_000_000))

        assert good.status == 200
        assert stub.requests[0].json() == chat(image)
        assert (large.status, large.error["code"]) == (413, "body_too_large")
        assert len(stub.requests) == 1


async def test_list_content_decides_as_the_plain_string() -> None:
    """BODY-02: content in parts gives the same task and estimate."""
    async with Stub(OK) as stub, gateway(two_pools(stub.url, stub.url)) as running:
        prompt = "Write an essay of 800 words about tides."
        plain = await ask(running.url, chat(prompt))
        parts = await ask(running.url, chat([{"type": "text", "text": prompt}]))

        for name in ("x-gateway-pool", "x-gateway-task", "x-gateway-predicted-output-tokens"):
            assert plain.header(name) == parts.header(name) is not None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m", "messages":[{"role":"assistant","content":null,"tool_calls":[]},{"role":"user","content":[]}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}]}',
        b'{ "zeta" : 1,\n\t"model" : "m", "messages": [], "alpha": {"b": 1, "a": [1.0, 1e5, NaN]} }',
        b'{"model":"m","messages":[],"tools":[],"max_tokens":"100","stream_options":null}',
        b'{"model":"m","prompt":[1,2,3]}',
    ],
)
async def test_the_bytes_sent_are_the_clients_own(raw: bytes) -> None:
    """BODY-03, BODY-04, PARAM-03, PARAM-05, PARAM-06, PARAM-08: odd but understood bodies go on byte for byte."""
    async with Stub(OK) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, raw, "/v1/completions" if b"prompt" in raw else "/v1/chat/completions")

        assert got.status == 200
        assert stub.requests[0].body == raw


async def test_a_prompt_beyond_the_context_goes_on_without_a_limit_of_ours() -> None:
    """PARAM-01, PARAM-02, PARAM-09, ERROR-04: nothing is added or clamped, and the back end's refusal is the answer."""
    refusal = {"error": {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    body = chat("word " * 5000)
    async with Stub(reply(refusal, 400)) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, body)

        assert (got.status, got.json()) == (400, refusal)
        assert [request.json() for request in stub.requests] == [body]


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"null", b"5", b'{"model":', b"", b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    """BODY-05, BODY-06: 400 with an error object, and nothing is sent."""
    async with Stub(OK) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, raw)

        assert got.status == 400
        assert got.error["type"] == "invalid_request_error"
        assert stub.requests == []


async def test_an_answer_that_is_odd_json_passes_byte_for_byte() -> None:
    """BODY-07, HEADER-02: `-Infinity`, spacing and escapes stay, and the length fits."""
    body = b'{ "model":"m",\n "choices":[ {"logprob": -Infinity, "t":"\\u3042"} ] }'
    answer = text(body, headers=[("content-type", "application/json")])
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, chat())

        assert got.body == body
        assert got.header("content-length") == str(len(body))


@pytest.mark.parametrize("messages", [[], None, "missing"])
async def test_empty_messages_are_for_the_back_end_to_judge(messages: object) -> None:
    """BODY-08: the back end's own 400 comes back."""
    error = {"error": {"message": "empty", "type": "BadRequestError", "param": None, "code": 400}}
    body = {"model": "m"} if messages == "missing" else {"model": "m", "messages": messages}
    async with Stub(reply(error, 400)) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, body)

        assert (got.status, got.json()) == (400, error)


async def test_a_compressed_answer_keeps_its_label() -> None:
    """HEADER-01: 200 KB of gzip pass with label and bytes in agreement; what is read here is not asked for packed."""
    body = gzip.compress(json.dumps({"choices": ["x" * 200_000]}).encode())
    answer = text(body, headers=[("content-type", "application/json"), ("content-encoding", "gzip")])
    async with Stub(answer) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, chat(), headers=(("accept-encoding", "gzip"),))
        await ask(running.url, chat(), "/v1/embeddings", headers=(("accept-encoding", "gzip"),))

        assert [request.get(b"accept-encoding") for request in stub.requests] == [None, b"gzip"]
        assert got.header("content-encoding") == "gzip"
        assert got.body == body


async def test_the_back_end_sees_its_own_host_and_no_credentials() -> None:
    """HEADER-03, HEADER-04, HEADER-05, HEADER-06, HEADER-09: what is the client's and the gateway's stays here."""
    sent = (
        ("authorization", "Bearer canary"),
        ("x-api-key", "canary"),
        ("cookie", "canary=1"),
        ("connection", "keep-alive, x-foo"),
        ("x-foo", "1"),
        ("te", "trailers"),
        ("x-gateway-pool", "plain"),
        ("x-kept", "yes"),
    )
    async with Stub(OK) as stub, gateway(one_pool(stub.url)) as running:
        await ask(running.url, chat(), headers=sent)
        request = stub.requests[0]

        assert request.get(b"host") == f"127.0.0.1:{stub.port}".encode()
        assert b"canary" not in b"".join(value for _, value in request.headers) + request.body
        assert not {b"x-foo", b"te", b"x-gateway-pool", b"authorization"} & request.names()
        assert request.get(b"x-kept") == b"yes"


async def test_the_endpoints_own_key_is_sent_and_never_shown() -> None:
    """HEADER-05: the back end gets its key; neither the answer nor the operators' pages hold it."""
    policy = one_pool("x").replace('["x"]', '[{url: "{url}", api_key: "${KEY}"}]')
    async with Stub(OK) as stub, gateway(policy.replace("{url}", stub.url), {"KEY": "s3cret"}) as running:
        got = await ask(running.url, chat())
        pages = [str(await get(running.url, path)) for path in ("/gateway/policy", "/gateway/pools", "/metrics")]

        assert stub.requests[0].get(b"authorization") == b"Bearer s3cret"
        assert "s3cret" not in str(got) + "".join(pages)


async def test_the_request_id_is_the_clients_or_made() -> None:
    """HEADER-07, HEADER-08: one id for back end, answer and log; a client's own is kept, an unsafe one is not."""
    async with Stub(OK) as stub, gateway(one_pool(stub.url)) as running:
        kept = await ask(running.url, chat(), headers=(("x-request-id", "abc"),))
        made = await ask(running.url, chat())
        odd = await ask(running.url, chat(), headers=(("x-request-id", "x" * 5000),))

        ids = [request.get(b"x-request-id") for request in stub.requests]
        assert ids[0] == b"abc"
        assert [a.header("x-request-id") for a in (kept, made, odd)] == [i.decode() for i in ids if i]
        assert ids[1] != ids[2]
        assert len(ids[2] or b"") < 200


async def test_retry_after_and_status_of_the_back_end_stay() -> None:
    """ERROR-03: the same header with the same value."""
    busy = reply({"error": {"message": "busy"}}, 429, [("retry-after", "30")])
    async with Stub(busy) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, chat())

        assert (got.status, got.header("retry-after")) == (429, "30")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500, 501])
@pytest.mark.parametrize(
    "error", [{"error": {"message": "m", "type": "t", "param": None, "code": 1}}, {"object": "error", "message": "old"}]
)
async def test_a_back_ends_error_passes_unchanged(status: int, error: dict[str, object]) -> None:
    """ERROR-04, ERROR-05, ERROR-07: same status and body, in the newer and in the older shape."""
    async with Stub(reply(error, status)) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, chat())

        assert (got.status, got.json()) == (status, error)
        assert len(stub.requests) == 1
        # A refused key is our configuration's fault, not the client's.
        fault = "backend_error" if status in (401, 403) or status >= 500 else "client_error"
        assert running.counted("gateway_requests_total", outcome=fault) == 1


async def test_a_timeout_and_a_refused_connection_differ() -> None:
    """ERROR-06: 504 where time ran out, 502 where there was no connection; both say what and how."""
    async with Stub(hang) as stub, gateway(one_pool(stub.url, extra=", timeouts: {first_byte: 50ms}")) as running:
        slow = await ask(running.url, chat())
    async with gateway(one_pool("http://127.0.0.1:1")) as running:
        refused = await ask(running.url, chat())

    assert (slow.status, slow.error["code"]) == (504, "upstream_timeout")
    assert (refused.status, refused.error["code"]) == (502, "connect_failed")


async def test_a_back_end_that_closes_before_its_headers_is_a_bad_gateway() -> None:
    """RETRY-08: never a 200 with nothing in it."""
    async with Stub(close) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, chat())

        assert (got.status, got.error["code"]) == (502, "connection_lost")


async def test_a_whole_answer_that_breaks_off_is_a_bad_gateway() -> None:
    """SSE-06 for whole answers: half a JSON body is not passed off as an answer."""
    async with Stub(half) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, chat())

        assert (got.status, got.error["code"]) == (502, "connection_lost")


async def half(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    call.connection.close()


@pytest.mark.parametrize(
    ("body", "error_class", "status"),
    [
        ({"model": "nope", "messages": []}, openai.NotFoundError, 404),
        ({"messages": "x", "model": 7}, openai.BadRequestError, 400),
    ],
)
async def test_gateway_errors_raise_the_sdks_own_classes(
    body: dict[str, object], error_class: type[openai.APIStatusError], status: int
) -> None:
    """ERROR-01: message, type, param and code are there, and the SDK maps the status."""
    policy = two_pools("http://127.0.0.1:1", "http://127.0.0.1:1").replace(
        "models:", "models:\n  other: {pools: [plain]}"
    )
    async with (
        gateway(policy) as running,
        openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        with pytest.raises(error_class) as caught:
            await client.post("/chat/completions", body=body, cast_to=object)

        assert caught.value.status_code == status
        assert caught.value.param == "model"
        got = await ask(running.url, body)
        assert set(got.error) == {"message", "type", "param", "code"}


async def test_nothing_available_says_when_to_come_back() -> None:
    """ERROR-02: 503 with Retry-After in whole seconds and a real type."""
    policy = one_pool("http://127.0.0.1:1").replace("health: {interval: off}", "health: {interval: 50ms}")
    async with gateway(policy) as running:
        await running.until(lambda: running.core.pools.load("plain").up == 0)
        got = await ask(running.url, chat())

        assert got.status == 503
        assert (got.header("retry-after") or "").isdigit()
        assert got.error["type"] == "service_unavailable"


async def test_headers_beyond_any_measure_are_refused() -> None:
    """431 with an error object; a long but sane header passes."""
    async with Stub(OK) as stub, gateway(one_pool(stub.url)) as running:
        fine = await ask(running.url, chat(), headers=(("x-long", "y" * 20_000),))
        large = await ask(running.url, chat(), headers=tuple((f"x-{n}", "y" * 10_000) for n in range(7)))

        assert fine.status == 200
        assert (large.status, large.error["code"]) == (431, "headers_too_large")
        assert len(stub.requests) == 1


@pytest.mark.parametrize("wanted", [False, True])
async def test_prompts_are_in_the_log_where_the_policy_wants_that(
    wanted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Off by default; on, a line holds the whole request, whatever line breaks and broken text are in it."""
    raw = b'{"model": "m",\n"messages": [{"role": "user", "content": "sesame \xe9\x96\x8b\xe3\x81\x91"}]}'
    extra = "logging: {prompts: true}\n" if wanted else ""
    async with Stub(reply({"choices": []})) as stub, gateway(one_pool(stub.url) + extra) as running:
        with caplog.at_level("DEBUG"):
            got = await ask(running.url, raw)

    told = [record.fields for record in caplog.records if record.name == "gateway.prompts"]  # type: ignore[attr-defined]
    assert told == (
        [{"id": got.header("x-request-id"), "model": "m", "body": raw.decode().replace("\n", " ")}] * wanted
    )
    assert "sesame" not in "".join(r.getMessage() for r in caplog.records)
