"""Where a conversation went last, because its prefix is cached there: a bounded table with an idle time to live.

A conversation is known by the client's `x-gateway-session`, else by the body (`Features.thread_key`). What staying
saves is the prefill of the tokens that are cached, so it is counted as time. A move pays that once and for all turns to
come, of which a conversation has about as many as it has had; another pool must be faster by `STAY` all the same, so
that a conversation does not wander.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from gateway.types import Features, Hints, Outcome, Result

STAY = 0.25
"""A conversation moves to another pool only where that saves more than this share of the time."""
MOST_THREADS = 50_000
MOST_TURNS = 6.0


class Place(NamedTuple):
    """Where a conversation's prefix is cached."""

    pool: str
    endpoint: str | None
    tokens: int
    """Prompt and answer of its last turn."""
    at: float


class Sticky:
    """Conversations by their key, the longest idle ones dropped first."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._most = most
        self._places: OrderedDict[tuple[str, int], Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, model: str, thread: int, now: float, ttl: float | None) -> Place | None:
        """The place, unless the conversation has been idle for longer than `ttl` (None: stickiness is off)."""
        if not thread or ttl is None:
            return None
        place = self._places.get((model, thread))
        return place if place is not None and now - place.at <= ttl else None

    def observe(self, outcome: Outcome, now: float) -> None:
        """Remembers where a conversation was served. A failed turn makes it forget the place."""
        decision = outcome.decision
        if decision is None or not decision.thread:
            return
        key = (decision.model, decision.thread)
        if outcome.result is not Result.OK or outcome.attempts > 1:
            self._places.pop(key, None)
            return
        usage, features = outcome.usage, outcome.features
        tokens = features.input_tokens if features else 0
        if usage is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
        self._places[key] = Place(decision.pool, outcome.endpoint, tokens, now)
        self._places.move_to_end(key)
        if len(self._places) > self._most:
            self._places.popitem(last=False)


def thread_of(features: Features, hints: Hints) -> int:
    """The conversation's key, 0 for none. Keys of different processes differ."""
    return hash(hints.session) if hints.session else features.thread_key


def goes_on(features: Features, hints: Hints) -> bool:
    """Whether the request can be a later turn. Many users' first turns are alike, and share no more than a template."""
    return bool(hints.session) or features.turns > 2 or features.after_tool or features.last_answer is not None


def turns_to_come(features: Features) -> float:
    """Expected further turns of a conversation: as many as there were, within bounds."""
    return min(max(features.turns / 2.0, 1.0), MOST_TURNS)
