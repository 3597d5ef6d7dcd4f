"""Hop 4: choose the pool, and say why. One synchronous function of the request, the policy, the load and the curves.

1. Gates remove pools, each with a reason.
2. A rule with `require`, else the client's hint, else a rule with `prefer` narrows the remaining pools. A hint or a
   preference is ignored if it would leave none.
3. The objective ranks the pools: by the request's own expected time, by that plus the time it costs others, or by the
   static threshold.
4. A conversation stays in the pool that has its prefix cached, unless another one is much faster.
5. A small share of requests explores.

A decision records the costs of all pools, also of those not taken, for explain, the decision log, learning and regret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.errors import Forbidden, NothingAvailable
from gateway.policy.schema import AccessKey, Facts, Model, Policy, Pool, Rule, Target
from gateway.records import make
from gateway.routing.cost import pool_curve
from gateway.routing.crossovers import describe
from gateway.routing.curve import Curve
from gateway.routing.gates import capability_gate, state_gate
from gateway.routing.rank import Candidate, rank
from gateway.routing.state import RoutingState, cold_state
from gateway.routing.sticky import STAY, Place, goes_on, thread_of, turns_to_come
from gateway.types import Decision, Estimate, Features, Hints, LoadView, PoolCost, Reason

NO_HEADERS: Mapping[str, str] = {}


class Router:
    """Decides under one policy. Each policy gets a new router; `state` holds what was learned and outlives it."""

    def __init__(self, policy: Policy, state: RoutingState | None = None) -> None:
        self.policy = policy
        self.state = state or cold_state()
        self._fleet = policy.routing.objective == "fleet"
        self._pools: dict[str, tuple[tuple[Pool, Curve], ...]] = {}
        for model in policy.models.values():
            rows = (policy.pools[name] for name in model.pools)
            self._pools[model.name] = tuple((pool, pool_curve(self.state.curves, model, pool)) for pool in rows)

    def choose(self, model: Model, facts: Facts) -> tuple[Model, Facts]:
        """The model that serves the request, where `model` stands for others, and the facts under its name."""
        chosen = self.policy.choose(model, facts)
        return (model, facts) if chosen is model else (chosen, replace(facts, model=chosen.name))

    def facts(
        self,
        model: Model,
        features: Features,
        estimate: Estimate,
        headers: Mapping[str, str] = NO_HEADERS,
        key: AccessKey | None = None,
    ) -> Facts:
        """What conditions of the policy may ask about this request."""
        return Facts(
            model=model.name,
            task=estimate.task,
            output_tokens=estimate.output_tokens,
            input_tokens=features.input_tokens,
            language=features.language,
            tools=features.tools,
            structure=features.structure,
            thinking=features.thinking,
            stream=features.stream,
            headers=headers,
            key=key.name if key else None,
        )

    def route(
        self,
        model: Model,
        features: Features,
        estimate: Estimate,
        view: LoadView,
        facts: Facts,
        hints: Hints,
        key: AccessKey | None = None,
        *,
        explore: bool = True,
    ) -> Decision:
        """Chooses the pool. `model` must have pools (see `Policy.choose` for models that stand for others).

        `explore=False` answers for a request that is not sent. Raises NothingAvailable when a required rule points
        only to pools that cannot take the request, Forbidden when the key may use none of the model's pools.
        """
        routing, state = self.policy.routing, self.state
        thread, name = thread_of(features, hints), model.name
        place = None
        if thread and goes_on(features, hints):
            place = state.sticky.find(name, thread, state.clock(), routing.stickiness)
        candidates, costs, barred = self._candidates(model, features, estimate, view, key, place)
        # A pool that the key may not use stays out, even where gates and rules are relaxed below.
        open_ = candidates if key is None or key.pools is None else [c for c in candidates if c.pool.name in key.pools]
        if not open_:
            raise Forbidden(f"key {key.name if key else ''!r} may use no pool of `{model.name}`", param="model")
        able = free = open_
        if barred:
            able = [c for c in open_ if c.can]
            # If no pool can serve it, the back end's own refusal is the right answer, so no gate applies.
            free = [c for c in open_ if c.out is None] or able or open_
        rule = next((r for r in routing.rules if r.when.matches(facts)), None) if routing.rules else None
        chosen, reason, detail = free, None, ""
        if rule or hints.pool:
            chosen, reason, detail = self._narrow(free, able, open_, rule, hints)
        if reason is None and len(chosen) == 1:
            reason, detail = _why_alone(candidates, chosen)
        ranked, ranked_by = rank(chosen, estimate, routing, state.away, name)
        if reason is None:
            draw = explore and not (key and key.priority > 0)
            ranked, ranked_by = self._settle(name, ranked, ranked_by, place, draw=draw)
        order = [c.pool.name for c in ranked]
        first = order[0]
        rest = able or open_
        if len(ranked) < len(rest) and not (rule and rule.required):
            # Pools that are full or down now come last: they may have recovered when the request waits or fails over.
            order += [c.pool.name for c in sorted(rest, key=_late) if c not in ranked]
        endpoint, cached = (place.endpoint, place.tokens) if place is not None and place.pool == first else (None, 0)
        # By position: keywords would take three times as long (CPython 3.11).
        return Decision(name, first, reason or ranked_by, detail, tuple(order), tuple(costs), endpoint, cached, thread)

    def _settle(
        self, model: str, ranked: list[Candidate], ranked_by: Reason, place: Place | None, *, draw: bool
    ) -> tuple[list[Candidate], Reason]:
        """Puts another pool first where only the objective has ranked: the conversation's pool, the pool whose turn
        it is, or one to explore."""
        state = self.state
        first, reason = ranked[0], ranked_by
        if place is not None:
            kept = _stay(ranked, place)
            if kept is not None and kept is not first:
                first, reason = kept, Reason.STICKY
        elif len(ranked) > 1:
            now = state.clock()
            if self._fleet:
                first = state.turns.first(model, ranked, now)
            if draw and self.policy.routing.exploration:
                other = state.explorer.pick(ranked, self.policy.routing.exploration, now)
                if other is not None:
                    first, reason = other, Reason.EXPLORE
        return ([first, *(c for c in ranked if c is not first)] if first is not ranked[0] else ranked), reason

    def describe(self, view: LoadView) -> dict[str, dict[str, Any]]:
        """Speed curves and crossovers by model, at the load of now; see `crossovers.describe`."""
        found = {}
        for name, pools in self._pools.items():
            loads = [view.load(pool.name) for pool, _ in pools]
            busy = [load.in_flight / load.up for load in loads if load.up]
            found[name] = describe([curve for _, curve in pools], sum(busy) / len(busy) if busy else 0.0)
        return found

    def _candidates(
        self,
        model: Model,
        features: Features,
        estimate: Estimate,
        view: LoadView,
        key: AccessKey | None,
        place: Place | None,
    ) -> tuple[list[Candidate], list[PoolCost], bool]:
        """The model's pools, the cost of each, and whether any of them is out."""
        found, costs, barred = [], [], False
        tokens, task, prompt, fleet = estimate.output_tokens, estimate.task, features.input_tokens, self._fleet
        for pool, curve in self._pools[model.name]:
            name = pool.name
            up, _, _, full, _, _ = load = view.load(name)
            cannot = capability_gate(features, model, pool, key, load)
            cached = min(place.tokens, prompt - 1) if place is not None and place.pool == name else 0.0
            # Tuples are taken apart: a field by its name is six times as slow as a slot (CPython 3.11).
            _, wait, first, decode, imposed, _ = terms = curve.terms(tokens, task, prompt, load, cached)
            own = wait + first + decode
            cost = own + imposed if fleet else own
            if place is not None and place.pool != name:
                # A move recomputes the prefix once; later turns find it cached there.
                there = curve.terms(tokens, task, prompt, load, min(place.tokens, prompt - 1))
                settled = there.wait + there.first + there.decode + (there.imposed if fleet else 0.0)
                cost = settled + (cost - settled) / (1.0 + turns_to_come(features))
            out = None
            if cannot is not None or full or not up:
                barred, out = True, cannot or state_gate(load)
            found.append(Candidate(pool, curve, terms, cost, cannot is None, out))
            costs.append(make(PoolCost, (name, pool.kind, own, out, terms)))
        return found, costs, barred

    def _narrow(
        self, free: list[Candidate], able: list[Candidate], open_: list[Candidate], rule: Rule | None, hints: Hints
    ) -> tuple[list[Candidate], Reason | None, str]:
        """Applies the rule and the hint to the free candidates. A required pool is taken even against a gate."""
        if rule and rule.required:
            if not (required := _accepted(able, rule.target) or _accepted(open_, rule.target)):
                raise NothingAvailable(
                    f"rule {rule.name!r} requires {rule.target}, which cannot serve this request", retry_after=1
                )
            return required, Reason.RULE, rule.name
        asked = self.policy.target(hints.pool) if hints.pool else None
        if asked and (wanted := _accepted(free, asked)):
            return wanted, Reason.CLIENT, str(asked)
        if rule and (preferred := _accepted(free, rule.target)):
            return preferred, Reason.RULE, rule.name
        return free, None, ""


def _late(candidate: Candidate) -> tuple[bool, float]:
    return candidate.out is not None, candidate.total


def _accepted(candidates: list[Candidate], target: Target) -> list[Candidate]:
    return [c for c in candidates if target.accepts(c.pool)]


def _stay(ranked: list[Candidate], place: Place) -> Candidate | None:
    """The conversation's pool, or None if the best pool is faster by more than `STAY`."""
    kept = next((c for c in ranked if c.pool.name == place.pool), None)
    if kept is None or ranked[0].total < (1.0 - STAY) * kept.total:
        return None
    return kept


def _why_alone(candidates: list[Candidate], chosen: list[Candidate]) -> tuple[Reason, str]:
    """The reason and detail when only one pool was left before ranking."""
    if len(candidates) == 1:
        return Reason.ONLY_POOL, ""
    for candidate in candidates:
        if not candidate.can and candidate not in chosen:
            return Reason.GATE, candidate.out or ""
    return Reason.SPILL, next((c.out for c in candidates if c.out), "") or ""
