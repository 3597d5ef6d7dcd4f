"""The starting speed of a pool, from what the policy says; the work that a decided request is, and its longest time."""

from __future__ import annotations

from gateway.policy.schema import Model, Pool
from gateway.profiles import DEFAULT_HARDWARE, MAX_DRAFT_TOKENS, match_profile
from gateway.routing.curve import Curve
from gateway.routing.curves import LEAST_SEEN, Curves
from gateway.types import Decision, Estimate, Features

SLOWER = 1.5
"""A whole answer may take so many times what its tokens take by the pool's curve."""
UNKNOWN_SLOWER = 6.0
"""Likewise where little has been measured: the engine's hardware may not be that of the profile, and a pool whose whole
answers all ended too soon would never be known better."""
OPEN_TOKENS = 4096
"""Tokens that an answer without a limit of its own may have, at least."""
OVER_P90 = 4.0
"""Likewise, as a multiple of the estimate's 90th percentile."""
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


def longest_decode(decision: Decision, estimate: Estimate, features: Features, curves: Curves) -> float:
    """Seconds that an answer's tokens may take, whichever pool of the order serves it: a multiple of what as many as
    there may be take in the slowest of them at its load. As many as there may be is `max_tokens`, which an engine never
    exceeds; without it a multiple of what is expected, for a wrong guess must not end a good answer."""
    most = features.token_limit
    if most is None:
        bound = OPEN_TOKENS if features.cap is None else features.cap
        most = round(max(bound, OVER_P90 * estimate.p90))
    seconds = 0.0
    for cost in decision.costs:
        terms = cost.terms
        if terms is None or cost.pool not in decision.order:
            continue
        if (curve := curves.get(cost.pool, decision.model)) is not None:
            whole = curve.afterwards(terms, estimate.output_tokens, most, estimate.task)
            slower = SLOWER if curve.tpot.seen >= LEAST_SEEN else UNKNOWN_SLOWER
            seconds = max(seconds, slower * (whole - terms.wait - terms.first))
    return seconds
