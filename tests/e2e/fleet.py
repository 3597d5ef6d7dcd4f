"""A gateway in front of one plain and one MTP server, both simulated: what clients under test talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import Random

from gateway.app import build
from gateway.policy.load import parse_policy
from gateway.settings import Settings
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.gateways import Running, gateway
from tests.servers import serve, serve_in_thread

MODEL = "gemma-4-e4b"


def sim(k: int) -> SimSettings:
    return SimSettings(served_names=("served-e4b",), k=k, profile="h200", time_scale=50)


def policy_for(plain: str, mtp: str, extra: str = "") -> str:
    return f"""
version: 1
defaults: {{telemetry: {{interval: off}}}}
pools:
  plain: {{endpoints: ["{plain}"], model: served-e4b, profile: h200}}
  mtp: {{endpoints: ["{mtp}"], model: served-e4b, profile: h200, speculative: {{method: mtp, tokens: 2}}}}
models:
  {MODEL}: {{pools: [plain, mtp], architecture: dense, aliases: [e4b]}}
{extra}"""


@dataclass(frozen=True)
class Fleet:
    """The addresses."""

    gateway: Running
    plain: str
    mtp: str

    @property
    def url(self) -> str:
        return self.gateway.url


@asynccontextmanager
async def fleet(extra: str = "", env: dict[str, str] | None = None) -> AsyncIterator[Fleet]:
    """In this loop, for asynchronous clients."""
    async with (
        serve(create_app(sim(0))) as plain,
        serve(create_app(sim(2))) as mtp,
        gateway(policy_for(plain, mtp, extra), env) as running,
    ):
        yield Fleet(running, plain, mtp)


@contextmanager
def fleet_in_threads(extra: str = "", env: dict[str, str] | None = None) -> Iterator[str]:
    """In threads, for blocking clients and other processes: the gateway's address."""
    with serve_in_thread(create_app(sim(0))) as plain, serve_in_thread(create_app(sim(2))) as mtp:
        policy = parse_policy(policy_for(plain, mtp, extra), "policy.yaml", env or {})
        app = build(Settings(), policy, env=env or {}, rng=Random(7))
        with serve_in_thread(app, loop="asyncio", http="httptools", lifespan="on", server_header=False) as url:
            yield url
