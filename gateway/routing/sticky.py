"""Where a conversation went last, because its prefix is cached there: a bounded table with an idle time to live.

A conversation is identified by the client's `x-gateway-session`, or else by the body (`Features.thread_key`). Staying
saves the prefill of the cached tokens, which the router counts as time. A move pays for that prefill once, for all
further turns; the expected number of further turns is the number so far. In addition, another pool must be faster by
the share `STAY`, so that a conversation does not move back and forth.
"""

from __future__ import annotations

from array import array
from math import inf
from typing import NamedTuple

from gateway.types import Features, Hints, Outcome
from gateway.words import OK

STAY = 0.25
"""A conversation moves to another pool only where that saves more than this share of the time."""
WAYS = 4
"""Rows in a set. The key of a conversation determines its set."""
MOST_THREADS = 16_384 * WAYS
MOST_HOMES = 4_096
"""Endpoints that the table can refer to. If pods that come and go use them all up, the table is cleared once."""
MOST_TURNS = 6.0


class Place(NamedTuple):
    """Where a conversation's prefix is cached."""

    pool: str
    endpoint: str | None
    tokens: int
    """Prompt and answer of its last turn."""
    at: float


class Sticky:
    """Conversations by key, in a table of 26 bytes a row that is allocated at the start.

    It is a set-associative cache: a key can only be in one of the `WAYS` rows of its set, and a new conversation
    replaces the row of its set that was idle the longest. An object per conversation would take 370 bytes, and memory
    would grow over the first 50,000 requests.
    """

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._sets = max(1, most // WAYS)
        rows = self._sets * WAYS
        self._keys = array("q", [0]) * rows
        self._homes_at = array("H", [0]) * rows
        self._tokens = array("d", [0.0]) * rows
        """Floats, because a back end may report any number."""
        self._at = array("d", [-inf]) * rows
        """When the row was written; -inf where there is none."""
        self._homes: list[tuple[str, str | None]] = []
        self._home_numbers: dict[tuple[str, str | None], int] = {}

    def __len__(self) -> int:
        return sum(at > -inf for at in self._at)

    def find(self, model: str, thread: int, now: float, ttl: float | None) -> Place | None:
        """The conversation's place; None if it was idle for longer than `ttl` seconds, or if `ttl` is None (off)."""
        if not thread or ttl is None:
            return None
        row = self._row_of(hash((model, thread)))
        if row is None or now - self._at[row] > ttl:
            return None
        return Place(*self._homes[self._homes_at[row]], int(self._tokens[row]), self._at[row])

    def observe(self, outcome: Outcome, now: float) -> None:
        """Remembers where a conversation was served. A failed turn makes it forget the place."""
        decision = outcome.decision
        if decision is None or not decision.thread:
            return
        key = hash((decision.model, decision.thread))
        row = self._row_of(key)
        if outcome.result is not OK or outcome.attempts > 1:
            if row is not None:
                self._at[row] = -inf
            return
        usage, features = outcome.usage, outcome.features
        tokens = features.input_tokens if features else 0
        if usage is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
        home = self._home_number(decision.pool, outcome.endpoint)
        if row is None:
            first = key % self._sets * WAYS
            row = min(range(first, first + WAYS), key=self._at.__getitem__)
            self._keys[row] = key
        self._homes_at[row], self._tokens[row], self._at[row] = home, tokens, now

    def _row_of(self, key: int) -> int | None:
        first = key % self._sets * WAYS
        for row in range(first, first + WAYS):
            if self._keys[row] == key and self._at[row] > -inf:
                return row
        return None

    def _home_number(self, pool: str, endpoint: str | None) -> int:
        home = (pool, endpoint)
        number = self._home_numbers.get(home)
        if number is None:
            if len(self._homes) == MOST_HOMES:
                self._homes.clear()
                self._home_numbers.clear()
                self._at = array("d", [-inf]) * len(self._at)
            number = self._home_numbers[home] = len(self._homes)
            self._homes.append(home)
        return number


def thread_of(features: Features, hints: Hints) -> int:
    """The conversation's key, 0 for none. Keys of different processes differ."""
    return hash(hints.session) if hints.session else features.thread_key


def goes_on(features: Features, hints: Hints) -> bool:
    """Whether the request can be a later turn. First turns of many users share a thread key, because they are alike."""
    return bool(hints.session) or features.turns > 2 or features.after_tool or features.last_answer is not None


def turns_to_come(features: Features) -> float:
    """Expected number of further turns: as many as there were so far, within bounds."""
    return min(max(features.turns / 2.0, 1.0), MOST_TURNS)
