"""The starting speed of a pool, from what the policy says; and the work that a decided request is."""

from __future__ import annotations

from gateway.policy.schema import Model, Pool
from gateway.profiles import DEFAULT_HARDWARE, MAX_DRAFT_TOKENS, match_profile
from gateway.routing.curve import Curve
from gateway.routing.curves import Curves
from gateway.types import Decision

UNKNOWN = 0.05
"""The work of a request of which nothing is expected: about a short answer's on a busy engine."""


def pool_curve(curves: Curves, model: Model, pool: Pool) -> Curve:
    """The curve of a pool for a model: what was learned of it, else the profile that the policy names."""
    if pool.speeds is not None:
        profile = pool.speeds.only(model.name, model.architecture)
    else:
        profile = match_profile(pool.profile or DEFAULT_HARDWARE, model.name, model.architecture)
    k = min(pool.speculative.tokens, MAX_DRAFT_TOKENS) if pool.speculative else 0
    return curves.curve(pool.name, model.name, profile, k)


def work_of(decision: Decision | None) -> float:
    """Seconds of an engine's time expected, by which waiting requests share the pools: what all requests there take
    longer for it in sum, its own time included, per request. Own time alone says little where prompts are long: it is
    mostly that of the other prompts, and leaves out what its own does to all others.

    A mean over the pools that may serve it, for which of them will is not known as long as it waits, and a request must
    not be a large one or a small one by which pool was a little cheaper when it came. Time in the queue is no work:
    with it short requests would count as long ones whenever the queue is long."""
    if decision is None:
        return UNKNOWN
    seconds, number = 0.0, 0
    for cost in decision.costs:
        terms = cost.terms
        if terms is not None and cost.pool in decision.order:
            seconds += (terms.first + terms.decode + terms.imposed) / (1.0 + terms.running)
            number += 1
    return seconds / number if number else UNKNOWN
