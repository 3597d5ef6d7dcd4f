"""What operators' routes tell."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from urllib.parse import parse_qs

import pytest

from tests.answers import reply, text
from tests.gateways import gateway, one_pool, two_pools
from tests.raw_client import ask, chat, connected, get
from tests.stub import Call, Stub

TELLING = "health: {interval: 100ms}, telemetry: {interval: 100ms}"


async def test_the_pools_page_tells_when_drafting_pays() -> None:
    """Curves by pool and crossovers by pair of pools, for every model that has pools."""
    async with gateway(two_pools("http://127.0.0.1:1", "http://127.0.0.1:2")) as running:
        page = json.loads((await get(running.url, "/gateway/pools")).body)

    (model,) = page["models"].values()
    assert [curve["pool"] for curve in model["curves"]] == ["plain", "mtp"]
    assert {row["task"] for row in model["crossovers"]} == {"chat", "code", "structured_json"}
    assert all("MTP" in row["summary"] for row in model["crossovers"])
    assert page["slices"] == []


async def test_a_client_that_leaves_in_its_body_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """CANCEL-02 for operators' routes: nothing stands in the log, and the next one is served."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running:
        async with connected(running.url) as client:
            head = b"POST /gateway/explain HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
            client.writer.write(head + b'{"model": ')
            await client.writer.drain()
            await asyncio.sleep(0.05)
        told = await ask(running.url, chat(), "/gateway/explain")

    assert told.status == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_an_explanation_takes_no_larger_body_than_a_request() -> None:
    """413, and nothing is gathered beyond the limit."""
    async with gateway(one_pool("http://127.0.0.1:1") + "server: {max_body_bytes: 1000}\n") as running:
        told = await ask(running.url, chat("x" * 2000), "/gateway/explain")

    assert told.status == 413


async def test_an_explanation_reads_a_body_as_a_request_does() -> None:
    """ROUTE-09: a packed body is unpacked, within the same limit; a packing that no request may have is refused."""
    packed = gzip.compress(json.dumps(chat("x" * 500)).encode())
    bomb = gzip.compress(json.dumps(chat("x" * 2000)).encode())
    async with gateway(one_pool("http://127.0.0.1:1") + "server: {max_body_bytes: 1000}\n") as running:
        plain = await ask(running.url, chat("x" * 500), "/gateway/explain")
        told = await ask(running.url, packed, "/gateway/explain", headers=(("content-encoding", "gzip"),))
        large = await ask(running.url, bomb, "/gateway/explain", headers=(("content-encoding", "gzip"),))
        odd = await ask(running.url, packed, "/gateway/explain", headers=(("content-encoding", "br"),))

    assert (told.status, told.json()) == (200, plain.json())
    assert (large.status, odd.status) == (413, 415)


@pytest.mark.parametrize("came", ["x", "0", "1001", "-3", "", "1.5", "%e3%81%82", "5&limit=y"])
async def test_a_parameter_that_is_wrong_is_named_with_what_is_allowed(came: str) -> None:
    """400 in the usual shape: which parameter, what came, and the range; what is right is answered."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running:
        told = await get(running.url, f"/gateway/decisions?limit={came}")
        right = await get(running.url, "/gateway/decisions?limit=1000")

    assert (told.status, told.error["param"], right.status) == (400, "limit", 200)
    given = parse_qs(f"limit={came}", keep_blank_values=True)["limit"][-1]
    assert told.error["message"] == f"`limit` is `{given}`; it must be a whole number from 1 to 1000"


async def test_what_a_wrong_parameter_quotes_is_short() -> None:
    """A page of digits does not come back whole."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running:
        told = await get(running.url, f"/gateway/decisions?limit={'9' * 4000}")

    assert told.status == 400
    assert len(str(told.error["message"])) < 200


HTML = text(b"<!doctype html><h1>Welcome</h1>", headers=[("content-type", "text/html")])


async def keyed(call: Call) -> None:
    """As vLLM with `--api-key`: what is not under /v1 needs none."""
    await (reply({"error": "Unauthorized"}, 401) if call.request.target.startswith(b"/v1") else reply({}))(call)


async def test_ready_says_which_endpoint_cannot_serve_and_why() -> None:
    """A dead one, another server, one that wants a key, one that serves another name: each with what to do."""
    other = reply({"data": [{"id": "other"}]})
    async with Stub(HTML) as html, Stub(keyed) as locked, Stub(other) as named:
        urls = ["http://127.0.0.1:1", html.url, locked.url, named.url]
        policy = one_pool(*urls).replace("health: {interval: off}, telemetry: {interval: off}", TELLING)
        async with gateway(policy) as running:
            told: dict[str, dict[str, object]] = {}
            async with asyncio.timeout(20):
                while len(told) < 4 or "connect_failed" not in str(told[urls[0]]["why"]):
                    page = json.loads((await get(running.url, "/ready")).body)
                    told = {row["endpoint"]: row for row in page.get("endpoints", ())}

            assert [told[url]["up"] for url in urls] == [False, True, True, True]
            assert {row["pool"] for row in told.values()} == {"plain"}
            dead = "its health probe fails; its /metrics: connect_failed; nothing listens there"
            whys = (dead, "is HTML", "give the endpoint an `api_key`", "set the pool's `model`")
            for url, words in zip(urls, whys, strict=True):
                assert words in str(told[url]["why"])
            assert page["status"] == "ready"


async def test_ready_names_what_keeps_requests_away_before_what_a_page_lacks() -> None:
    """A shut breaker is the cause, and metrics that are not found are none: without them it would get requests."""
    policy = one_pool("URL", extra=", breaker: {failures: 2, shut: 1h}")
    async with Stub(reply({}, 404)) as stub:
        policy = policy.replace("URL", stub.url).replace("telemetry: {interval: off}", "telemetry: {interval: 100ms}")
        async with gateway(policy) as running:
            await running.until(lambda: bool(running.core.watch.view.endpoints()[stub.url].error))
            stub.answer = reply({"error": "died"}, 500)
            for _ in range(2):
                await ask(running.url, chat())
            stub.answer = reply({}, 404)
            page = json.loads((await get(running.url, "/ready")).body)

    assert (page["status"], page["models_without_pool"]) == ("unready", ["m"])
    assert page["endpoints"][0]["why"].startswith("its breaker is shut (failures); its /metrics: status ")


async def test_ready_says_nothing_of_endpoints_that_serve() -> None:
    """Also of one whose metrics cannot be read: it gets requests."""
    async with Stub(reply({}, 404)) as stub:
        policy = one_pool(stub.url).replace("telemetry: {interval: off}", "telemetry: {interval: 100ms}")
        async with gateway(policy) as running:
            await running.until(lambda: bool(running.core.watch.view.endpoints()[stub.url].error))
            page = json.loads((await get(running.url, "/ready")).body)

    assert page["status"] == "ready"
    assert "endpoints" not in page
