"""A simulated server under uvicorn for a test, fast: H200 speeds, twenty times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families

from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.servers import serve

FAST = SimSettings(model="google/gemma-4-E4B-it", served_names=("e4b", "gemma"), profile="h200", time_scale=20.0)
FAST_MTP = replace(FAST, k=2)


def say(text: str, **fields: Any) -> dict[str, Any]:
    """A chat body with one user turn."""
    return {"model": "e4b", "messages": [{"role": "user", "content": text}], **fields}


@dataclass(frozen=True)
class Server:
    """A running server and a client for it."""

    url: str
    client: httpx.AsyncClient

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)

    async def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        """A whole answer's body."""
        answer = await self.post("/v1/chat/completions", say(text, **fields))
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def events(self, body: object, path: str = "/v1/chat/completions") -> list[Any]:
        """A stream's events, parsed; `[DONE]` as text."""
        answer = await self.post(path, body)
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        return [line if line == "[DONE]" else orjson.loads(line) for line in lines]

    async def faults(self, **faults: Any) -> None:
        answer = await self.post("/sim/faults", faults)
        assert answer.status_code == 200, answer.text

    async def stats(self) -> dict[str, Any]:
        body: dict[str, Any] = (await self.client.get("/sim/stats")).json()
        return body

    async def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Samples by name, then by labels; `model_name` and `engine` are left out."""
        text = (await self.client.get("/metrics")).text
        samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
                samples.setdefault(sample.name, {})[tuple(sorted(labels.items()))] = sample.value
        return samples


@asynccontextmanager
async def sim(settings: SimSettings = FAST) -> AsyncIterator[Server]:
    """Runs one simulated server."""
    async with serve(create_app(settings)) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield Server(url, client)
