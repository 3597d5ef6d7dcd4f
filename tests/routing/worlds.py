"""Helpers of the routing tests: policies, requests, loads, and engines that answer as fast as a profile says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from gateway.policy.load import parse_policy
from gateway.policy.schema import AccessKey, Policy
from gateway.profiles import Profile, get_profile
from gateway.routing.router import Router
from gateway.routing.state import RoutingState
from gateway.types import (
    NO_HINTS,
    Api,
    Decision,
    Estimate,
    Features,
    Hints,
    Outcome,
    PoolLoad,
    Result,
    Task,
    Usage,
)

MODEL = "gemma-4-e4b"


def policy(
    *, model: str = MODEL, architecture: str = "dense", profile: str | None = None, routing: str = "", pools: str = ""
) -> Policy:
    """A plain and an MTP pool for one model."""
    speed = f", profile: {profile}" if profile else ""
    text = f"""version: 1
pools:
  plain: {{endpoints: ["http://127.0.0.1:9001"]{speed}}}
  mtp: {{endpoints: ["http://127.0.0.1:9002"], speculative: {{method: mtp, tokens: 2}}{speed}}}
{pools}
models:
  {model}: {{pools: [plain, mtp], architecture: {architecture}}}
routing: {{{routing}}}
"""
    return parse_policy(text, "test", {})


def request(**features: object) -> Features:
    given = {"api": Api.CHAT, "model": MODEL, "input_tokens": 150, "stream": True, **features}
    return Features(**given)  # type: ignore[arg-type]


def estimate(tokens: float, task: Task = Task.CHAT) -> Estimate:
    return Estimate(task=task, output_tokens=tokens, p50=tokens, p90=tokens, confidence=1.0, source="rules")


@dataclass
class Loads:
    """What routing sees; idle and up unless a test says otherwise."""

    by_pool: dict[str, PoolLoad] = field(default_factory=dict)

    def load(self, pool: str) -> PoolLoad:
        return self.by_pool.get(pool, PoolLoad(up=1))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A router with its state, a clock and loads that tests set."""

    def __init__(self, of: Policy, seed: int = 1) -> None:
        self.clock = Clock()
        self.loads = Loads()
        self.state = RoutingState(self.clock, Random(seed), self.loads)
        self.policy = of
        self.router = Router(of, self.state)
        self.model = next(iter(of.models.values()))

    def route(
        self,
        features: Features,
        guess: Estimate,
        *,
        hints: Hints = NO_HINTS,
        key: AccessKey | None = None,
        explore: bool = False,
    ) -> Decision:
        facts = self.router.facts(self.model, features, guess, key=key)
        return self.router.route(self.model, features, guess, self.loads, facts, hints, key, explore=explore)

    def finish(self, features: Features, guess: Estimate, decision: Decision, **more: object) -> Outcome:
        """Ends a request as fast as the curves expect, unless `more` says otherwise; the state observes it."""
        seen = outcome(features, guess, decision, now=self.clock.now, **more)  # type: ignore[arg-type]
        self.clock.now = seen.ended
        self.state.observe(seen)
        return seen


def known(bench: Bench, task: Task = Task.CHAT) -> None:
    """Lets the bench's curves have been measured often, and found to be as their profiles say."""
    for curve in bench.state.curves:
        for _ in range(60):
            curve.tpot.learn(1.0, (task,), 1.0)
            curve.ttft.learn(1.0, (), 1.0)


def outcome(
    features: Features,
    guess: Estimate,
    decision: Decision,
    *,
    now: float = 0.0,
    tokens: int | None = None,
    first: float = 0.05,
    each: float = 0.03,
    result: Result = Result.OK,
    endpoint: str = "http://127.0.0.1:9001",
) -> Outcome:
    """A finished request: `first` seconds to the first token, `each` for every other one."""
    n = tokens if tokens is not None else max(round(guess.output_tokens), 1)
    return Outcome(
        request_id="r",
        result=result,
        status=200,
        started=now,
        ended=now + first + (n - 1) * each,
        features=features,
        estimate=guess,
        decision=decision,
        endpoint=endpoint,
        usage=Usage(prompt_tokens=features.input_tokens, completion_tokens=n),
        finish_reason="stop",
        sent_upstream=now,
        first_byte=now + first if features.stream else now + first + (n - 1) * each,
        attempts=1,
    )


def slower(profile: Profile, factor: float) -> Profile:
    """The profile of a machine that is slower in everything by `factor`."""
    decode, prefill = profile.decode, profile.prefill
    names = ("base", "mtp", "position", "token", "overflow", "experts", "context", "mtp_context")
    return replace(
        profile,
        decode=replace(decode, **{name: getattr(decode, name) * factor for name in names}),
        prefill=replace(
            prefill,
            fixed=prefill.fixed * factor,
            stall=prefill.stall * factor,
            tokens_per_second=prefill.tokens_per_second / factor,
            context=prefill.context * factor,
        ),
    )


G4 = get_profile("g4-slice", "e4b")
