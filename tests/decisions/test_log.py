"""The log of decisions on a live gateway: in memory, in a file, through the store; and the shadow policy beside it."""

from __future__ import annotations

import asyncio
import os
import random
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gateway.app import build
from gateway.decisions.log import DecisionLog
from gateway.policy.load import parse_policy
from gateway.policy.schema import Logging
from gateway.settings import Settings
from gateway.state.home import open_store
from gateway.state.memory import MemoryStore
from gateway.state.store import View
from gateway.types import Result
from tests.answers import reply
from tests.decisions.past import TEXT, outcomes, policy
from tests.gateways import Running, gateway, two_pools
from tests.raw_client import ask, chat, get
from tests.redis_server import redis_server
from tests.servers import serve
from tests.stub import Stub

ANSWER = reply({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})


@asynccontextmanager
async def shadowed(text: str, shadow: Path) -> AsyncIterator[Running]:
    app = build(
        Settings(shadow_policy=str(shadow)), parse_policy(text, "policy.yaml", {}), env={}, rng=random.Random(7)
    )
    async with serve(app, loop="asyncio", http="httptools", lifespan="on") as url:
        yield Running(url, app.core)


async def test_every_request_has_a_row_for_operators() -> None:
    """`GET /gateway/decisions` tells estimate, all pools' times, choice, reason and outcome, newest first."""
    async with Stub(ANSWER) as stub, gateway(two_pools(stub.url, stub.url)) as running:
        for text in ("first", "zebras"):
            await ask(running.url, chat(text))
        await ask(running.url, b'{"model": "nobody", "messages": []}')
        rows = orjson.loads((await get(running.url, "/gateway/decisions?limit=2")).body)["decisions"]

    assert [row["outcome"]["status"] for row in rows] == [404, 200]
    row = rows[1]
    assert row["decision"]["pool"] in ("plain", "mtp")
    assert {pool["pool"] for pool in row["pools"]} == {"plain", "mtp"}
    assert all(pool["expected_seconds"] > 0 for pool in row["pools"])
    assert row["outcome"]["output_tokens"] == 5
    assert row["estimate"]["output_tokens"] > 0
    assert isinstance(row["regret"], float)
    assert "zebras" not in str(rows)


async def test_decisions_are_for_operators_only() -> None:
    """A client's key does not open them."""
    keys = "access: {keys: [{name: alpha, env: ALPHA}], operator_key: {env: OPS}}\n"
    env = {"ALPHA": "alpha-secret", "OPS": "ops-secret"}
    async with Stub(ANSWER) as stub, gateway(two_pools(stub.url, stub.url) + keys, env) as running:
        path = "/gateway/decisions"
        seen = [
            (await ask(running.url, b"", path, method="GET", headers=headers)).status
            for headers in ((), (("authorization", "Bearer alpha-secret"),), (("authorization", "Bearer ops-secret"),))
        ]

    assert seen == [401, 401, 200]


async def test_a_file_by_policy_holds_every_row(tmp_path: Path) -> None:
    """`logging: {decisions: FILE}`; what is pending at the end is written."""
    file = tmp_path / "decisions.jsonl"
    text = "logging: {decisions: '" + str(file) + "'}\n"
    async with Stub(ANSWER) as stub, gateway(two_pools(stub.url, stub.url) + text) as running:
        for _ in range(3):
            await ask(running.url, chat(TEXT))

    lines = file.read_bytes().splitlines()
    assert len(lines) == 3
    assert TEXT.encode() not in file.read_bytes()
    assert {orjson.loads(line)["outcome"]["result"] for line in lines} == {"ok"}


async def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests go on, and the log says how many rows were lost once the file can be written again."""
    sections = [Logging(decisions=str(tmp_path)), Logging(decisions=str(tmp_path / "decisions.jsonl"))]
    log = DecisionLog(lambda: sections[0], MemoryStore())
    for outcome in outcomes(policy(), [5, 5]):
        log.observe(outcome, None)
    await log.flush()
    assert len(await log.recent(10)) == 2

    sections.pop(0)
    for outcome in outcomes(policy(), [5]):
        log.observe(outcome, None)
    await log.flush()

    assert len((tmp_path / "decisions.jsonl").read_bytes().splitlines()) == 1
    assert [record.message for record in caplog.records] == ["decisions cannot be written", "decisions were lost"]
    assert vars(caplog.records[-1])["fields"] == {"rows": 2}


async def test_memory_is_bounded() -> None:
    """The newest stay."""
    log = DecisionLog(lambda: Logging(), MemoryStore(), ring=3)
    for outcome in outcomes(policy(), [5] * 5):
        log.observe(outcome, None)

    assert [row["id"] for row in await log.recent(10)] == ["r4", "r3", "r2"]
    assert await log.recent(0) == []


async def test_a_crowd_leaves_an_even_share_and_every_failure() -> None:
    """Of 5,000 requests in one second memory holds a thousand from all of the second's ends, and all that failed."""
    log = DecisionLog(lambda: Logging(), MemoryStore(), ring=10_000)
    (one,) = outcomes(policy(), [5])
    for n in range(5000):
        result = Result.BACKEND_ERROR if n % 500 == 499 else Result.OK
        log.observe(replace(one, request_id=f"r{n}", ended=100.0 + n / 5000, result=result), None)
    kept = log.kept()

    assert 1000 <= len(kept) <= 1150
    assert sum(row.result is not Result.OK for row in kept) == 10
    assert sum(int(row.request_id[1:]) > 2500 for row in kept) >= 50


async def test_a_file_has_them_all(tmp_path: Path) -> None:
    """What memory leaves out in a crowd is written all the same."""
    log = DecisionLog(lambda: Logging(decisions=str(tmp_path / "rows")), MemoryStore())
    (one,) = outcomes(policy(), [5])
    for n in range(3000):
        log.observe(replace(one, request_id=f"r{n}", ended=100.0 + n / 10_000), None)
    await log.flush()

    assert len((tmp_path / "rows").read_bytes().splitlines()) == 3000


async def test_a_shadow_policy_decides_beside_the_first(tmp_path: Path) -> None:
    """Its flips are counted with what they would gain, and no request goes where it says."""
    shadow = tmp_path / "shadow.yaml"
    async with Stub(ANSWER) as plain, Stub(ANSWER) as mtp:
        first = two_pools(plain.url, mtp.url, "static")
        shadow.write_text(first.replace("threshold: 64", "threshold: 0"), "utf-8")
        async with shadowed(first, shadow) as running:
            for _ in range(4):
                await ask(running.url, chat("Is this good or bad? One word."))

            assert running.counted("gateway_shadow_requests_total", model="m") == 4
            assert running.counted("gateway_shadow_flips_total", model="m", **{"from": "plain", "to": "mtp"}) == 4
            changed = [running.counted(f"gateway_shadow_{what}_seconds_total", model="m") for what in ("saved", "lost")]
            assert sum(changed) > 0
        assert (len(plain.requests), len(mtp.requests)) == (4, 0)


async def test_without_a_shadow_policy_there_is_nothing_of_it() -> None:
    """No cost and no series where it is off."""
    async with Stub(ANSWER) as stub, gateway(two_pools(stub.url, stub.url)) as running:
        await ask(running.url, chat("hello"))

        assert b"gateway_shadow" not in (await get(running.url, "/metrics")).body
        judged = [running.counted(f"gateway_routing_{what}_seconds_total") for what in ("saved", "lost")]
        assert sum(judged) > 0


async def test_replicas_share_the_log_through_redis() -> None:
    """A row that one replica wrote is among the recent ones of another."""
    with redis_server() as server:
        stores = [
            open_store(
                server.url, replica=name, rng=random.Random(1), processes=1, snapshots=None, clock=time.monotonic
            )
            for name in ("one", "two")
        ]
        for store in stores:
            await store.start(View)
        one, two = (DecisionLog(lambda: Logging(), store) for store in stores)
        async with asyncio.timeout(60):
            while not stores[0].status().connected or not stores[1].status().connected:
                await asyncio.sleep(0.01)
            for outcome in outcomes(policy(), [5, 400]):
                one.observe(outcome, 0.5)
            await one.flush()
            while len(rows := await two.recent(10)) < 2:
                await asyncio.sleep(0.01)
        for store in stores:
            await store.aclose()

    assert [row["id"] for row in rows] == ["r1", "r0"]
    assert rows[0]["regret"] == 0.5


async def test_the_answer_says_whose_decisions_it_tells() -> None:
    """One of several workers without shared state knows its own only."""
    async with Stub(ANSWER) as stub:
        for workers, scope in ((1, "all"), (3, "process")):
            policy = parse_policy(two_pools(stub.url, stub.url), "policy.yaml", {})
            app = build(Settings(workers=workers), policy, env={}, rng=random.Random(7))
            async with serve(app, loop="asyncio", http="httptools", lifespan="on") as url:
                found = orjson.loads((await get(url, "/gateway/decisions")).body)

            assert (found["scope"], found["processes"], found["process"]) == (scope, workers, os.getpid())


class Unreached(MemoryStore):
    """A shared store whose home is lost: what is appended waits here."""

    shared = True


async def test_rows_that_wait_for_the_store_take_their_own_length() -> None:
    """Thousands may wait while Redis is away; the encoder's buffer, several times a row, does not wait with each."""
    store = Unreached(log_length=1000)
    log = DecisionLog(Logging, store)
    for outcome in outcomes(policy(), [5] * 200):
        log.observe(outcome, None)
    tracemalloc.start()
    try:
        await log.flush()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    rows = await store.recent(1000)

    assert len(rows) == 200
    assert taken < 2 * sum(map(len, rows))
