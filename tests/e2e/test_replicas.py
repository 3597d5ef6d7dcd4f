"""Several gateway processes that share one Redis, or a folder: what one knows, all heed; what is lost stops nobody."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.answers import reply, stream
from tests.e2e.events import DONE, delta
from tests.e2e.test_process import process, total
from tests.gateways import one_pool
from tests.raw_client import Answer, RawClient, ask, chat, connected, get
from tests.redis_server import RedisServer, redis_server
from tests.stub import Call, Stub

PATH = "/v1/chat/completions"
SECRET = "sk-replicas"
PATIENT = 10_000
"""Milliseconds that a request may wait for Redis where limits must be exact however busy the machine is."""
WHOLE = reply({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}], "usage": None})
WITHIN = 60.0


AUTH = (("authorization", f"Bearer {SECRET}"),)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def policy_file(folder: Path, url: str, key: str = "", extra: str = "") -> Path:
    """One pool on `url`, and the key `k` with these limits (YAML in flow style, starting with a comma)."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    access = f"access: {{keys: [{{name: k, sha256: {digest}{key}}}]}}\n" if key else ""
    place = folder / "policy.yaml"
    place.write_text(one_pool(url, extra=extra) + access)
    return place


@asynccontextmanager
async def replicas(policy: Path, redis_url: str, count: int = 2, wait: int = 4) -> AsyncIterator[list[str]]:
    """That many gateways, whose requests wait `wait` ms for Redis; yields their URLs once each has heard of all the
    others."""
    options = ("--redis-url", redis_url, "--redis-wait", str(wait))
    async with process(policy, *options) as (_, first), process(policy, *options) as (_, second):
        urls = [first, second][:count]

        async def acquainted() -> bool:
            return all([(await state(url))["replicas"] == count for url in urls])

        await until(acquainted)
        yield urls


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Asks until it holds; there is no event that another process would send here."""
    async with asyncio.timeout(WITHIN):
        while not await holds():
            await asyncio.sleep(0.05)


async def state(url: str) -> dict[str, Any]:
    found = (await get(url, "/ready")).json()["state"]
    assert isinstance(found, dict)
    return found


async def begin(client: RawClient, headers: tuple[tuple[str, str], ...] = ()) -> int:
    """Starts a stream and reads its head and first piece; the status."""
    await client.send(PATH, json.dumps(chat(stream=True)).encode(), headers=headers)
    status, _ = await asyncio.wait_for(client.head(), WITHIN)
    if status == 200:
        await asyncio.wait_for(client.chunk(), WITHIN)
    return status


def views(server: RedisServer) -> list[dict[str, Any]]:
    """Each replica's view, as Redis holds it."""
    with redis.Redis(port=server.port) as client:
        blobs = client.hgetall("gateway:views")
    assert isinstance(blobs, dict)
    return [json.loads(blob[16:]) for blob in blobs.values()]


async def test_a_small_limit_is_exact_over_replicas(server: RedisServer, tmp_path: Path) -> None:
    """OPS-04: of one key's requests over two replicas exactly its limit passes, whichever replica each one meets."""
    async with Stub(WHOLE) as stub:
        policy = policy_file(tmp_path, stub.url, ", requests_per_minute: 7")
        async with replicas(policy, server.url, wait=PATIENT) as urls:
            answers = await asyncio.gather(*(ask(urls[n % 2], chat(), headers=AUTH) for n in range(20)))

            assert sorted(answer.status for answer in answers) == [200] * 7 + [429] * 13
            assert all(answer.header("retry-after") for answer in answers if answer.status == 429)
            assert len(stub.requests) == 7


async def test_requests_in_flight_count_over_replicas(server: RedisServer, tmp_path: Path) -> None:
    """REDIS-07, CANCEL-03: a stream at one replica fills the key's place at the other, and its end frees it."""
    async with Stub(stream(delta("one"), finish=False)) as stub:
        policy = policy_file(tmp_path, stub.url, ", in_flight: 1")
        async with replicas(policy, server.url) as urls:
            async with connected(urls[0]) as client:
                assert await begin(client, AUTH) == 200

                async def refused() -> bool:
                    async with connected(urls[1]) as other:
                        return await begin(other, AUTH) == 429

                await until(refused)

                async def told() -> bool:
                    # The other replica's view may still be of a request that it took before it had heard of the first.
                    busy = [(view["endpoints"], view["keys"]) for view in views(server) if view["endpoints"]]
                    return busy == [({f"plain {stub.url}": [1, 0]}, {"k": 1})]

                await until(told)

            async def admitted() -> bool:
                async with connected(urls[1]) as other:
                    return await begin(other, AUTH) == 200

            await until(admitted)

            async def forgotten() -> bool:
                return not any(view["endpoints"] or view["keys"] for view in views(server))

            await until(forgotten)


async def test_a_shut_breaker_is_told_to_the_others(server: RedisServer, tmp_path: Path) -> None:
    """What one replica found out about an endpoint stands in its view, and on the other's page."""
    async with Stub(reply({"error": {"message": "x"}}, 503)) as stub:
        extra = ", retry: {attempts: 1}, breaker: {failures: 2, shut: 60s}"
        async with replicas(policy_file(tmp_path, stub.url, extra=extra), server.url) as urls:
            for _ in range(2):
                assert (await ask(urls[0], chat())).status == 503

            async def told() -> bool:
                return [view["endpoints"] for view in views(server) if view["endpoints"]] == [
                    {f"plain {stub.url}": [0, 1]}
                ]

            await until(told)

            async def shown() -> bool:
                page = await get(urls[1], "/gateway/pools")
                (row,) = page.json()["pools"][0]["endpoints"]  # type: ignore[index]
                return bool(row["elsewhere"] == {"in_flight": 0, "shut": 1, "works": 0, "hung": 0} and row["doubted"])

            await until(shown)


async def test_a_fault_of_one_replica_takes_no_endpoint_from_another(server: RedisServer, tmp_path: Path) -> None:
    """One that finds the only endpoint broken is believed by an idle other one, which serves all the same, sees that
    it works, and doubts it no longer."""
    broken = reply({"error": {"message": "x"}}, 503)

    async def for_some(call: Call) -> None:
        await (broken if b"for the first" in call.request.body else WHOLE)(call)

    async with Stub(for_some) as stub:
        extra = ", retry: {attempts: 1}, breaker: {failures: 2, shut: 60s}"
        async with replicas(policy_file(tmp_path, stub.url, extra=extra), server.url) as urls:

            async def row() -> dict[str, Any]:
                page = await get(urls[1], "/gateway/pools")
                (found,) = page.json()["pools"][0]["endpoints"]  # type: ignore[index]
                assert isinstance(found, dict)
                return found

            async def doubted() -> bool:
                return bool((await row())["doubted"])

            async def believed_no_longer() -> bool:
                found = await row()
                return not found["doubted"] and found["elsewhere"]["shut"] == 1

            for _ in range(2):
                assert (await ask(urls[0], chat("for the first"))).status == 503
            await until(doubted)
            answers = await asyncio.gather(*(ask(urls[1], chat("for the second")) for _ in range(20)))
            assert [answer.status for answer in answers] == [200] * 20
            await until(believed_no_longer)


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_a_lost_redis_stops_no_request(server: RedisServer, tmp_path: Path, how: str) -> None:
    """REDIS-01, REDIS-02: each replica goes on with its share, `/ready` tells, and all is shared again."""
    async with Stub(WHOLE) as stub:
        policy = policy_file(tmp_path, stub.url, ", requests_per_minute: 1000")
        async with replicas(policy, server.url) as urls:
            server.kill() if how == "kill" else server.freeze()
            answers = [await ask(urls[n % 2], chat(), headers=AUTH) for n in range(20)]

            async def noticed() -> bool:
                return not any([(await state(url))["connected"] for url in urls])

            await until(noticed)
            ready = await get(urls[0], "/ready")
            answers += [await ask(urls[n % 2], chat(), headers=AUTH) for n in range(20)]
            server.start() if how == "kill" else server.thaw()

            async def shared() -> bool:
                found = [await state(url) for url in urls]
                return all(one["connected"] and one["replicas"] == 2 for one in found)

            await until(shared)
            answers += [await ask(urls[n % 2], chat(), headers=AUTH) for n in range(20)]

            assert [answer.status for answer in answers] == [200] * 60
            assert (ready.status, ready.json()["status"]) == (200, "ready")


@pytest.mark.parametrize("home", ["redis", "folder"])
async def test_what_was_learned_outlives_the_process(server: RedisServer, tmp_path: Path, home: str) -> None:
    """Lengths of a template's answers are known after a restart, from Redis or from snapshot files."""
    told = reply(
        {
            "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 700},
        }
    )
    options = ("--redis-url", server.url) if home == "redis" else ("--state-dir", str(tmp_path / "state"))
    body = chat("Please classify the mood of this text: the sky is blue.", max_tokens=2000)

    async def predicted(url: str) -> float:
        """Asks for the estimate alone, from which nothing is learned."""
        estimate = (await ask(url, body, "/gateway/explain")).json()["estimate"]
        return float(estimate["output_tokens"])  # type: ignore[index]

    async with Stub(told) as stub:
        policy = policy_file(tmp_path, stub.url)
        async with process(policy, *options) as (_, url):
            before = await predicted(url)
            for _ in range(30):
                await ask(url, body)
            # Answers are learned from a moment after their end; who reads the metrics sees that of all of them.
            assert await total(url, "gateway_requests_total") == 30.0
            learned = await predicted(url)
        assert before < 200 < learned
        async with process(policy, *options) as (_, url):

            async def known() -> bool:
                # At once, unless Redis was silent for a moment at the start: then it is asked again.
                return abs(await predicted(url) - learned) < 0.1 * learned

            await until(known)


class Balancer:
    """The smallest load balancer: each replica in turn, a connection a request. One that answers 503 with
    `Retry-After`, or takes no connection, gets no more until it is replaced, and another one gets the request.

    A replica that is `stopping` closes its listener once nobody has come for half a second: a connection that it had
    not accepted by then ends without a byte. Where this machine pauses for so long that counts as not taken too.
    """

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.stopping: set[str] = set()
        self._next = 0
        self._out: set[str] = set()

    async def ask(self, body: object) -> Answer:
        while True:
            assert not self._out.issuperset(self.urls), "no replica is left"
            self._next += 1
            url = self.urls[self._next % len(self.urls)]
            if url in self._out:
                continue
            try:
                answer = await self._asked(url, body)
            except ConnectionRefusedError:
                answer = None
            if answer is None:
                self._out.add(url)
                continue
            if answer.status != 503 or answer.header("retry-after") is None:
                return answer
            assert url in self.stopping, answer.body
            self._out.add(url)

    async def _asked(self, url: str, body: object) -> Answer | None:
        """None where a replica that is stopping has not taken the connection."""
        async with connected(url) as client:
            try:
                await client.send(PATH, json.dumps(body).encode())
                head = await asyncio.wait_for(client.head(), WITHIN)
            except (ConnectionError, asyncio.IncompleteReadError) as ended:
                if url not in self.stopping or (isinstance(ended, asyncio.IncompleteReadError) and ended.partial):
                    raise
                return None
            return await asyncio.wait_for(client.rest(*head), WITHIN)


async def test_a_rolling_restart_fails_no_request(server: RedisServer, tmp_path: Path) -> None:
    """OPS-01: replicas are replaced one by one under load behind a balancer that honours 503."""

    async def a_while(call: Call) -> None:
        await asyncio.sleep(0.02)
        await stream(delta("one"), delta("two", "stop"), DONE)(call)

    options = ("--redis-url", server.url)
    answers: list[Answer] = []
    over = asyncio.Event()
    async with Stub(a_while) as stub, AsyncExitStack() as started:
        policy = policy_file(tmp_path, stub.url)
        running = [await started.enter_async_context(process(policy, *options)) for _ in range(2)]
        balancer = Balancer([url for _, url in running])

        async def client() -> None:
            while not over.is_set():
                answers.append(await balancer.ask(chat(stream=True)))

        async def served_more() -> None:
            enough = len(answers) + 20
            while len(answers) < enough:
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as clients:
            for _ in range(8):
                clients.create_task(client())
            for position, (old, url) in enumerate(running):
                await served_more()
                balancer.stopping.add(url)
                old.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(old.wait(), WITHIN) == 0
                await served_more()
                _, balancer.urls[position] = await started.enter_async_context(process(policy, *options))
            await served_more()
            over.set()

        assert {answer.status for answer in answers} == {200}
        assert all(answer.body.endswith(DONE) for answer in answers)
