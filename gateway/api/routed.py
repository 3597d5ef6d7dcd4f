"""`/v1/chat/completions` and `/v1/completions`: the seven hops of a request, in order.

1 the body, read once; 2 features; 3 estimate; 4 decision; 5 and 6 lease and attempts; 7 relay (`forward.py`).
"""

from __future__ import annotations

from gateway.api.core import Core, find_model
from gateway.api.forward import Plan, admit, forward
from gateway.api.handler import Handler, Incoming
from gateway.errors import MethodNotAllowed
from gateway.request.features import extract
from gateway.request.parse import parse_body, rewrite_model
from gateway.types import NO_HINTS, Api


class RoutedApi(Handler):
    """One routed path."""

    def __init__(self, core: Core, api: Api) -> None:
        super().__init__(core)
        self._api = api

    async def serve(self, incoming: Incoming) -> None:
        core, active, exchange = self.core, incoming.active, incoming.exchange
        policy = active.policy
        if incoming.scope["method"] != "POST":
            raise MethodNotAllowed(f"{incoming.scope['path']} takes POST")
        raw = await incoming.down.body(policy.server.max_body_bytes, incoming.head.content_length)
        body = parse_body(raw)
        model = find_model(policy, body.model)
        hints = incoming.head.hints if policy.server.client_hints else NO_HINTS
        exchange.features = features = extract(body, self._api, hints, core.learned.tokens)
        exchange.estimate = estimate = core.learned.estimator.estimate(features)
        facts = active.router.facts(model, features, estimate, incoming.head.matched, exchange.key)
        model, facts = active.router.choose(model, facts)
        await admit(core, incoming, model, features.input_tokens, round(estimate.output_tokens) * features.n)
        exchange.decision = active.router.route(model, features, estimate, core.watch, facts, hints, exchange.key)
        plan = Plan(
            model=model,
            asked=body.model,
            pools=exchange.decision.order,
            body=lambda served: raw if served == body.model else rewrite_model(raw, body, served),
        )
        await forward(core, incoming, plan)
