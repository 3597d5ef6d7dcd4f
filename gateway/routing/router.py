"""Hop 4: which pool, and why. One synchronous function over the request, the policy and the pools' load.

1. Gates take pools out, each with its reason.
2. A required rule, else the client's hint, else a preferring rule narrows what is left; a preference (and a hint)
   yields where it would leave nothing.
3. The objective ranks the rest: by expected seconds, or by the static threshold.

Every decision keeps all pools' costs, the losing ones too: explain, the decision log and regret read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.errors import NothingAvailable
from gateway.policy.schema import AccessKey, Facts, Model, Policy, Pool, Rule, Target
from gateway.routing.cost import PoolSpeed, pool_speed
from gateway.routing.gates import capability_gate, state_gate
from gateway.types import Decision, Estimate, Features, Hints, LoadView, PoolCost, PoolKind, Reason

TIE_SHARE = 0.05
TIE_SECONDS = 0.1
"""Two times closer than this share, or than these seconds, are equal. The estimate is not that exact, a tenth of a
second is the limit of what feels instantaneous (Nielsen 1993), and a short request in the MTP pool stalls the long
ones that run there."""

NO_HEADERS: Mapping[str, str] = {}


@dataclass(slots=True)
class Candidate:
    """One pool of the model while a decision is made."""

    pool: Pool
    seconds: float
    can: bool
    """Passes the capability gates."""
    out: str | None
    """The reason of the first gate that it does not pass."""


class Router:
    """The decision under one policy. Made anew for every policy; holds nothing that a reload could lose."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._pools: dict[str, tuple[tuple[Pool, PoolSpeed], ...]] = {}
        for model in policy.models.values():
            rows = (policy.pools[name] for name in model.pools)
            self._pools[model.name] = tuple((pool, pool_speed(model, pool)) for pool in rows)

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
    ) -> Decision:
        """Chooses the pool. `model` must have pools (see `Policy.choose` for models that stand for others).

        Raises NothingAvailable when a required rule points only to pools that cannot take the request.
        """
        candidates = self._candidates(model, features, estimate, view, key)
        able = [c for c in candidates if c.can]
        # Where no pool can do it, the back end's own refusal is the right answer, so nothing is gated.
        free = [c for c in able if c.out is None] or able or candidates
        rule = next((r for r in self.policy.routing.rules if r.when.matches(facts)), None)
        chosen, reason, detail = self._narrow(free, able or candidates, rule, hints)
        if reason is None:
            reason, detail = _why_narrow(candidates, chosen)
        ranked, ranked_by = self._rank(chosen, estimate)
        others = [c for c in free if c not in ranked] if not (rule and rule.required) else []
        return Decision(
            model=model.name,
            pool=ranked[0].pool.name,
            reason=reason or ranked_by,
            detail=detail,
            order=tuple(c.pool.name for c in ranked + sorted(others, key=_seconds)),
            costs=tuple(PoolCost(c.pool.name, c.pool.kind, c.seconds, c.out) for c in candidates),
        )

    def _candidates(
        self, model: Model, features: Features, estimate: Estimate, view: LoadView, key: AccessKey | None
    ) -> list[Candidate]:
        found = []
        for pool, speed in self._pools[model.name]:
            load = view.load(pool.name)
            cannot = capability_gate(features, model, pool, key)
            seconds = speed.seconds(features, estimate, load)
            found.append(Candidate(pool, seconds, cannot is None, cannot or state_gate(load)))
        return found

    def _narrow(
        self, free: list[Candidate], able: list[Candidate], rule: Rule | None, hints: Hints
    ) -> tuple[list[Candidate], Reason | None, str]:
        """Rule and hint applied to the free candidates."""
        if rule and rule.required:
            if not (required := [c for c in able if rule.target.accepts(c.pool)]):
                raise NothingAvailable(
                    f"rule {rule.name!r} requires {rule.target}, which cannot serve this request", retry_after=1
                )
            return required, Reason.RULE, rule.name
        asked = self.policy.target(hints.pool) if hints.pool else None
        if asked and (wanted := _accepted(free, asked)):
            return wanted, Reason.CLIENT, hints.pool or ""
        if rule and (preferred := _accepted(free, rule.target)):
            return preferred, Reason.RULE, rule.name
        return free, None, ""

    def _rank(self, candidates: list[Candidate], estimate: Estimate) -> tuple[list[Candidate], Reason]:
        routing = self.policy.routing
        wanted = PoolKind.MTP if estimate.output_tokens >= routing.threshold else PoolKind.PLAIN
        if routing.objective == "static":
            return sorted(candidates, key=lambda c: (c.pool.kind is not wanted, c.seconds)), Reason.THRESHOLD
        ranked = sorted(candidates, key=_seconds)
        best = ranked[0].seconds
        margin = max(best * TIE_SHARE, TIE_SECONDS)
        if len(ranked) > 1 and ranked[1].seconds - best < margin and ranked[0].pool.kind is not wanted:
            for at, candidate in enumerate(ranked[1:], 1):
                if candidate.seconds - best < margin and candidate.pool.kind is wanted:
                    ranked.insert(0, ranked.pop(at))
                    return ranked, Reason.TIE
        return ranked, Reason.FASTER


def _seconds(candidate: Candidate) -> float:
    return candidate.seconds


def _accepted(candidates: list[Candidate], target: Target) -> list[Candidate]:
    return [c for c in candidates if target.accepts(c.pool)]


def _why_narrow(candidates: list[Candidate], chosen: list[Candidate]) -> tuple[Reason | None, str]:
    """The reason where one pool was left before any ranking."""
    if len(chosen) > 1:
        return None, ""
    if len(candidates) == 1:
        return Reason.ONLY_POOL, ""
    for candidate in candidates:
        if not candidate.can and candidate not in chosen:
            return Reason.GATE, candidate.out or ""
    return Reason.SPILL, next((c.out for c in candidates if c.out), "") or ""
