"""What operators' routes tell."""

from __future__ import annotations

import json

from tests.gateways import gateway, two_pools
from tests.raw_client import get


async def test_the_pools_page_tells_when_drafting_pays() -> None:
    """Curves by pool and crossovers by pair of pools, for every model that has pools."""
    async with gateway(two_pools("http://127.0.0.1:1", "http://127.0.0.1:2")) as running:
        page = json.loads((await get(running.url, "/gateway/pools")).body)

    (model,) = page["models"].values()
    assert [curve["pool"] for curve in model["curves"]] == ["plain", "mtp"]
    assert {row["task"] for row in model["crossovers"]} == {"chat", "code", "structured_json"}
    assert all("MTP" in row["summary"] for row in model["crossovers"])
    assert page["slices"] == []
