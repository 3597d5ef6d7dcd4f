"""Outcomes for tests of the decision log: decided by the real router, with made-up lengths and expected times."""

from __future__ import annotations

from random import Random

from gateway.policy.load import parse_policy
from gateway.policy.schema import Policy
from gateway.routing.router import Router
from gateway.routing.state import RoutingState
from gateway.types import Api, Estimate, Features, Hints, Outcome, PoolLoad, Result, Task, Usage

TEXT = "the customer's secret plan"


def policy(routing: str = "{objective: static, threshold: 64}", mtp_tokens: int = 2) -> Policy:
    return parse_policy(
        f"""
version: 1
pools:
  plain: {{endpoints: ["http://127.0.0.1:1"]}}
  mtp: {{endpoints: ["http://127.0.0.1:2"], speculative: {{method: mtp, tokens: {mtp_tokens}}}}}
models:
  m: {{pools: [plain, mtp], architecture: dense}}
routing: {routing}
""",
        "policy.yaml",
        {},
    )


class Idle:
    """Every pool up, with so many requests running."""

    def __init__(self, running: int = 0) -> None:
        self.running = running

    def load(self, pool: str) -> PoolLoad:
        return PoolLoad(up=1, in_flight=self.running)


def outcomes(under: Policy, lengths: list[int], running: int = 0) -> list[Outcome]:
    """One finished request for each length, predicted exactly, one a second."""
    router = Router(under, RoutingState(lambda: 0.0, Random(0)))
    model = under.models["m"]
    made = []
    for at, tokens in enumerate(lengths):
        features = Features(api=Api.CHAT, model="m", stream=True, input_tokens=200, instruction=TEXT, user_head=TEXT)
        estimate = Estimate(
            task=Task.CHAT, output_tokens=tokens, p50=tokens, p90=2 * tokens, confidence=0.5, source="rules"
        )
        facts = router.facts(model, features, estimate)
        decision = router.route(model, features, estimate, Idle(running), facts, Hints(), explore=False)
        taken = next(cost for cost in decision.costs if cost.pool == decision.pool)
        assert taken.seconds is not None
        assert taken.terms is not None
        made.append(
            Outcome(
                request_id=f"r{at}",
                result=Result.OK,
                status=200,
                started=float(at),
                ended=at + 0.01 + taken.seconds,
                features=features,
                estimate=estimate,
                decision=decision,
                usage=Usage(prompt_tokens=200, completion_tokens=tokens),
                sent_upstream=at + 0.01,
                first_byte=at + 0.01 + taken.terms.first,
                attempts=1,
            )
        )
    return made
