"""The paths that generate text (`surface.ROUTED`): the seven hops of a request, in order.

1 the body, read once; 2 features; 3 estimate; 4 decision; 5 and 6 lease and attempts; 7 relay (`forward.py`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from gateway.api.body import read_body
from gateway.api.core import Core, find_model
from gateway.api.dialect import MESSAGES, OPENAI, RESPONSES, Dialect
from gateway.api.forward import Forward, admit, forward, left_behind, settle
from gateway.api.guided import renewed
from gateway.api.handler import Handler, Incoming, as_if_now
from gateway.api.labels import LabelDesk, Tried
from gateway.api.opinion import OpinionDesk
from gateway.api.responses import Home, Homes
from gateway.api.sending import Plan, served_name
from gateway.api.usage import leaves_usage_open
from gateway.errors import MethodNotAllowed, NothingAvailable
from gateway.policy.schema import Facts, Model
from gateway.request.parse import Body, parse_body, rewrite_model
from gateway.types import NO_HINTS, Api, Features, Hints

log = logging.getLogger("gateway.prompts")

LOGGED_BYTES = 65_536
"""Bytes of a request's body that are logged if the policy asks for it (`logging.prompts`)."""
LABELLED = "/v1/chat/completions"
"""Where a choice among labels may be answered without decoding."""
DIALECTS = {Api.RESPONSES: RESPONSES, Api.MESSAGES: MESSAGES}


class RoutedApi(Handler):
    """One routed path."""

    def __init__(
        self, core: Core, api: Api, homes: Homes, forward: Forward = forward, labels: LabelDesk | None = None
    ) -> None:
        """`labels` answers choices among labels without decoding; None if this gateway may not send requests itself."""
        super().__init__(core)
        self._forward = forward
        self._api = api
        self._dialect = DIALECTS.get(api, OPENAI)
        self._homes = homes
        self._labels = labels

    def dialect(self, path: str) -> Dialect:
        return self._dialect

    async def serve(self, incoming: Incoming) -> None:
        core, active, exchange = self.core, incoming.active, incoming.exchange
        policy = active.policy
        if incoming.scope["method"] != "POST":
            raise MethodNotAllowed(f"{incoming.scope['path']} takes POST")
        raw = await read_body(incoming)
        if (trace := exchange.trace) is not None:
            trace.read = core.clock()
        raw, body, exchange.translated = renewed(raw, parse_body(raw), policy.server.guided, core.metrics.guided)
        model = find_model(policy, body.model, exchange.key)
        if policy.logging.prompts:
            _log_body(exchange.request_id, model.name, raw)
        hints = incoming.head.hints if policy.server.client_hints else NO_HINTS
        exchange.features = features = core.learned.features(body, self._api, hints)
        if active.trial is not None and active.trial.takes(body.model, features, hints):
            active = active.trial.active
            policy, incoming = active.policy, replace(incoming, active=active)
            model, exchange.canary = find_model(policy, body.model), policy.version_hash
        exchange.estimate = estimate = core.learned.estimate(features, model)
        if trace is not None:
            trace.estimated = core.clock()
        facts = active.router.facts(model, features, estimate, incoming.head.matched, exchange.key)
        model, facts = active.router.choose(model, facts)
        await admit(core, incoming, model, features.input_tokens, round(estimate.output_tokens) * features.n)
        if trace is not None:
            trace.admitted = core.clock()
        while True:
            try:
                return await self._send(incoming, raw, body, model, facts, hints)
            except NothingAvailable:
                if not left_behind(core, incoming):
                    raise
            # A reload took its pools away while it waited: it is decided anew, as if it came now.
            incoming = as_if_now(core, incoming)
            active, policy = incoming.active, incoming.active.policy
            core.learned.estimator.forget(features)
            model = find_model(policy, body.model, exchange.key)
            hints = incoming.head.hints if policy.server.client_hints else NO_HINTS
            exchange.features = features = core.learned.features(body, self._api, hints)
            exchange.estimate = estimate = core.learned.estimate(features, model)
            facts = active.router.facts(model, features, estimate, incoming.head.matched, exchange.key)
            model, facts = active.router.choose(model, facts)
            settle(exchange, model)

    async def _send(self, incoming: Incoming, raw: bytes, body: Body, model: Model, facts: Facts, hints: Hints) -> None:
        """Decides, and answers by what was decided."""
        core, active, exchange = self.core, incoming.active, incoming.exchange
        features, estimate = exchange.features, exchange.estimate
        assert features is not None
        assert estimate is not None
        exchange.decision = active.router.route(model, features, estimate, core.watch, facts, hints, exchange.key)
        if active.opinion and active.opinion.wanted(estimate, exchange.decision):
            await self._ask_again(incoming, active.opinion, features, model, facts, hints)
        if exchange.trace is not None:
            exchange.trace.decided = core.clock()
        tried: Tried = frozenset()
        if self._labels is not None and model.decisions and incoming.scope["path"] == LABELLED:
            unanswered = await self._labels.answer(incoming, model, body)
            if unanswered is None:
                return
            tried = unanswered
        plan = Plan(
            model=model,
            asked=body.model,
            pools=exchange.decision.order,
            body=lambda served: raw if served == body.model else rewrite_model(raw, body, served),
            usage_open=active.policy.server.ask_usage and self._dialect is OPENAI and leaves_usage_open(body),
            exclude=tried,
        )
        if self._api is Api.RESPONSES:
            plan = self._follow(incoming, plan, body.data.get("previous_response_id"))
        await self._forward(core, incoming, plan)

    async def _ask_again(
        self, incoming: Incoming, desk: OpinionDesk, features: Features, model: Model, facts: Facts, hints: Hints
    ) -> None:
        """Decides again with the length from a second opinion, if it comes in time."""
        core, exchange = self.core, incoming.exchange
        tokens = await desk.ask(features)
        core.metrics.opinion(answered=tokens is not None)
        if tokens is None:
            return
        exchange.features = features = replace(features, hint_tokens=tokens)
        exchange.estimate = estimate = core.learned.estimate(features, model)
        router, facts = incoming.active.router, replace(facts, task=estimate.task, output_tokens=estimate.output_tokens)
        exchange.decision = router.route(model, features, estimate, core.watch, facts, hints, exchange.key)

    def _follow(self, incoming: Incoming, plan: Plan, previous: object) -> Plan:
        """Notes where this response will be stored, and sends the request to where the one that it continues is."""
        exchange, policy = incoming.exchange, incoming.active.policy
        exchange.on_first = lambda beginning: self._learn(incoming, plan.model, plan.asked, beginning)
        home = self._homes.find(previous, exchange.key) if previous else None
        if home is None or home.pool not in policy.pools:
            return plan
        live = self.core.pools.find(home.pool)
        others = frozenset(row.url for row in (live.endpoints if live else ())) - {home.endpoint}
        if exchange.decision is not None:
            exchange.decision = replace(exchange.decision, pool=home.pool, order=(home.pool,))
        return replace(plan, pools=(home.pool,), exclude=others)

    def _learn(self, incoming: Incoming, model: Model, asked: str | None, beginning: bytes) -> None:
        exchange = incoming.exchange
        if (lease := exchange.lease) is not None:
            served = served_name(incoming.active.policy, model, lease.pool)
            key = exchange.key.name if exchange.key else None
            self._homes.learn(beginning, Home(model.name, lease.pool, lease.endpoint.url, asked, served, key))


def _log_body(request_id: str, model: str, raw: bytes) -> None:
    """Writes a request's body to the log, on one line."""
    text = raw[:LOGGED_BYTES].replace(b"\n", b" ").replace(b"\r", b" ").decode(errors="replace")
    log.info("prompt", extra={"fields": {"id": request_id, "model": model, "body": text}})
