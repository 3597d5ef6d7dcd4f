"""A second opinion on a request's length, from a classifier behind an OpenAI-compatible endpoint. Off by default.

It is asked only where the estimate is unsure and the stakes exceed its cost:

    stakes = most over N in {p50 / 4, p50, p90} of (T_chosen(N) - T_best(N))        cost = its own usual latency

The question is a choice among five lengths, so the answer is one or two constrained tokens. It has a hard time limit
and a breaker: after three failures it is not asked for half a minute. Its answer becomes the expected length; whatever
goes wrong, the first estimate stands. The request's instruction is sent to that endpoint and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

import orjson

from gateway.errors import GatewayError
from gateway.policy.schema import SecondOpinion as Settings
from gateway.types import Decision, Estimate, Features, Reason
from gateway.upstream.client import Connector, Timeouts
from gateway.upstream.connect import connect

log = logging.getLogger("gateway.opinion")

LENGTHS = {"a few words": 4, "one sentence": 30, "a paragraph": 120, "a page": 400, "several pages": 1200}
"""What may be answered, in output tokens."""
DOUBTED = frozenset({Reason.FASTER, Reason.TIE, Reason.THRESHOLD, Reason.STICKY})
FAILURES = 3
REST_SECONDS = 30.0
MOST_BYTES = 65_536


class OpinionDesk:
    """Asks one classifier, and keeps its breaker and its usual latency."""

    def __init__(self, settings: Settings, connector: Connector, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._connector = connector
        self._clock = clock
        self._failures = 0
        self._rests_until = 0.0
        self.cost = settings.timeout / 2
        """Its usual latency in seconds, a moving average."""

    def wanted(self, estimate: Estimate, decision: Decision) -> bool:
        """Whether asking can save more time than it takes."""
        if estimate.confidence >= self.settings.below_confidence or decision.reason not in DOUBTED:
            return False
        return self._clock() >= self._rests_until and stakes(estimate, decision) > self.cost

    async def ask(self, features: Features) -> int | None:
        """The answer's expected length in tokens; None if the classifier does not answer in time."""
        begun = self._clock()
        try:
            async with asyncio.timeout(self.settings.timeout):
                tokens = await self._ask(features)
        except (GatewayError, TimeoutError, ValueError, KeyError, TypeError, IndexError) as error:
            self._failed(type(error).__name__)
            return None
        self._failures = 0
        self.cost += 0.1 * (self._clock() - begun - self.cost)
        return tokens

    async def _ask(self, features: Features) -> int:
        key = self.settings.api_key
        headers = [(b"content-type", b"application/json")]
        if key:
            headers.append((b"authorization", b"Bearer " + key.get_secret_value().encode()))
        body = json.dumps(question(self.settings.model, features)).encode()
        limits = Timeouts(self.settings.timeout, self.settings.timeout, self.settings.timeout)
        response = await self._connector.send(b"POST", b"/v1/chat/completions", headers, body, limits)
        try:
            answer = b""
            while (piece := await response.read()) and len(answer) < MOST_BYTES:
                answer += piece
        finally:
            response.close()
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        return LENGTHS[orjson.loads(answer)["choices"][0]["message"]["content"]]

    def _failed(self, what: str) -> None:
        self._failures += 1
        if self._failures >= FAILURES:
            self._rests_until = self._clock() + REST_SECONDS
            log.warning(
                "no second opinion is asked for a while", extra={"fields": {"url": self.settings.url, "last": what}}
            )

    async def aclose(self) -> None:
        await self._connector.aclose()


def desk_for(settings: Settings | None, before: OpinionDesk | None, clock: Callable[[], float]) -> OpinionDesk | None:
    """The desk of a policy: the earlier one if its settings have not changed."""
    if settings is None or (before and before.settings == settings):
        return before if settings else None
    return OpinionDesk(settings, connect(settings.url), clock)


def question(model: str, features: Features) -> dict[str, object]:
    """The classifier's request."""
    system = "How long will the answer to the user's request be? Say only which of the given lengths."
    return {
        "model": model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": features.instruction}],
        "structured_outputs": {"choice": list(LENGTHS)},
        "max_tokens": 8,
        "temperature": 0,
    }


def stakes(estimate: Estimate, decision: Decision) -> float:
    """Seconds that the choice may lose if the answer is shorter or longer than expected."""
    possible = {cost.pool: cost.terms for cost in decision.costs if cost.terms is not None and cost.out is None}
    if len(possible) < 2 or decision.pool not in possible:
        return 0.0
    most = 0.0
    for tokens in (estimate.p50 / 4, estimate.p50, estimate.p90):
        share = max(tokens - 1.0, 0.0) / max(estimate.output_tokens - 1.0, 1.0)
        times = {pool: terms.wait + terms.first + terms.decode * share for pool, terms in possible.items()}
        most = max(most, times[decision.pool] - min(times.values()))
    return most
