"""The policy arms: the router with each objective, and the baselines that it is compared with.

All arms share the same gateway: a learning estimator, a router that computes each request's expected time, and a queue
ordered by it. A baseline rule changes only where requests go. The effect of the queue order itself is measured by a
separate arm, `arrival`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Literal, Protocol

from gateway.estimate.estimator import Estimator
from gateway.estimate.model import Prior, load_prior
from gateway.policy.load import parse_policy
from gateway.policy.schema import DEFAULT_OBJECTIVE, Policy
from gateway.records import make
from gateway.routing.curves import Served
from gateway.routing.router import Router
from gateway.routing.state import RoutingState
from gateway.simulate.job import Job
from gateway.simulate.prompts import MODEL
from gateway.simulate.world import Clock, outcome_of
from gateway.types import Api, Decision, Estimate, Features, LoadView, Task, ToolChoice

_NO_FEATURES = Features(api=Api.CHAT, model=MODEL)
_NO_ESTIMATE = Estimate(task=Task.UNKNOWN, output_tokens=1.0, p50=1.0, p90=1.0, confidence=0.0, source="none")
PLAIN, MTP = "plain", "mtp"
Fleet = Literal["deployed", "plain", "mtp", "table"]
"""The engines: as deployed (plain and MTP), or as many all plain, all MTP, or all MTP with K by batch size."""

SHORT, LONG = 500, 2000
"""Bounds of the three bins in tokens, from a well-known router's rules on the form of a request."""


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """An arm: its fleet and how it decides."""

    name: str
    fleet: Fleet = "deployed"
    decider: Literal["fixed", "random", "bins", "router"] = "router"
    pools: tuple[str, ...] = (PLAIN, MTP)
    objective: str = DEFAULT_OBJECTIVE
    threshold: int = 64
    oracle: bool = False
    """Whether it knows the answer's actual length."""
    blind_queue: bool = False
    """Whether its queue uses the estimated length even so."""
    by_arrival: bool = False
    """Whether its queue is FIFO, like that of a proxy without length estimates."""


ARMS: tuple[ArmSpec, ...] = (
    ArmSpec("plain_pool", decider="fixed", pools=(PLAIN,)),
    ArmSpec("mtp_pool", decider="fixed", pools=(MTP,)),
    ArmSpec("all_plain", fleet="plain", decider="fixed", pools=(PLAIN,)),
    ArmSpec("all_mtp", fleet="mtp", decider="fixed", pools=(MTP,)),
    ArmSpec("mtp_table", fleet="table", decider="fixed", pools=(MTP,)),
    ArmSpec("random", decider="random"),
    ArmSpec("static_32", objective="static", threshold=32),
    ArmSpec("static_64", objective="static", threshold=64),
    ArmSpec("static_128", objective="static", threshold=128),
    ArmSpec("bins", decider="bins"),
    ArmSpec("expected_time", objective="expected_time"),
    ArmSpec("fleet", objective="fleet"),
    ArmSpec("oracle", oracle=True),
    ArmSpec("oracle_routing", oracle=True, blind_queue=True),
    ArmSpec("arrival", by_arrival=True),
)
SINGLE = ("plain_pool", "mtp_pool")
CONVERTED = ("all_plain", "all_mtp")
STATIC = ("static_32", "static_64", "static_128")


def make_arm(
    spec: ArmSpec, policy: Policy, clock: Clock, view: LoadView, rng: Random, learned: bytes = b""
) -> Routed:  # fmt: skip
    """The decider of one run; `learned` is its estimator's initial snapshot, see `Workload.learned`."""
    rules: dict[str, Rule] = {"fixed": Fixed(spec.pools), "random": Randomly(spec.pools, rng), "bins": Bins()}
    estimator = None
    if learned and not (spec.oracle and not spec.blind_queue):
        estimator = Estimator(_prior())
        estimator.merge(learned)
    state = RoutingState(clock.read, rng, view)
    return Routed(
        policy, state, estimator, oracle=spec.oracle, blind_queue=spec.blind_queue, rule=rules.get(spec.decider)
    )


@cache
def _prior() -> Prior:
    return load_prior()


def make_policy(profile: str, k: int, engines: Mapping[str, int], seats: int, spec: ArmSpec) -> Policy:
    """The smallest policy for `engines` of each kind with `seats` each."""
    pools = []
    for kind, number in engines.items():
        urls = ", ".join(f'"http://{kind}-{at}"' for at in range(number))
        drafts = f", speculative: {{method: mtp, tokens: {k}}}" if kind == MTP else ""
        own = ", prefill: 0" if spec.by_arrival else ""
        limits = f"limits: {{in_flight: {seats * number}{own}}}"
        pools.append(f"  {kind}: {{endpoints: [{urls}], profile: {profile}, {limits}{drafts}}}")
    text = "\n".join(
        [
            "version: 1",
            "pools:",
            *pools,
            f"models: {{{MODEL}: {{pools: [{', '.join(engines)}]}}}}",
            f"routing: {{objective: {spec.objective}, threshold: {spec.threshold}}}",
        ]
    )
    return parse_policy(text, "simulation", {})


class Rule(Protocol):
    """A baseline: an order of pools that does not use the expected time."""

    def order(self, features: Features, view: LoadView) -> tuple[str, ...]: ...


class Fixed:
    """Always the same order of pools."""

    def __init__(self, order: tuple[str, ...]) -> None:
        self._order = order

    def order(self, features: Features, view: LoadView) -> tuple[str, ...]:
        return self._order


class Randomly:
    """Each pool first with equal probability."""

    def __init__(self, pools: tuple[str, ...], rng: Random) -> None:
        self._pools = pools
        self._rng = rng

    def order(self, features: Features, view: LoadView) -> tuple[str, ...]:
        first = self._rng.randrange(len(self._pools))
        return self._pools[first:] + self._pools[:first]


class Bins:
    """Three bins by the request's form: short to plain, long to MTP, unknown to the less loaded pool."""

    def order(self, features: Features, view: LoadView) -> tuple[str, ...]:
        bin_ = bin_of(features)
        if bin_ == "unknown":
            plain, mtp = view.load(PLAIN), view.load(MTP)
            bin_ = "short" if plain.in_flight * mtp.up < mtp.in_flight * plain.up else "long"
        return (PLAIN, MTP) if bin_ == "short" else (MTP, PLAIN)


def bin_of(features: Features) -> Literal["short", "long", "unknown"]:
    """Thinking is long; forced tools, tools without thinking, a continued answer or a small cap are short."""
    cap = features.cap
    if features.thinking or (features.thinking_budget or 0) > 4000:
        return "long" if cap is None or cap >= LONG else "unknown"
    forced = features.tool_choice in (ToolChoice.REQUIRED, ToolChoice.NAMED)
    if forced or features.tools or features.prefill or (cap is not None and cap < SHORT):
        return "short"
    return "unknown"


class Routed:
    """The gateway's router and estimator, learning from outcomes and counters as in the gateway. A `rule` replaces the
    router's choice of pools; expected times still come from the router."""

    def __init__(
        self,
        policy: Policy,
        state: RoutingState,
        estimator: Estimator | None = None,
        *,
        oracle: bool = False,
        blind_queue: bool = False,
        rule: Rule | None = None,
    ) -> None:
        """Without an estimator the prompts' own estimates are used."""
        self.state = state
        self.router = Router(policy, state)
        self._estimator = estimator
        self._model = policy.models[MODEL]
        self._oracle = oracle
        self._rule = rule
        # Decides nothing: it computes the expected times that order the queue, from the estimates.
        self._guessing = Router(policy, state.beside(Random(0))) if blind_queue else None
        self._facts = None if not policy.routing.rules else self.router.facts
        self._nothing = self.router.facts(self._model, _NO_FEATURES, _NO_ESTIMATE)

    def decide(self, job: Job, view: LoadView) -> Decision:
        prompt = job.prompt
        estimate = prompt.estimate
        if self._estimator is not None:
            # Its own copy: the estimator recognises a request's outcome by the identity of its features.
            job.features = copy(prompt.features)
            job.estimate = estimate = self._estimator.estimate(job.features)
        if self._rule is not None:
            order = self._rule.order(prompt.features, view)
            decision = self._route(self.router, job, estimate, view)
            # A rule chooses pools, not engines: keep the engine that has the conversation's prefix.
            endpoint = decision.endpoint if decision.pool == order[0] else None
            return replace(decision, pool=order[0], order=order, endpoint=endpoint)
        if not self._oracle:
            return self._route(self.router, job, estimate, view)
        n = float(job.tokens)
        known = replace(estimate, task=prompt.task, output_tokens=n, p50=n, p90=n)
        decision = self._route(self.router, job, known, view)
        if self._guessing is not None:
            decision = replace(decision, costs=self._route(self._guessing, job, estimate, view).costs)
        return decision

    def _route(self, router: Router, job: Job, estimate: Estimate, view: LoadView) -> Decision:
        prompt = job.prompt
        facts = self._facts(self._model, prompt.features, estimate) if self._facts else self._nothing
        explore = self._rule is None
        return router.route(self._model, prompt.features, estimate, view, facts, prompt.hints, explore=explore)

    def observe(self, job: Job, endpoint: str) -> None:
        # Regret is not computed, since it changes no decision.
        decision, features = job.decision, job.features or job.prompt.features
        assert decision is not None
        task = (job.estimate or job.prompt.estimate).task
        served = make(Served, (features.input_tokens, job.cached, job.tokens, job.sent, job.first, job.ended))
        self.state.curves.learn(decision, task, served)
        if self._estimator is None and not decision.thread:
            # Nothing else learns from it.
            return
        outcome = outcome_of(job, decision, endpoint)
        if self._estimator is not None:
            self._estimator.observe(outcome)
        self.state.sticky.observe(outcome, outcome.ended)

    def accept(self, pool: str, length: float) -> None:
        self.state.curves.accept(pool, length)
