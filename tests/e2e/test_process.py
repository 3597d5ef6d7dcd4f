"""The gateway as a process: start, stop signals, worker processes, command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.answers import reply, stream
from tests.e2e.events import DONE, delta
from tests.gateways import one_pool
from tests.ports import free_port
from tests.raw_client import ask, chat, connected, get
from tests.stub import Call, Stub

PATH = "/v1/chat/completions"
OPENMETRICS = (("accept", "application/openmetrics-text; version=1.0.0"),)


@asynccontextmanager
async def process(
    policy: Path, *options: str, log: IO[bytes] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`gateway serve` on a free port; yields the process and its URL once it answers, for which it has a minute."""
    port = free_port()
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--policy", str(policy), "--port", str(port), *options),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=log,
        stderr=log,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(60):
            while not await healthy(client, url):
                assert made.returncode is None, "the gateway ended before it answered"
                await asyncio.sleep(0.05)
        yield made, url
    finally:
        if made.returncode is None:
            made.terminate()
            await asyncio.wait_for(made.wait(), 60)


async def healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url + "/health")).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_stop_signal_lets_streams_end_and_refuses_new_requests(tmp_path: Path) -> None:
    """OPS-01: readiness goes off, new requests get 503 with Retry-After, the stream ends whole, the exit is 0."""
    gate = asyncio.Event()
    answer = stream(delta("one"), delta("two", "stop"), DONE, gate=gate)
    async with Stub(answer) as stub:
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(stub.url))
        async with process(policy) as (gateway, url), connected(url) as client:
            await client.send(PATH, json.dumps(chat(stream=True)).encode())
            await client.head()
            await client.chunk()
            gateway.send_signal(signal.SIGTERM)
            while (await get(url, "/ready")).status != 503:
                await asyncio.sleep(0.01)
            refused = await ask(url, chat())
            gate.set()
            rest = b""
            while piece := await asyncio.wait_for(client.chunk(), 60):
                rest += piece

            assert (refused.status, refused.header("retry-after")) == (503, "1")
            assert refused.header("connection") == "close"
            assert rest == delta("two", "stop") + DONE
            assert await asyncio.wait_for(gateway.wait(), 60) == 0


async def test_a_client_that_keeps_coming_does_not_hold_the_stop_up(tmp_path: Path) -> None:
    """OPS-01: a balancer without health checks is refused for a while and not until the end of a long grace."""
    async with Stub(reply({"choices": []})) as stub:
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(stub.url) + "server: {grace: 10m}\n")
        async with process(policy) as (gateway, url):
            gateway.send_signal(signal.SIGTERM)
            ended = asyncio.create_task(gateway.wait())
            refused = 0
            async with asyncio.timeout(60):
                while not ended.done():
                    try:
                        refused += (await ask(url, chat())).status == 503
                    except (OSError, asyncio.IncompleteReadError):
                        await asyncio.sleep(0.05)

            assert refused > 5
            assert await ended == 0


async def test_a_stream_beyond_the_grace_is_told_so(tmp_path: Path) -> None:
    """A stream that the stop cuts ends in an error event, not as if it were finished."""
    async with Stub(stream(delta("one"), finish=False)) as stub:
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(stub.url) + "server: {grace: 200ms}\n")
        async with process(policy) as (gateway, url), connected(url) as client:
            await client.send(PATH, json.dumps(chat(stream=True)).encode())
            await client.head()
            await client.chunk()
            gateway.send_signal(signal.SIGTERM)
            rest = await asyncio.wait_for(client.reader.read(), 60)

            assert b'"nothing_available"' in rest
            assert b"[DONE]" not in rest
            assert await asyncio.wait_for(gateway.wait(), 60) == 0
            await stub.until(lambda: stub.open == 0)


async def test_what_the_stop_cuts_is_told_and_counted_so(tmp_path: Path) -> None:
    """OPS-01, ERROR-01: an answer that has not begun is 503 with Retry-After in the usual form, a stream that has is
    truncated; no client is said to have left."""
    begun = stream(delta("one"), finish=False)

    async def answer(call: Call) -> None:
        await (begun(call) if b"true" in call.request.body else call.hang())

    async with Stub(answer) as stub:
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(stub.url) + "server: {grace: 200ms}\n")
        with (tmp_path / "log").open("wb") as log:
            async with process(policy, "--log-format", "json", log=log) as (gateway, url), connected(url) as client:
                await client.send(PATH, json.dumps(chat(stream=True)).encode())
                await client.head()
                await client.chunk()
                whole = asyncio.create_task(ask(url, chat(stream=False)))
                await stub.until(lambda: len(stub.requests) == 2)
                gateway.send_signal(signal.SIGTERM)
                got = await whole
                await asyncio.wait_for(gateway.wait(), 60)

        rows = [json.loads(line) for line in (tmp_path / "log").read_text("utf-8").splitlines() if '"request"' in line]
        assert (got.status, got.header("retry-after")) == (503, "1")
        assert b'"code": "nothing_available"' in got.body
        assert sorted((row["result"], row["status"]) for row in rows) == [("rejected", 503), ("truncated", 200)]


async def test_workers_count_as_one(tmp_path: Path) -> None:
    """METRIC-01, METRIC-02: with two workers every scrape tells the same sum, and a dead one's gauge is gone."""
    async with Stub(reply({"choices": []})) as stub:
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(stub.url))
        async with process(policy, "--workers", "2") as (_, url):
            for _ in range(100):
                assert (await ask(url, chat())).status == 200
            while await total(url, "gateway_requests_total") < 100.0:
                # The other worker counts some milliseconds after an answer's end.
                await asyncio.sleep(0.01)
            sums = [await total(url, "gateway_requests_total") for _ in range(10)]
            assert sums == [100.0] * 10

            stub.answer = stream(delta("one"), finish=False)
            async with connected(url) as client:
                await client.send(PATH, json.dumps(chat(stream=True)).encode())
                await client.head()
                await client.chunk()
                while await total(url, "gateway_in_flight") != 1.0:
                    await asyncio.sleep(0.05)
                os.kill(
                    owner_of(int(url.rpartition(":")[2]), client.writer.get_extra_info("sockname")[1]), signal.SIGKILL
                )
                while await total(url, "gateway_in_flight") != 0.0:
                    await asyncio.sleep(0.05)
            assert await total(url, "gateway_requests_total") == 100.0


async def test_each_worker_shows_its_own_exemplars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """METRIC-02: in OpenMetrics, in buckets of the sums over workers; where traces go does not matter to it."""
    async with Stub(reply({"choices": []})) as stub:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", stub.url)
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(stub.url))
        async with process(policy, "--workers", "2") as (_, url):
            for number in range(40):
                await ask(url, chat(), headers=(("traceparent", f"00-{number + 1:032x}-{1:016x}-01"),))
            seen: set[frozenset[str]] = set()
            async with asyncio.timeout(60):
                while len(seen) < 2:
                    page = await ask(url, b"", "/metrics", method="GET", headers=OPENMETRICS)
                    families = text_string_to_metric_families(page.body.decode())  # type: ignore[no-untyped-call]
                    samples = [sample for family in families for sample in family.samples]
                    total = sum(s.value for s in samples if s.name == "gateway_request_seconds_count")
                    traced = [s.exemplar for s in samples if s.exemplar and s.name == "gateway_request_seconds_bucket"]
                    if total < 40:
                        continue
                    assert total == 40
                    assert all(1 <= int(exemplar.labels["trace_id"], 16) <= 40 for exemplar in traced)
                    seen.add(frozenset(exemplar.labels["trace_id"] for exemplar in traced))


async def total(url: str, name: str) -> float:
    """A metric's sum over its labels, as one scrape shows it; a worker that just died may refuse one."""
    while True:
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                page = (await client.get(url + "/metrics")).text
        except httpx.TransportError:
            continue
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name + "{"))


def owner_of(server: int, client: int) -> int:
    """The process that holds the server's side of the connection between these two ports."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(end.rpartition(":")[2], 16) for end in fields[1:3]] == [server, client]:
            inodes.add(f"socket:[{fields[9]}]")
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(entry) in inodes:
                return int(entry.parts[2])
        except OSError:
            continue
    raise AssertionError("no process holds that connection")


async def run(*arguments: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(made.communicate(stdin), 300)
    return made.returncode, out.decode(), err.decode()


async def test_the_demo_tours_and_ends() -> None:
    """`gateway demo --once`: labels go to plain, long answers to MTP, the table says so, exit 0."""
    code, out, err = await run("demo", "--once", "--port", "0")

    assert (code, err) == (0, "")
    rows = {line.strip().split("  ")[0]: line for line in out.splitlines()}
    assert "plain" in rows["label a review"]
    assert "MTP" in rows["explain at length"]
    assert "MTP" in rows["write a program"]
    assert "refuses min_p" in rows["a story, with min_p"]
    assert out.endswith("\n")
    assert "simulated" in out


async def test_the_demo_ends_quietly_amid_requests() -> None:
    """Ctrl-c while an answer runs: exit 0 and not a word."""
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "demo", "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert made.stdout is not None
    base = (await made.stdout.readline()).decode().split()[3].removesuffix("/v1")
    while b"keeps serving" not in await made.stdout.readline():
        pass
    body = {"model": "gemma-4-e4b", "messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True}
    async with (
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
        client.stream("POST", f"{base}/v1/chat/completions", json={**body, "max_tokens": 4000}) as answer,
    ):
        await anext(answer.aiter_raw())
        made.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(made.communicate(), 60)

    assert (made.returncode, err) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["check", "policies/nope.yaml"], 1, "policies/nope.yaml:1:1: policy: no such file"),
        (["serve"], 2, "--policy FILE is missing"),
        (["serve", "policies/default.yaml"], 2, "policies/default.yaml; did you mean --policy policies/default.yaml?"),
        (["serve", "--policy", "policies/nope.yaml"], 1, "no such file"),
        (["serve", "--policy", "policies/default.yaml", "--port", "99999"], 2, "--port is 99999; it must be between"),
        (["demo", "--port", "99999999"], 2, "'99999999' is not a port; it must be a number from 0 to 65535"),
        (["sim", "--port", "x1"], 2, "'x1' is not a port"),
        (["nonsense"], 2, "invalid choice"),
        (["explain", "--policy", "policies/default.yaml", "/nope.json"], 1, "No such file or directory: /nope.json"),
        (["explain", "--policy", "policies/default.yaml", "README.md"], 1, "README.md: The body is not valid JSON"),
        (["check", "--nope", "policies/default.yaml"], 2, "gateway check: error: unrecognized arguments: --nope"),
        (["replay", "--policy", "policies/default.yaml", "README.md"], 1, "`logging: {decisions: FILE}`"),
        (["serve", "--policy", "policies/default.yaml", "--state-dir", "README.md"], 2, "--state-dir is README.md"),
    ],
)
async def test_wrong_use_is_one_clear_line(arguments: list[str], code: int, said: str) -> None:
    """Exit 1 for a bad input, 2 for wrong usage; a line that says what to do, never a traceback."""
    got, _, err = await run(*arguments)

    assert got == code
    assert said in err
    assert "Traceback" not in err


async def test_workers_forget_the_gauges_of_an_endpoint_that_has_gone(tmp_path: Path) -> None:
    """METRIC-02: the files that workers share keep them; the page does not, and what stays is still summed."""
    async with Stub(reply({"choices": []})) as first, Stub(reply({"choices": []})) as second:
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(first.url))
        async with process(policy, "--workers", "2") as (_, url):

            async def shown() -> set[str]:
                page = (await get(url, "/metrics")).body.decode()
                return {one.url for one in (first, second) if f'endpoint="{one.url}"' in page}

            async with asyncio.timeout(60):
                while await shown() != {first.url}:
                    await asyncio.sleep(0.1)
                policy.write_text(one_pool(second.url))
                # Two workers reload, each in its time, and any of them may answer.
                seen: list[set[str]] = []
                while seen[-8:] != [{second.url}] * 8:
                    seen.append(await shown())
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
async def test_a_taken_port_is_one_line(options: tuple[str, ...]) -> None:
    """`gateway serve` where something listens already: exit 1, before anything is started."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        told = await run("serve", "--policy", "policies/default.yaml", "--port", port, *options)

    assert told == (1, "", f"gateway: Address already in use: 127.0.0.1:{port}\n")


async def test_explain_reads_standard_input() -> None:
    """The offline decision: JSON in the public shape, or a table for people."""
    body = json.dumps({"model": "gemma-4-e4b", "messages": [{"role": "user", "content": "Write a long essay."}]})
    options = ("explain", "--policy", "policies/default.yaml")
    code, out, _ = await run(*options, "--json", "-", stdin=body.encode())
    told = json.loads(out)
    _, table, _ = await run(*options, "-", stdin=body.encode())
    broken, _, err = await run(*options, "-", stdin=b"[]")

    assert code == 0
    assert told["decision"]["pool"] == "e4b-mtp"
    assert {row["pool"] for row in told["pools"]} == {"e4b-plain", "e4b-mtp"}
    assert "e4b-mtp" in table
    assert broken == 1
    assert "Traceback" not in err
