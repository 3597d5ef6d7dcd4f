"""The page's files and its stream over HTTP."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files

import orjson

from tests.answers import reply
from tests.gateways import gateway, one_pool, two_pools
from tests.raw_client import RawClient, ask, chat, connected, get
from tests.stub import Stub

STATIC = files("gateway.ui").joinpath("static")
NAMES = sorted(file.name for file in STATIC.iterdir())
ANSWER = reply({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
KEYS = "access: {keys: [{name: alpha, env: ALPHA}], operator_key: {env: OPS}}\n"
ENV = {"ALPHA": "alpha-secret", "OPS": "ops-secret"}


async def event(client: RawClient) -> dict[str, object]:
    found: dict[str, object] = orjson.loads((await asyncio.wait_for(client.chunk(), 60)).removeprefix(b"data: "))
    return found


def test_the_page_is_small_and_needs_nobody_else() -> None:
    """It works offline: no address of another host, and 60 kB in all."""
    texts = {file.name: file.read_text("utf-8") for file in STATIC.iterdir()}

    assert sum(len(text.encode()) for text in texts.values()) < 60_000
    hosts = {host for text in texts.values() for host in re.findall(r"https?://([\w.-]+)", text)}
    assert hosts <= {"www.w3.org"}


def test_both_languages_say_the_same_things() -> None:
    """A word that is missing in one of them would show as its key."""
    text = STATIC.joinpath("text.js").read_text("utf-8")
    english, japanese = (
        set(re.findall(r"[ {,]([a-z]\w*): (?:[\"`(])", re.sub(r'"(?:[^"\\]|\\.)*"', '""', part)))
        for part in (
            text.partition("const EN = ")[2].partition("};")[0],
            text.partition("const JA = ")[2].partition("};")[0],
        )
    )

    assert len(english) > 100
    assert english == japanese


def test_every_word_that_the_page_asks_for_exists() -> None:
    """`data-t` in the page names words of the table."""
    text, html = (STATIC.joinpath(name).read_text("utf-8") for name in ("text.js", "index.html"))

    assert [key for key in re.findall(r'data-t="(\w+)"', html) if not re.search(rf"\b{key}:", text)] == []


async def test_every_file_is_served_with_headers_that_protect() -> None:
    """No script, style or frame from elsewhere; no guessing of types; a copy is checked before it is used."""
    async with gateway(one_pool("http://127.0.0.1:1") + KEYS, ENV) as running:
        for path in ("/", *(f"/gateway/ui/{name}" for name in NAMES)):
            got = await get(running.url, path)
            tag = (("if-none-match", got.header("etag") or ""),)
            again = await ask(running.url, b"", path, method="GET", headers=tag)

            assert got.status == 200
            assert (got.header("content-type") or "").endswith("charset=utf-8")
            policy = got.header("content-security-policy") or ""
            assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
            assert "unsafe" not in policy
            assert got.header("x-content-type-options") == "nosniff"
            assert got.header("referrer-policy") == "no-referrer"
            assert (again.status, again.body) == (304, b"")


async def test_other_names_do_not_exist() -> None:
    """Only the package's files are served."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running:
        for name in ("nothing.js", "..%2froutes.py", "%2e%2e/routes.py"):
            assert (await get(running.url, f"/gateway/ui/{name}")).status == 404


async def test_the_stream_tells_the_state_at_once_and_then_each_second() -> None:
    """The first event has everything, without waiting for a tick; the next shows what happened since."""
    async with (
        Stub(ANSWER) as stub,
        gateway(two_pools(stub.url, stub.url)) as running,
        connected(running.url) as client,
    ):
        await client.send("/gateway/events", b"", method="GET")
        status, headers = await client.head()
        first = await event(client)
        await ask(running.url, chat("zebras"))
        after = await event(client)

    assert (status, dict(headers)["content-type"]) == (200, "text/event-stream")
    assert first["history"] == []
    assert first["decisions"] == []
    assert [pool["pool"] for pool in first["pools"]] == ["plain", "mtp"]  # type: ignore[attr-defined]
    [decision] = after["decisions"]  # type: ignore[misc]
    assert decision["result"] == "ok"  # type: ignore[has-type]
    assert after["traffic"]["flow"][0]["requests"] == 1  # type: ignore[index]
    assert "zebras" not in str(after)


async def test_the_stream_is_for_operators_only() -> None:
    """Neither nobody nor a client's key."""
    async with gateway(one_pool("http://127.0.0.1:1") + KEYS, ENV) as running:
        for headers in ((), (("authorization", "Bearer alpha-secret"),)):
            assert (await ask(running.url, b"", "/gateway/events", method="GET", headers=headers)).status == 401


async def test_a_gateway_that_stops_lets_its_viewers_go() -> None:
    """An open page does not hold up the end of the process."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running, connected(running.url) as client:
        await client.send("/gateway/events", b"", method="GET")
        await client.head()
        await event(client)
        running.core.draining = True

        async with asyncio.timeout(60):
            while await client.chunk():
                pass
