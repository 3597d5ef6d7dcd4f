"""The starting speed of a pool, from what the policy says; and the work that a decided request is."""

from __future__ import annotations

from gateway.policy.schema import Model, Pool
from gateway.profiles import DEFAULT_HARDWARE, MAX_DRAFT_TOKENS, match_profile
from gateway.routing.curve import Curve
from gateway.routing.curves import Curves
from gateway.types import Decision


def pool_curve(curves: Curves, model: Model, pool: Pool) -> Curve:
    """The curve of a pool for a model: what was learned of it, else the profile that the policy names."""
    if pool.speeds is not None:
        profile = pool.speeds.only(model.name, model.architecture)
    else:
        profile = match_profile(pool.profile or DEFAULT_HARDWARE, model.name, model.architecture)
    k = min(pool.speculative.tokens, MAX_DRAFT_TOKENS) if pool.speculative else 0
    return curves.curve(pool.name, model.name, profile, k)


def work_of(decision: Decision) -> float:
    """Seconds of service expected in the chosen pool, by which waiting requests share it. Time in the queue is no
    work: with it short requests would count as long ones whenever the queue is long."""
    terms = next((cost.terms for cost in decision.costs if cost.pool == decision.pool), None)
    return terms.first + terms.decode if terms is not None else 1.0
