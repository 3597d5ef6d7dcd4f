"""Runs the Ray Serve application once on this machine and says what it saw: two simulated back ends, requests and a
stream through Ray's proxy, a burst that makes Ray add a replica. Everything listens on 127.0.0.1.

    python3 -m venv /tmp/ray && /tmp/ray/bin/pip install 'ray[serve]>=2.50' . && /tmp/ray/bin/python deploy/ray/local.py
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import ray
from gateway_app import Options, application
from ray import serve

MODEL = "gemma-4-e4b"
BURST = 24
POLICY = """
version: 1
pools:
  plain: {{endpoints: ["http://127.0.0.1:{plain}"]}}
  mtp: {{endpoints: ["http://127.0.0.1:{mtp}"], speculative: {{method: mtp, tokens: 2}}}}
models:
  {model}: {{pools: [plain, mtp], architecture: dense}}
"""


def main() -> None:
    plain, mtp, port = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder, simulated(plain), simulated(mtp, "--speculative", "mtp", "--k", "2"):
        policy = Path(folder) / "policy.yaml"
        policy.write_text(POLICY.format(plain=plain, mtp=mtp, model=MODEL), "utf-8")
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port, "request_timeout_s": 600})
        try:
            options = Options(policy=str(policy), max_replicas=2, target_ongoing_requests=4)
            serve.run(application(options), name="gateway", route_prefix="/")
            asyncio.run(look(f"http://127.0.0.1:{port}"))
        finally:
            serve.shutdown()
            ray.shutdown()


async def look(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        print("ready:", (await client.get("/ready")).json()["status"])
        for text, extra in (
            ("Positive or negative? It was fine.", {"max_tokens": 3}),
            ("Explain tides in detail.", {}),
        ):
            answer = await client.post("/v1/chat/completions", json=body(text, **extra))
            headers = answer.headers
            print(f"{answer.status_code} {headers['x-gateway-pool']} ({headers['x-gateway-reason']}): {text}")
        await stream(client)
        await burst(client)


async def stream(client: httpx.AsyncClient) -> None:
    began, times, whole = time.monotonic(), [], b""
    async with client.stream(
        "POST", "/v1/chat/completions", json=body("Write a long story.", stream=True, max_tokens=200)
    ) as answer:
        async for part in answer.aiter_raw():
            times.append(time.monotonic() - began)
            whole += part
    assert whole.endswith(b"data: [DONE]\n\n"), "the stream was cut"
    print(f"a stream in {len(times)} parts: the first after {times[0]:.2f} s, the last after {times[-1]:.2f} s")


async def burst(client: httpx.AsyncClient) -> None:
    """Long answers at one time, until Ray has added a replica, and once more."""

    async def one() -> None:
        answer = await client.post("/v1/chat/completions", json=body("Write a long essay on rivers.", max_tokens=300))
        answer.raise_for_status()

    rounds = 0
    before = running()
    while running() == before and rounds < 10:
        await asyncio.gather(*(one() for _ in range(BURST)))
        rounds += 1
    await asyncio.gather(*(one() for _ in range(BURST)))
    print(f"{(rounds + 1) * BURST} long answers, {BURST} at a time, none lost; replicas {before} -> {running()}")
    text = (await client.get("/metrics")).text
    print(*(line for line in text.splitlines() if line.startswith("gateway_requests_total{")), sep="\n")


def running() -> int:
    states = serve.status().applications["gateway"].deployments["gateway"].replica_states
    return sum(count for state, count in states.items() if state == "RUNNING")


def body(text: str, **extra: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **extra}


@contextmanager
def simulated(port: int, *more: str) -> Iterator[None]:
    command = [sys.executable, "-m", "gateway", "sim", "--model", "google/gemma-4-E4B-it", "--served-name", MODEL]
    process = subprocess.Popen([*command, "--port", str(port), *more], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    """One below those that the system gives to outgoing connections, such as Ray's own, which could take it first."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


if __name__ == "__main__":
    # Replicas import `gateway_app` from here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    main()
