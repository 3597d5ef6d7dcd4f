"""A pool's initial speed curve, and of a request: the work that it is expected to cause, what of its prompt an engine
has to compute, and the longest time it may take."""

from __future__ import annotations

from functools import partial
from math import inf

from gateway.policy.schema import Model, Pool
from gateway.profiles import DEFAULT_HARDWARE, MAX_DRAFT_TOKENS, match_profile
from gateway.records import make
from gateway.routing.curve import Curve
from gateway.routing.curves import LEAST_SEEN, Curves
from gateway.types import Decision, Estimate, Features
from gateway.upstream.fair import Work
from gateway.upstream.prefill import Prompt

SLOWER = 1.5
"""How many times the curve's decode time a whole (non-stream) answer may take."""
UNKNOWN_SLOWER = 6.0
"""The same for a pool with few measurements. Its hardware may be slower than the profile's, and if the limit cut its
answers off, the gateway would never learn so."""
OPEN_TOKENS = 4096
"""Least number of tokens to allow for when the request sets no limit."""
OVER_P90 = 4.0
"""The same, as a multiple of the estimated 90th percentile."""
UNKNOWN = 0.05
"""Seconds of work assumed for a request without a decision: about a short answer on a busy engine."""


def pool_curve(curves: Curves, model: Model, pool: Pool) -> Curve:
    """The speed curve of a pool for a model: the learned one, or a new one from the policy's profile."""
    if pool.speeds is not None:
        profile = pool.speeds.only(model.name, model.architecture)
    else:
        profile = match_profile(pool.profile or DEFAULT_HARDWARE, model.name, model.architecture)
    k = min(pool.speculative.tokens, MAX_DRAFT_TOKENS) if pool.speculative else 0
    return curves.curve(pool.name, model.name, profile, k)


def work_of(decision: Decision | None) -> Work:
    """Expected seconds of engine time, in each pool that may serve the request and as their mean. The queue orders by
    the pool's own and shares between keys by the mean.

    For one pool it is own time plus imposed time, divided by the requests that run at once. Own time alone would
    mislead where prompts are long: most of it is spent on other requests' prompts, and the delay that this request's
    prompt causes to others is missing.

    A key is charged the mean, because a waiting request does not know yet which pool will serve it. Time in the queue
    is not included: with it, a long queue would make every short request look long."""
    if decision is None:
        return Work(UNKNOWN)
    order, seconds, by_pool = decision.order, 0.0, {}
    for cost in decision.costs:
        pool, terms = cost.pool, cost.terms
        if terms is not None and pool in order:
            by_pool[pool] = work = (terms.first + terms.decode + terms.imposed) / (1.0 + terms.running)
            seconds += work
    return Work(seconds / len(by_pool), by_pool) if by_pool else Work(UNKNOWN)


def prompt_of(decision: Decision | None, tokens: int, pool: str, endpoint: str, *, stream: bool) -> Prompt:
    """A prompt of `tokens` as an endpoint of the pool has to compute it: without what is cached there."""
    if decision is not None and decision.endpoint == endpoint:
        tokens -= decision.cached
    return make(Prompt, (tokens if tokens > 1 else 1, partial(_first_token, decision, pool), stream))


def _first_token(decision: Decision | None, pool: str) -> float:
    """Expected seconds from sending to the first token; infinite where nothing is known."""
    terms = decision.terms(pool) if decision is not None else None
    return inf if terms is None else terms.first


def longest_decode(decision: Decision, estimate: Estimate, features: Features, curves: Curves) -> float:
    """Upper bound in seconds for decoding a whole answer in any pool of the decision's order.

    It is the time for the largest possible number of tokens in the slowest pool at its load, times `SLOWER`. That
    number is `max_tokens` where the request sets it, since an engine never exceeds it. Otherwise it is a multiple of
    the estimate, so that a wrong estimate does not end a good answer."""
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
