"""Endpoints that are found while the gateway serves: real back ends on several loopback addresses."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.answers import reply, stream
from tests.discovery.kubernetes import Api, pod
from tests.discovery.names import Names, quickly
from tests.e2e.events import DONE, delta
from tests.gateways import Running, gateway
from tests.ports import free_port
from tests.raw_client import ask, chat, connected, get
from tests.stub import Answer, Stub

ANSWER = reply({"choices": []})
OFF = "defaults: {health: {interval: off}, telemetry: {interval: off}}"


def found(entry: str) -> str:
    return f"{OFF}\npools: {{p: {{endpoints: [{entry}]}}}}\nmodels: {{m: {{pools: [p]}}}}"


def urls(running: Running) -> list[str]:
    return sorted(endpoint.url for endpoint in running.core.pools["p"].endpoints)


@asynccontextmanager
async def neighbours(one: Answer, two: Answer) -> AsyncIterator[tuple[Stub, Stub]]:
    """Back ends on one port of two addresses."""
    async with Stub(one, at_port=free_port()) as first, AsyncExitStack() as stack:
        yield first, await stack.enter_async_context(Stub(two, host="127.0.0.2", at_port=first.port))


async def ready(running: Running) -> tuple[int, dict[str, Any]]:
    answer = await get(running.url, "/ready")
    return answer.status, answer.json()


async def test_a_pool_grows_and_shrinks_with_its_name() -> None:
    """Each address serves; one that leaves the answer ends its stream and gets nothing new, without a policy edit."""
    gate, names = asyncio.Event(), Names({"vllm.models": ["127.0.0.1"]})
    answer = stream(delta("one"), delta("two", "stop"), DONE, gate=gate)
    async with neighbours(answer, ANSWER) as (first, second):
        policy = found(f'{{dns: "http://vllm.models:{first.port}", refresh: 1s}}')
        async with gateway(policy, follow=quickly(names)) as running, connected(running.url) as client:
            await running.until(lambda: urls(running) == [first.url])
            await client.send("/v1/chat/completions", json.dumps(chat(stream=True)).encode())
            await client.head()
            await client.chunk()
            names.answers["vllm.models"] = ["127.0.0.1", "127.0.0.2"]
            await running.until(lambda: urls(running) == [first.url, second.url])
            both = list(running.core.pools["p"].endpoints)
            names.answers["vllm.models"] = ["127.0.0.2"]
            await running.until(lambda: urls(running) == [second.url])
            later = await ask(running.url, chat())
            gate.set()
            rest = b""
            while piece := await asyncio.wait_for(client.chunk(), 60):
                rest += piece

            assert rest == delta("two", "stop") + DONE
            assert later.status == 200
            assert (len(first.requests), len(second.requests)) == (1, 1)
            assert second.requests[0].get(b"host") == f"vllm.models:{first.port}".encode()
            assert running.core.pools["p"].endpoints[0] in both
            assert running.core.active.version == 1
            await running.until(lambda: running.core.metrics.shown_endpoints == {("p", second.url)})
            assert first.url not in (await get(running.url, "/metrics")).body.decode()
            assert running.counted("gateway_policy_reload_total") == 0
            await first.until(lambda: first.open == 0)


async def test_an_unresolved_pool_is_empty_and_gets_ready_by_itself() -> None:
    """Before the first answer: 503 with Retry-After, not ready and why; afterwards requests pass."""
    names = Names()
    async with Stub(ANSWER) as stub:
        policy = found(f'{{dns: "http://vllm:{stub.port}"}}')
        async with gateway(policy, follow=quickly(names)) as running:
            await running.until(lambda: bool(names.asked))
            await running.until(lambda: bool(running.core.discovery.problems()))
            refused = await ask(running.url, chat())
            status, told = await ready(running)
            names.answers["vllm"] = ["127.0.0.1"]
            await running.until(lambda: urls(running) == [stub.url])

            assert (refused.status, refused.error["code"]) == (503, "nothing_available")
            assert int(refused.header("retry-after") or 0) >= 1
            assert (status, told["models_without_pool"]) == (503, ["m"])
            assert told["discovery"] == [
                {"pool": "p", "source": f"http://vllm:{stub.port}", "endpoints": 0, "problem": told_problem(told)}
            ]
            assert told_problem(told) == "Name or service not known"
            assert (await ask(running.url, chat())).status == 200
            assert (await ready(running))[0] == 200


def told_problem(told: dict[str, Any]) -> str:
    problem = told["discovery"][0]["problem"]
    assert isinstance(problem, str)
    return problem


async def test_a_resolver_that_fails_takes_nothing_away() -> None:
    """The last known endpoints go on; `/ready` is 200 and says so, as do the metrics and the operators' page."""
    names = Names({"vllm": ["127.0.0.1"]})
    async with Stub(ANSWER) as stub, AsyncExitStack() as stack:
        policy = found(f'{{dns: "http://vllm:{stub.port}"}}')
        running = await stack.enter_async_context(gateway(policy, follow=quickly(names)))
        await running.until(lambda: urls(running) == [stub.url])
        names.answers["vllm"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        await running.until(lambda: bool(running.core.discovery.problems()))
        status, told = await ready(running)
        page = (await get(running.url, "/metrics")).body.decode()
        pools: Any = (await get(running.url, "/gateway/pools")).json()["pools"]

        assert (await ask(running.url, chat())).status == 200
        assert (status, told_problem(told)) == (200, "Temporary failure in name resolution")
        assert 'gateway_discovered_endpoints{pool="p"} 1.0' in page
        assert 'gateway_discovery_failing{pool="p"} 1.0' in page
        assert pools[0]["discovery"] == told["discovery"]


async def test_a_reload_from_a_list_to_a_name_drops_nothing(tmp_path: Path) -> None:
    """RELOAD-05: a live edit that puts a name in the place of listed endpoints has no moment without endpoints, and
    the back end then hears the name, as after a restart."""
    file, names = tmp_path / "policy.yaml", Names()
    async with Stub(ANSWER) as stub:
        file.write_text(found(f'"{stub.url}"'))
        async with gateway(file, follow=quickly(names)) as running:
            (before,) = running.core.pools["p"].endpoints
            file.write_text(found(f'{{dns: "http://vllm:{stub.port}"}}'))
            await running.until(lambda: running.core.active.version == 2)
            between = await ask(running.url, chat())
            names.answers["vllm"] = ["127.0.0.1"]
            await running.until(lambda: not running.core.discovery.problems())

            assert between.status == (await ask(running.url, chat())).status == 200
            assert urls(running) == [before.url]
            assert stub.requests[-1].get(b"host") == f"vllm:{stub.port}".encode()


async def test_a_source_that_a_reload_takes_away_no_longer_fails(tmp_path: Path) -> None:
    """RELOAD: the metrics of a pool without sources are at rest, so that no alert goes on for ever."""
    file, failing = tmp_path / "policy.yaml", "gateway_discovery_failing"
    async with Stub(ANSWER) as stub:
        file.write_text(found(f'"{stub.url}", {{dns: "http://nowhere:{stub.port}"}}'))
        async with gateway(file, follow=quickly(Names())) as running:
            await running.until(lambda: running.counted(failing, pool="p") == 1)
            file.write_text(found(f'"{stub.url}"'))
            await running.until(lambda: running.counted(failing, pool="p") == 0)
            assert running.core.active.version == 2


async def test_pods_become_endpoints(tmp_path: Path) -> None:
    """A pod that gets ready serves, and one that begins to stop gets nothing new."""
    async with Api(tmp_path) as api, neighbours(ANSWER, ANSWER) as (first, second):
        api.put(pod("vllm-0", "127.0.0.1"))
        policy = found(f"{{kubernetes: {{selector: app=vllm, namespace: models, port: {first.port}}}}}")
        async with gateway(policy, follow=quickly(cluster=api.cluster)) as running:
            await running.until(lambda: urls(running) == [first.url])
            await api.until_watched(1)
            api.put(pod("vllm-1", "127.0.0.2"))
            api.put(pod("vllm-0", "127.0.0.1", leaving=True))
            await running.until(lambda: urls(running) == [second.url])

            assert (await ask(running.url, chat())).status == 200
            assert (len(first.requests), len(second.requests)) == (0, 1)
            assert second.requests[0].get(b"host") == f"127.0.0.2:{first.port}".encode()
