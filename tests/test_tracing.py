"""Tracing against a real OTLP receiver: context in and out, the spans of a request, exemplars; and nothing when off."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.otlp import OtlpExporter
from gateway.settings import InvalidSetting
from gateway.tracing import exporter_of
from tests.answers import reply, reset, stream, text
from tests.collector import ERROR, SERVER, collector, environment
from tests.e2e.events import DONE, delta
from tests.gateways import gateway, one_pool, two_pools
from tests.raw_client import ask, chat
from tests.stub import Stub

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=1,other=2"))
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
ANSWER = reply({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": USAGE})
OPENMETRICS = (("accept", "application/openmetrics-text; version=1.0.0"),)


async def test_a_trace_goes_on_from_the_client_to_the_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back end's parent is the attempt, whose parent is the request, whose parent is the client's span."""
    async with collector() as spans, Stub(ANSWER) as stub:
        env = environment(monkeypatch, spans.environment)
        async with gateway(one_pool(stub.url), env) as running:
            await ask(running.url, chat("hello"), headers=CONTEXT)

        request, attempt = spans.one("chat m"), spans.one("attempt")
        assert {request.target for request in spans.stub.requests} == {b"/v1/traces"}
    assert {span.trace_id for span in spans.spans()} == {TRACE}
    assert request.parent_id == PARENT
    assert attempt.parent_id == request.span_id
    assert (request.state, attempt.state) == ("vendor=1,other=2", "vendor=1,other=2")
    # Sampled; and that the parent of the first is another process's is known.
    assert (request.flags, attempt.flags) == (0x301, 0x101)
    assert stub.requests[0].get(b"traceparent") == f"00-{TRACE}-{attempt.span_id}-01".encode()
    assert stub.requests[0].get(b"tracestate") == b"vendor=1,other=2"
    assert [name.lower() for name, _ in stub.requests[0].headers].count(b"traceparent") == 1


async def test_spans_say_what_happened_and_never_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """GenAI's names on the request; estimate, decision and attempt below it, in order and within it."""
    async with collector() as spans, Stub(ANSWER) as stub:
        env = environment(monkeypatch, spans.environment)
        async with gateway(two_pools(stub.url, stub.url), env) as running:
            await ask(running.url, chat("zebras in the night", max_tokens=77))

        told, port = spans.one("chat m"), stub.port
        inner = [spans.one(name) for name in ("estimate", "decide", "attempt")]
        assert b"zebras" not in spans.bytes
        assert spans.resource()["service.name"] == "mtp-gateway"
    found = told.attributes
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 77,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.response.finish_reasons": ["stop"],
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "server.address": "127.0.0.1",
    }.items() <= found.items()
    assert told.kind == SERVER
    times = [time for span in inner for time in (span.start, span.end)]
    assert times == sorted(times)
    assert told.start <= times[0]
    assert times[-1] <= told.end
    decided = inner[1].attributes
    assert decided["gateway.pool"] in ("plain", "mtp")
    assert min(decided["gateway.pools.plain"], decided["gateway.pools.mtp"]) > 0
    assert inner[2].attributes["server.port"] == port


async def test_a_stream_has_a_span_from_its_first_byte_to_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the request, which ends with it."""
    async with collector() as spans, Stub(stream(delta("a"), delta("b", finish="stop"), DONE)) as stub:
        env = environment(monkeypatch, spans.environment)
        async with gateway(one_pool(stub.url), env) as running:
            await ask(running.url, chat("hello", stream=True))

        request, streamed, attempt = spans.one("chat m"), spans.one("stream"), spans.one("attempt")
    assert streamed.parent_id == request.span_id
    assert streamed.end == request.end
    assert attempt.start <= streamed.start
    assert request.attributes["gen_ai.request.stream"] is True


async def test_every_attempt_is_a_span_that_its_back_end_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed one ends where it failed and says how."""
    async with collector() as spans, Stub(reset) as broken, Stub(ANSWER) as sound:
        env = environment(monkeypatch, spans.environment)
        async with gateway(one_pool(broken.url, sound.url, extra=", retry: {budget: 1}"), env) as running:
            while not broken.requests:
                await ask(running.url, chat("hello"), headers=CONTEXT)

        port = broken.port
        failed, *_ = (s for s in spans.named("attempt") if s.attributes["server.port"] == port)
        second = next(s for s in spans.named("attempt") if s.start >= failed.end)
    assert failed.status == ERROR
    assert failed.attributes["error.type"]
    assert second.attributes["http.request.resend_count"] == 1
    assert (broken.requests[0].get(b"traceparent") or b"").split(b"-")[2] == failed.span_id.encode()
    assert (sound.requests[-1].get(b"traceparent") or b"").split(b"-")[2] == second.span_id.encode()


async def test_waiting_for_a_place_is_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where the attempt begins."""
    gate = asyncio.Event()
    async with collector() as spans, Stub(stream(delta("a"), DONE, gate=gate)) as stub:
        env = environment(monkeypatch, spans.environment)
        async with gateway(one_pool(stub.url, extra=", limits: {in_flight: 1}"), env) as running:
            first = asyncio.create_task(ask(running.url, chat("one", stream=True)))
            await stub.until(lambda: len(stub.requests) == 1)
            second = asyncio.create_task(ask(running.url, chat("two", stream=True)))
            await running.until(lambda: any(pool.waiting for pool in running.core.pools))
            gate.set()
            await asyncio.gather(first, second)

        queued = spans.one("queue")
        assert queued.end == spans.named("attempt")[1].start


async def test_an_error_of_a_back_end_is_one_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's mistake is not."""
    async with collector() as spans, Stub(reply({"error": {}}, 500)) as stub:
        env = environment(monkeypatch, spans.environment)
        async with gateway(one_pool(stub.url), env) as running:
            await ask(running.url, chat("hello"))
            await ask(running.url, b"not json")

        bad, mistake = spans.one("chat m"), spans.one("POST")
    assert bad.status == ERROR
    assert bad.attributes["error.type"] == "backend_error"
    assert mistake.status == 0
    assert mistake.attributes["http.response.status_code"] == 400


async def test_what_the_client_does_not_sample_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision travels on; no span, no exemplar."""
    async with collector() as spans, Stub(ANSWER) as stub:
        env = environment(monkeypatch, spans.environment)
        async with gateway(one_pool(stub.url), env) as running:
            await ask(running.url, chat("hello"), headers=(("traceparent", f"00-{TRACE}-{PARENT}-00"),))
            page = (await ask(running.url, b"", "/metrics", method="GET", headers=OPENMETRICS)).body

        assert spans.bytes == b""
    passed = (stub.requests[0].get(b"traceparent") or b"").decode().split("-")
    assert (passed[1], passed[3]) == (TRACE, "00")
    assert b"trace_id" not in page


async def test_the_sampler_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OTEL_TRACES_SAMPLER=always_off` sends nothing, whatever the client says."""
    async with collector() as spans, Stub(ANSWER) as stub:
        env = environment(monkeypatch, {**spans.environment, "OTEL_TRACES_SAMPLER": "always_off"})
        async with gateway(one_pool(stub.url), env) as running:
            await ask(running.url, chat("hello"), headers=CONTEXT)

        assert spans.bytes == b""


async def test_a_batch_that_is_refused_for_now_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 and its `Retry-After`; packed and with the operator's headers, if so asked."""
    async with collector(text(b"", 503, [("retry-after", "0")])) as spans, Stub(ANSWER) as stub:
        more = {
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
        }
        env = environment(monkeypatch, {**spans.environment, **more})
        async with gateway(one_pool(stub.url), env) as running:
            await ask(running.url, chat("hello"))
            await spans.stub.until(lambda: len(spans.stub.requests) == 2)

        first, second = spans.stub.requests
    assert first.body == second.body
    assert gzip.decompress(second.body)
    assert second.get(b"x-tenant") == b"a b"


async def test_a_collector_that_refuses_costs_its_traces_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, and the gateway goes on."""
    caplog.set_level("INFO", "gateway.tracing")
    async with collector(text(b"", 400), text(b"", 400)) as spans, Stub(ANSWER) as stub:
        env = environment(monkeypatch, {**spans.environment, "OTEL_BSP_SCHEDULE_DELAY": "10"})
        async with gateway(one_pool(stub.url), env) as running:
            for number in range(3):
                await ask(running.url, chat("hello"))
                await spans.stub.until(lambda: len(spans.stub.requests) > number)  # noqa: B023

    said = [record.getMessage() for record in caplog.records if record.name == "gateway.tracing"]
    assert said == ["traces are not sent", "traces are sent again"]


async def test_a_collector_that_is_gone_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are served, and the gateway stops after one try."""
    async with Stub(ANSWER) as stub:
        async with collector() as spans:
            env = environment(monkeypatch, spans.environment)
        async with gateway(one_pool(stub.url), env) as running:
            assert (await ask(running.url, chat("hello"))).status == 200

    assert [record.getMessage() for record in caplog.records if record.name == "gateway.tracing"] == [
        "traces are not sent"
    ]


def test_what_a_client_writes_as_context_is_not_logged() -> None:
    """A malformed `tracestate` is dropped without a word."""
    code = (
        "import random; from gateway.logs import configure; from gateway.spans import Spans, exporter_named\n"
        "configure('text', 'debug')\n"
        "spans = Spans(exporter_named('console', {}), {}, 'r', lambda: 0.0, random.Random(1))\n"
        f"headers = [(b'traceparent', b'00-{TRACE}-{PARENT}-01'), (b'tracestate', b'zebra=\x1b')]\n"
        "print(spans.begin({'headers': headers, 'method': 'GET', 'path': '/'}, 0.0).id)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert (done.stdout.strip(), done.stderr) == (TRACE, "")


def test_a_secret_in_the_collectors_address_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What fails is told with the place alone."""
    where = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://user:secret@127.0.0.1:1/v1/traces?key=secret"}
    exporter = OtlpExporter(where | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    exporter.export(())
    exporter.shutdown()
    assert [record.__dict__["fields"]["to"] for record in caplog.records] == ["http://127.0.0.1:1/v1/traces"]


async def test_exemplars_lead_from_a_bucket_to_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """On TTFT, TPOT and the whole time, in OpenMetrics; Prometheus' text has no place for them."""
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}\n\n'
    async with collector() as spans, Stub(stream(delta("a"), delta("b", finish="stop"), usage, DONE)) as stub:
        env = environment(monkeypatch, spans.environment)
        async with gateway(one_pool(stub.url), env) as running:
            await ask(running.url, chat("hello", stream=True), headers=CONTEXT)
            page = await ask(running.url, b"", "/metrics", method="GET", headers=OPENMETRICS)
            plain_text = (await ask(running.url, b"", "/metrics", method="GET")).body

    with_exemplars = {
        family.name
        for family in text_string_to_metric_families(page.body.decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar and sample.exemplar.labels["trace_id"] == TRACE
    }
    assert with_exemplars == {
        "gateway_request_seconds",
        "gateway_time_to_first_token_seconds",
        "gateway_time_per_output_token_seconds",
    }
    assert (page.header("content-type") or "").startswith("application/openmetrics-text")
    assert b"trace_id" not in plain_text


async def test_off_the_clients_context_passes_as_it_came() -> None:
    """Byte for byte, and metrics have no exemplars."""
    async with Stub(ANSWER) as stub, gateway(one_pool(stub.url)) as running:
        await ask(running.url, chat("hello"), headers=CONTEXT)
        page = (await ask(running.url, b"", "/metrics", method="GET", headers=OPENMETRICS)).body

        assert running.core.tracer is None
    assert {(name, value.encode()) for name, value in ((n.encode(), v) for n, v in CONTEXT)} <= set(
        stub.requests[0].headers
    )
    assert b"trace_id" not in page


def test_off_nothing_that_traces_is_imported() -> None:
    """Neither at start nor by building the application. (Frameworks may import OpenTelemetry's API on their own.)"""
    code = """
import sys
from gateway.app import build
from gateway.policy.load import parse_policy
from gateway.settings import Settings
import gateway.cli
policy = '{version: 1, pools: {p: {endpoints: ["http://h"]}}, models: {m: {pools: [p]}}}'
build(Settings(), parse_policy(policy, "p", {}), env={})
assert not {"gateway.spans", "gateway.otlp"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize(
    ("env", "exporter"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "x"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None),
    ],
)
def test_the_standard_variables_turn_it_on(env: dict[str, str], exporter: str | None) -> None:
    """As OpenTelemetry's users expect; with none of them nothing is ever sent."""
    assert exporter_of(env) == exporter


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "must be otlp, console or none"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
    ],
)
def test_what_is_not_there_is_said(env: dict[str, str], says: str) -> None:
    """One clear line, and the gateway does not start without the traces that were asked for."""
    with pytest.raises(InvalidSetting, match=says):
        exporter_of(env)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that brings it."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'mtp-gateway\[otel\]'"):
        exporter_of({"OTEL_TRACES_EXPORTER": "otlp"})


def test_the_command_says_it_in_one_line(tmp_path: os.PathLike[str]) -> None:
    """Exit code 2 before any worker starts."""
    policy = os.path.join(tmp_path, "policy.yaml")
    with open(policy, "w") as file:
        file.write(one_pool("http://127.0.0.1:9"))
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--policy", policy, "--workers", "2", "--port", "0"],
        env={**os.environ, "OTEL_TRACES_EXPORTER": "jaeger"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["gateway: OTEL_TRACES_EXPORTER is 'jaeger'; it must be otlp, console or none"]
