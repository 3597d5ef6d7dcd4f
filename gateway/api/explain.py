"""A decision without a request: hops 2 to 4 by the code of the request path, for `explain` on the wire and offline."""

from __future__ import annotations

from typing import Any

from gateway.api.core import Active, Estimates, find_model
from gateway.api.head import Head
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.routing.explain import explanation
from gateway.types import NO_HINTS, Api, LoadView, PoolLoad


class IdlePools:
    """Every pool up and idle: the view of a decision that is made away from the live gateway."""

    def load(self, pool: str) -> PoolLoad:
        return PoolLoad(up=1)


def explain(active: Active, estimator: Estimates, view: LoadView, raw: bytes, head: Head) -> dict[str, Any]:
    """The public explanation of one body. Raises what a real request would raise before it is sent."""
    policy = active.policy
    hints = head.hints if policy.server.client_hints else NO_HINTS
    body = parse_body(raw)
    model = find_model(policy, body.model)
    features = extract(body, Api.CHAT if "messages" in body.data else Api.COMPLETIONS, hints)
    estimate = estimator.estimate(features)
    facts = active.router.facts(model, features, estimate, head.matched)
    model, facts = active.router.choose(model, facts)
    decision = active.router.route(model, features, estimate, view, facts, hints)
    return explanation(features, estimate, decision)
