"""A gateway under mixed load, and a real Prometheus that scrapes it: what dashboards and rules are checked against."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.app import build
from gateway.policy.load import parse_policy
from gateway.settings import Settings
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.ports import free_port
from tests.servers import serve

TOP = Path(__file__).resolve().parents[2]
RULES = TOP / "deploy/prometheus/rules.yaml"
PROMPTS = (
    "Is this review positive or negative? One word: the soup was cold.",
    "Write a Python function that merges two sorted lists, with tests.",
    "潮の満ち引きの仕組みを詳しく説明してください。",
)
WORKERS = 4


def tool(name: str) -> str:
    """A program of Prometheus. Skips the test where it is missing; CI has it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine: sh tests/system-parts.sh")
    return found


@asynccontextmanager
async def loaded(folder: Path) -> AsyncIterator[str]:
    """A gateway with a shadow and a canary policy on a plain and a drafting back end, under load; yields its URL."""
    plain = create_app(SimSettings(served_names=("m",), time_scale=200))
    drafting = create_app(SimSettings(served_names=("m",), k=2, time_scale=200))
    async with serve(plain) as one, serve(drafting) as two:
        text = f"""
version: 1
defaults: {{telemetry: {{interval: 200ms}}}}
pools:
  plain: {{endpoints: ["{one}"]}}
  mtp: {{endpoints: ["{two}"], speculative: {{method: mtp, tokens: 2}}}}
models:
  m: {{pools: [plain, mtp], architecture: dense}}
routing: {{exploration: 0}}
"""
        shadow = folder / "shadow.yaml"
        other = text.replace("{exploration: 0}", "{objective: static, threshold: 0}")
        shadow.write_text(other, "utf-8")
        canary = folder / "canary.yaml"
        canary.write_text(other + "canary: {share: 0.3}\n", "utf-8")
        policy = parse_policy(text, "policy.yaml", {})
        app = build(
            Settings(shadow_policy=str(shadow), canary_policy=str(canary)), policy, env={}, rng=random.Random(7)
        )
        async with serve(app, loop="asyncio", http="httptools", lifespan="on") as url:
            tasks = [asyncio.create_task(_work(url, number)) for number in range(WORKERS)]
            try:
                yield url
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _work(url: str, number: int) -> None:
    """Each prompt in each pool in turn, and by choice, so that pools can be compared."""
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        for at in range(1_000_000):
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": PROMPTS[(at // 3 + number) % len(PROMPTS)]}],
                "max_tokens": 60,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            pool = (None, "plain", "mtp")[at % 3]
            # Each a conversation of its own, so that the canary has its share of them.
            headers = {"x-gateway-session": f"{number}-{at}", **({"x-gateway-pool": pool} if pool else {})}
            await client.post("/v1/chat/completions", json=body, headers=headers)
            await asyncio.sleep(0.02)


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self._client = client

    async def query(self, expression: str) -> list[dict[str, object]]:
        """The samples of an instant query. Fails with Prometheus' own words."""
        answer = (await self._client.post(f"{self.url}/api/v1/query", data={"query": expression})).json()
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        found: list[dict[str, object]] = answer["data"]["result"]
        return found

    async def until(self, expression: str) -> None:
        """Waits until the expression has a sample."""
        async with asyncio.timeout(60):
            while not await self.query(expression):
                await asyncio.sleep(0.2)


@asynccontextmanager
async def prometheus(target: str, folder: Path) -> AsyncIterator[Prometheus]:
    """Scrapes `target` each second, with the rules of this repository, until the end of the block."""
    config = folder / "prometheus.yml"
    config.write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ["{RULES}"]
scrape_configs: [{{job_name: gateway, static_configs: [{{targets: ["{target.removeprefix("http://")}"]}}]}}]
""",
        "utf-8",
    )
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        tool("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    )
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            running = Prometheus(f"http://{address}", client)
            async with asyncio.timeout(60):
                while not await _ready(client, running.url):
                    await asyncio.sleep(0.1)
            yield running
    finally:
        process.terminate()
        await process.wait()


async def _ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/-/ready")).status_code == 200
    except httpx.TransportError:
        return False


SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
WORDS = re.compile(r"[a-zA-Z_:][\w:]*")
_KEYWORDS = frozenset({"by", "on", "or", "and", "unless", "without", "ignoring", "offset", "bool", "inf", "nan"})


def metrics_of(expression: str) -> set[str]:
    """The names of metrics in an expression of PromQL."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    names = {match[0] for match in WORDS.finditer(bare) if not bare[match.end() :].lstrip().startswith("(")}
    return {name for name in names if name.lower() not in _KEYWORDS and not re.fullmatch(r"\d\w*|e\d+", name)}


def labels_of(expression: str) -> Iterator[tuple[str, str]]:
    """Each metric with each label that a matcher names."""
    for metric, matchers in SELECTOR.findall(expression):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            yield metric, label


def exposed(page: str) -> dict[str, set[str]]:
    """The names of all samples of a page of metrics, with their labels; families without samples have none."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            found.setdefault(line.split()[2], set())
        elif line and not line.startswith("#"):
            name, _, rest = line.partition(" ")[0].partition("{")
            labels = re.findall(r'(\w+)="', rest + line.partition("{")[2])
            found.setdefault(name, set()).update(labels)
    return found
