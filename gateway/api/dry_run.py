"""A decision without sending a request: hops 2 to 4 of the request path, for `explain` over HTTP and offline."""

from __future__ import annotations

from typing import Any

from gateway.api.core import Active, Learned, find_model
from gateway.api.guided import renewed
from gateway.api.head import Head
from gateway.policy.schema import Model, Policy
from gateway.request.content import read
from gateway.request.features import extract
from gateway.request.formats import as_chat
from gateway.request.labels import read_label_question
from gateway.request.parse import Body, parse_body
from gateway.routing.decision_json import explanation
from gateway.types import NO_HINTS, Api, Decision, Features, LoadView, Need, PoolKind, PoolLoad


class IdlePools:
    """A view of the pools in which all are up and idle, for decisions away from a live gateway."""

    def load(self, pool: str) -> PoolLoad:
        return PoolLoad(up=1)


def format_of(data: dict[str, object]) -> Api:
    """The API of a body whose path is unknown. A Messages body without fields of its own counts as chat."""
    if "messages" in data:
        return Api.MESSAGES if "system" in data or "stop_sequences" in data else Api.CHAT
    return Api.RESPONSES if "input" in data else Api.COMPLETIONS


def prompt_texts(body: Body) -> list[str]:
    """The texts of a body's prompt, without the chat template's own tokens and without images."""
    api = format_of(body.data)
    data = body.data if api in (Api.CHAT, Api.COMPLETIONS) else as_chat(body.data, api)
    return read(data, api).texts


def explain(active: Active, learned: Learned, view: LoadView, raw: bytes, head: Head) -> dict[str, Any]:
    """The public explanation of one body. Raises what a real request would raise before it was sent."""
    policy = active.policy
    hints = head.hints if policy.server.client_hints else NO_HINTS
    _, body, _ = renewed(raw, parse_body(raw), policy.server.guided, lambda action: None)
    model = find_model(policy, body.model)
    features = extract(body, format_of(body.data), hints, learned.tokens)
    estimate = learned.estimate(features, model)
    facts = active.router.facts(model, features, estimate, head.matched)
    model, facts = active.router.choose(model, facts)
    decision = active.router.route(model, features, estimate, view, facts, hints, explore=False)
    found = explanation(features, estimate, decision)
    if asks_first(policy, model, features, body, decision):
        found["asks_first"] = "/v1/decisions"
    if hints.pool and policy.target(hints.pool) is None:
        # The request itself is served: a pool that the policy renames must not cost its clients their answers.
        names = ", ".join(dict.fromkeys([*PoolKind, *policy.pools]))
        found["ignored"] = [f"x-gateway-pool: there is no pool {hints.pool[:80]!r}, only {names}"]
    return found


def asks_first(policy: Policy, model: Model, features: Features, body: Body, decision: Decision) -> bool:
    """Whether a label would first be asked for without decoding, see `labels`."""
    if not model.decisions or features.api is not Api.CHAT or features.thinking or model.reasoning == "always":
        return False
    able = any(Need.LOGPROBS not in policy.pools[name].refuses for name in decision.order)
    return able and not body.cuts and read_label_question(body.data) is not None
