"""Traces through a real collector: Rotel (a collector in Rust) takes what a gateway sends, and passes on what it read.

It is no requirement of the project: `pip install rotel==0.0.1a15` brings it, and without it these are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.answers import reply, reset, stream
from tests.collector import ERROR, SERVER, Collector, collector, environment
from tests.e2e.events import DONE, delta
from tests.gateways import gateway, one_pool, two_pools
from tests.ports import free_port
from tests.raw_client import ask, chat
from tests.stub import Stub

CLIENT = 3
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=1"))
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
ANSWER = reply({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": USAGE})


def program() -> str:
    """The collector's program, or a skip."""
    spec = find_spec("rotel")
    if spec is None or spec.origin is None:
        pytest.skip("no collector: pip install rotel==0.0.1a15")
    return str(Path(spec.origin).with_name("rotel-agent"))


@asynccontextmanager
async def collecting(folder: Path) -> AsyncIterator[tuple[Collector, dict[str, str]]]:
    """The collector, what it passes on, and the variables that point a gateway to it."""
    ports = free_port(), free_port()
    async with collector() as behind:
        options = {
            "otlp-http-endpoint": f"127.0.0.1:{ports[0]}",
            "otlp-grpc-endpoint": f"127.0.0.1:{ports[1]}",
            "exporter": "otlp",
            "otlp-exporter-endpoint": behind.stub.url,
            "otlp-exporter-protocol": "http",
            "traces-batch-timeout": "100ms",
            "pid-file": str(folder / "pid"),
            "log-file": str(folder / "log"),
        }
        made = await asyncio.create_subprocess_exec(
            program(), "start", *(word for name, value in options.items() for word in (f"--{name}", value)), env={}
        )
        try:
            async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as client:
                while True:
                    try:
                        await client.get(f"http://127.0.0.1:{ports[0]}/")
                        break
                    except httpx.TransportError:
                        await asyncio.sleep(0.05)
            yield behind, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ports[0]}"}
        finally:
            made.terminate()
            await asyncio.wait_for(made.wait(), 60)


async def passed_on(behind: Collector, spans: int) -> None:
    async with asyncio.timeout(60):
        while len(behind.spans()) < spans:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("packed", [False, True])
async def test_a_collector_understands_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    """Parents, kinds, times and attributes come out of it as the gateway meant them."""
    answer = stream(delta("a"), delta("b", finish="stop"), DONE)
    async with collecting(tmp_path) as (behind, variables), Stub(answer) as stub:
        more = {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"} if packed else {}
        env = environment(monkeypatch, {**variables, **more})
        async with gateway(two_pools(stub.url, stub.url), env) as running:
            await ask(running.url, chat("zebras", stream=True, max_tokens=77), headers=CONTEXT)
        await passed_on(behind, 5)

        request = behind.one("chat m")
        inner = {name: behind.one(name) for name in ("estimate", "decide", "attempt", "stream")}
        resource, sent = behind.resource(), stub.requests[0]
    assert {span.trace_id for span in behind.spans()} == {TRACE}
    assert (request.kind, request.parent_id, inner["attempt"].kind) == (SERVER, PARENT, CLIENT)
    assert {span.parent_id for span in inner.values()} == {request.span_id}
    assert all(request.start <= span.start <= span.end <= request.end for span in inner.values())
    assert inner["stream"].end == request.end
    assert (request.state, request.flags, inner["attempt"].flags) == ("vendor=1", 0x301, 0x101)
    assert sent.get(b"traceparent") == f"00-{TRACE}-{inner['attempt'].span_id}-01".encode()
    assert request.attributes["gen_ai.operation.name"] == "chat"
    assert request.attributes["gen_ai.request.max_tokens"] == 77
    assert request.attributes["gen_ai.request.stream"] is True
    assert isinstance(inner["decide"].attributes["gateway.pools.mtp"], float)
    assert resource["service.name"] == "mtp-gateway"
    assert b"zebras" not in behind.bytes


async def test_a_collector_understands_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts below one request, the first failed and ended before the second began."""
    async with collecting(tmp_path) as (behind, env), Stub(reset) as broken, Stub(ANSWER) as sound:
        policy = one_pool(broken.url, sound.url, extra=", retry: {budget: 1}")
        async with gateway(policy, environment(monkeypatch, env)) as running:
            while not broken.requests:
                await ask(running.url, chat("hello"), headers=CONTEXT)
        port = broken.port
        await passed_on(behind, 1)
        async with asyncio.timeout(60):
            while not any(span.status == ERROR for span in behind.named("attempt")):
                await asyncio.sleep(0.05)

    (failed,) = (span for span in behind.named("attempt") if span.attributes["server.port"] == port)
    second = next(span for span in behind.named("attempt") if span.start >= failed.end)
    assert failed.attributes["error.type"]
    assert (failed.parent_id, second.attributes["http.request.resend_count"]) == (second.parent_id, 1)
    (request,) = (span for span in behind.named("chat m") if span.span_id == second.parent_id)
    assert request.status == 0
    assert request.attributes["gen_ai.usage.output_tokens"] == 5
    assert request.attributes["gen_ai.response.finish_reasons"] == ["stop"]


async def test_what_is_not_sampled_reaches_no_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's flag goes on to the back end, and a sampled request beside it arrives alone."""
    async with collecting(tmp_path) as (behind, env), Stub(ANSWER) as stub:
        async with gateway(one_pool(stub.url), environment(monkeypatch, env)) as running:
            await ask(running.url, chat("one"), headers=(("traceparent", f"00-{'1' * 32}-{PARENT}-00"),))
            await ask(running.url, chat("two"), headers=CONTEXT)
        await passed_on(behind, 4)

        flags = [(sent.get(b"traceparent") or b"").rpartition(b"-")[2] for sent in stub.requests]
    assert flags == [b"00", b"01"]
    assert {span.trace_id for span in behind.spans()} == {TRACE}
