"""`/v1/models`: the policy's models, with what their back ends report about them.

The list is the policy's, so a back end that is down removes nothing from it. Fields of a back end's own entry (such as
`max_model_len`) are added; the answer of each endpoint is cached for a few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from gateway.api.core import Core, find_model
from gateway.errors import UnknownModel
from gateway.policy.schema import AccessKey, Model
from gateway.telemetry.fetch import Fetch, FetchFailed
from gateway.upstream.endpoint import Endpoint

ASK_SECONDS = 1.0
KEEP_SECONDS = 10.0


def may_use(key: AccessKey | None, model: Model) -> bool:
    """Whether the key's `models` include this one."""
    return key is None or key.models is None or model.name in key.models


class ModelList:
    """Answers the two model routes as JSON objects."""

    def __init__(self, core: Core, fetch: Fetch, clock: Callable[[], float]) -> None:
        self._core = core
        self._fetch = fetch
        self._clock = clock
        self._cards: dict[str, tuple[float, dict[str, dict[str, Any]]]] = {}

    async def everything(self, key: AccessKey | None) -> dict[str, Any]:
        """The models that the key may use."""
        models = [m for m in self._core.active.policy.models.values() if may_use(key, m)]
        return {"object": "list", "data": list(await asyncio.gather(*map(self._card, models)))}

    async def one(self, name: str, key: AccessKey | None) -> dict[str, Any]:
        """One model by name or alias. Raises UnknownModel, also for a model that the key may not use."""
        model = find_model(self._core.active.policy, name, key)
        if not may_use(key, model):
            raise UnknownModel(f"the model `{name}` does not exist for this key", param="model")
        card = await self._card(model)
        return {**card, "id": name}

    async def _card(self, model: Model) -> dict[str, Any]:
        card: dict[str, Any] = {"id": model.name, "object": "model", "created": 0, "owned_by": "mtp-gateway"}
        reported = await self._reported(model)
        card.update({key: value for key, value in reported.items() if key != "id"})
        if model.context_length is not None:
            card["max_model_len"] = min(model.context_length, card.get("max_model_len") or model.context_length)
        if model.aliases:
            card["aliases"] = list(model.aliases)
        return card

    async def _reported(self, model: Model) -> dict[str, Any]:
        """The entry of the first of the model's back ends that answers, {} if none does."""
        pools = self._core.pools
        for name in model.pools:
            served = self._core.active.policy.pools[name].model or model.name
            live = next((pool for pool in pools if pool.name == name), None)
            for endpoint in (e for e in live.endpoints if e.available()) if live else ():
                if card := (await self._ask(endpoint)).get(served):
                    return card
        return {}

    async def _ask(self, endpoint: Endpoint) -> dict[str, dict[str, Any]]:
        now = self._clock()
        kept = self._cards.get(endpoint.url)
        if kept and now - kept[0] < KEEP_SECONDS:
            return kept[1]
        cards: dict[str, dict[str, Any]] = {}
        try:
            answer = await self._fetch.get(endpoint.url, "/v1/models", endpoint.api_key, ASK_SECONDS)
            cards = {row["id"]: row for row in orjson.loads(answer)["data"]}
        except (FetchFailed, ValueError, KeyError, TypeError):
            # If a back end cannot say what it serves, the list only lacks its details.
            pass
        # Discovered endpoints come and go: those that are not asked again are forgotten.
        await self._fetch.forget(endpoint.url)
        self._cards = {url: card for url, card in self._cards.items() if now - card[0] < KEEP_SECONDS}
        self._cards[endpoint.url] = (now, cards)
        return cards
