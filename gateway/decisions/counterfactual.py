"""What another policy would have decided: `gateway replay` on a log, the shadow policy on live traffic, and the live
policy on what the canary decided.

The real router decides again: on the request's numbers, on the estimate made then, and on the pools' load as it was,
which is read off the costs of the decision. Its curves learn from the same outcomes, in their order, and conversations
follow the new choices. What a changed choice would have gained comes from the curves for both pools, at that load and
for the answer's real length, so that luck and noise of the single request do not count:

    gain = expected(pool taken) - expected(pool of the other policy)        seconds; above 0 the other policy wins

What a row does not hold counts as absent: request headers in conditions, and sessions named by header. A pool that the
log does not know counts as idle. A pool whose k the other policy changes is learned from answers with the old k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.errors import GatewayError
from gateway.policy.schema import AccessKey, Model, Policy
from gateway.routing.curves import Curves
from gateway.routing.router import Router
from gateway.routing.state import RoutingState
from gateway.types import Decision, Estimate, Features, Hints, Outcome, PoolCost, PoolLoad, Reason, Task

_MANY = 1000
"""Endpoints of a pool that is given as its load per endpoint."""
_WINDOW = "context window "


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One request under the other policy."""

    request_id: str
    model: str
    task: Task
    before: str
    """The pool that took it."""
    after: str | None
    """The pool of the other policy; None where that one refuses the request."""
    reason_before: Reason
    reason: Reason | None
    seconds: float
    """What the request took, from sending on."""
    gain: float | None
    """Seconds; 0 where nothing changes, None where the answer's length or a pool's speed is unknown."""
    regret_before: float = 0.0
    """What the choice lost against the best pool, by the curves."""
    regret: float = 0.0

    @property
    def flips(self) -> bool:
        return self.after != self.before


class Counterfactual:
    """The other policy at work. Call `judge` in the order in which requests ended."""

    def __init__(self, policy: Policy, state: RoutingState) -> None:
        """`state` must be the other policy's own: its curves differ where its pools do."""
        self.policy = policy
        self.state = state
        self._router = Router(policy, state)
        self._keys = {key.name: key for key in policy.access.keys} if policy.access else {}

    def judge(self, outcome: Outcome) -> Verdict | None:
        """The verdict; None for a request that was never routed, or whose model the other policy does not have."""
        features, estimate, decision = outcome.features, outcome.estimate, outcome.decision
        if features is None or estimate is None or decision is None:
            return None
        model = self.policy.resolve(features.model) or self.policy.resolve(decision.model)
        if model is None:
            return None
        other = self._decide(model, features, estimate, decision, self._keys.get(outcome.key or ""))
        verdict = self._verdict(outcome, features, estimate, decision, other)
        self.learn(outcome, other)
        return verdict

    def learn(self, outcome: Outcome, decision: Decision | None) -> None:
        """Learns speeds from a finished request; its conversation goes where `decision` says."""
        self.state.curves.observe(outcome)
        if decision is not None:
            self.state.sticky.observe(replace(outcome, decision=decision), self.state.clock())

    def _decide(
        self, model: Model, features: Features, estimate: Estimate, decision: Decision, key: AccessKey | None
    ) -> Decision | None:
        hints = Hints(pool=decision.detail) if decision.reason is Reason.CLIENT else Hints()
        facts = self._router.facts(model, features, estimate, key=key)
        chosen, facts = self._router.choose(model, facts)
        view = PastLoad(decision.costs, self.state.curves, chosen.name)
        try:
            return self._router.route(chosen, features, estimate, view, facts, hints, key, explore=False)
        except GatewayError:
            return None

    def _verdict(
        self, outcome: Outcome, features: Features, estimate: Estimate, before: Decision, after: Decision | None
    ) -> Verdict:
        taken = outcome.ended - (outcome.sent_upstream or outcome.started)
        times = self._times(outcome, features, estimate, after) if after else {}
        best = min(times.values(), default=0.0)
        mine, other = times.get(before.pool), times.get(after.pool) if after else None
        gain: float | None = None
        if after and after.pool == before.pool:
            gain = 0.0
        elif other is not None:
            gain = (taken if mine is None else mine) - other
        return Verdict(
            request_id=outcome.request_id,
            model=before.model,
            task=estimate.task,
            before=before.pool,
            after=after.pool if after else None,
            reason_before=before.reason,
            reason=after.reason if after else None,
            seconds=taken,
            gain=gain,
            regret_before=0.0 if mine is None else mine - best,
            regret=0.0 if other is None else other - best,
        )

    def _times(
        self, outcome: Outcome, features: Features, estimate: Estimate, decision: Decision
    ) -> Mapping[str, float]:
        """Expected seconds of the answer's real length, in each pool that could have taken the request."""
        if outcome.usage is None or outcome.usage.completion_tokens < 1:
            return {}
        found = {}
        for cost in decision.costs:
            curve = self.state.curves.get(cost.pool, decision.model)
            if curve is None or cost.terms is None or (cost.out is not None and cost.pool != decision.pool):
                continue
            load = PoolLoad(up=_MANY, in_flight=round(_MANY * cost.terms.running))
            terms = curve.terms(outcome.usage.completion_tokens, estimate.task, features.input_tokens, load)
            found[cost.pool] = cost.terms.wait + max(terms.first - cost.terms.saved, 0.0) + terms.decode
        return found


class PastLoad:
    """The pools' load at a past decision, from its costs."""

    def __init__(self, costs: tuple[PoolCost, ...], curves: Curves, model: str) -> None:
        self._costs = {cost.pool: cost for cost in costs}
        self._curves = curves
        self._model = model

    def load(self, pool: str) -> PoolLoad:
        cost = self._costs.get(pool)
        if cost is None or cost.terms is None:
            return PoolLoad(up=1)
        terms, out = cost.terms, cost.out or ""
        curve = self._curves.get(pool, self._model)
        each = (curve.mix.residence if curve else 0.0) or terms.first + terms.decode
        waiting = _MANY * terms.wait * max(terms.running, 1.0) / each if each else 0.0
        return PoolLoad(
            up=0 if out == "down" else _MANY,
            in_flight=round(_MANY * terms.running),
            waiting=round(waiting),
            full=out == "full",
            window=int(out.removeprefix(_WINDOW)) if out.startswith(_WINDOW) else None,
        )
