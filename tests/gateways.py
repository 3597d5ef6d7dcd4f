"""A real gateway on loopback for tests: made by the one constructor, served by uvicorn."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.api.core import Core
from gateway.app import build
from gateway.discovery.found import Follow
from gateway.policy.load import load_policy, parse_policy
from gateway.server import ClientConnection
from gateway.settings import Settings
from tests.servers import serve


@dataclass(frozen=True)
class Running:
    """A served gateway: its address for clients, its parts for asserts."""

    url: str
    core: Core

    @property
    def in_flight(self) -> int:
        return sum(pool.in_flight for pool in self.core.pools)

    def counted(self, name: str, **labels: str) -> float:
        """A sample's sum over all label sets that hold these labels."""
        self.core.afterwards.flush()
        self.core.metrics.settle()
        return sum(
            sample.value
            for family in self.core.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; a minute at most."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def gateway(
    policy: str | Path,
    env: Mapping[str, str] | None = None,
    follow: Follow | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Running]:
    """Serves a gateway on the policy's text, or on a file, which is then watched. `follow` finds its endpoints."""
    env = env or {}
    if isinstance(policy, Path):
        settings, loaded = Settings(policy=str(policy)), load_policy(policy, env)
    else:
        settings, loaded = Settings(), parse_policy(policy, "policy.yaml", env)
    app = build(settings, loaded, env=env, clock=clock, rng=random.Random(7), follow=follow)
    async with serve(app, loop="asyncio", http=ClientConnection, lifespan="on", server_header=False) as url:
        yield Running(url, app.core)


def one_pool(*urls: str, extra: str = "") -> str:
    """The smallest policy: model `m` on one plain pool `plain`, no probes and no scraping, so that a stub sees only
    the test's own requests. `extra` is more YAML for the pool, in flow style, starting with a comma."""
    listed = ", ".join(f'"{url}"' for url in urls)
    return f"""
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}}}
pools:
  plain: {{endpoints: [{listed}]{extra}}}
models:
  m: {{pools: [plain]}}
"""


def two_pools(plain: str, mtp: str, objective: str = "expected_time") -> str:
    """Model `m` on a plain and an MTP pool, no probes and no scraping."""
    return f"""
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}}}
pools:
  plain: {{endpoints: ["{plain}"]}}
  mtp: {{endpoints: ["{mtp}"], speculative: {{method: mtp, tokens: 2}}}}
models:
  m: {{pools: [plain, mtp], aliases: [alias], architecture: dense}}
routing: {{objective: {objective}, threshold: 64}}
"""
