"""Which models can be served now, and which endpoints say that they serve other ones.

What an engine serves is known once telemetry has read its model list; until then the policy is believed. A list is a
hint, not a proof (vLLM can be told not to check names, and loads adapters while it runs), so requests are sent all the
same: a mismatch is only shown, and one wrong name never takes a model out of service.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.api.core import Core


@dataclass(frozen=True, slots=True)
class NotServed:
    """Endpoints of a model's pool that report only other models."""

    model: str
    pool: str
    served_name: str
    """The name under which they are asked for the model."""
    endpoints: tuple[str, ...]


def unready(core: Core) -> list[str]:
    """Models of the policy of which no pool can take traffic."""
    models = (model for model in core.active.policy.models.values() if model.pools)
    return [m.name for m in models if not any(core.pools.load(pool).up for pool in m.pools)]


def not_served(core: Core) -> list[NotServed]:
    """For every model and pool, the endpoints that report only other models."""
    found = []
    for model in core.active.policy.models.values():
        for name in model.pools:
            pool = core.pools.find(name)
            lacking = [e.url for e in pool.endpoints if core.watch.view.lacks(pool, model, e.url)] if pool else []
            if pool is not None and lacking:
                found.append(NotServed(model.name, name, pool.policy.model or model.name, tuple(lacking)))
    return found
