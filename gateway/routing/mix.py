"""What runs in a pool on average, as outcomes tell it: rates and means that fade."""

from __future__ import annotations

import math
from copy import copy

RATE_SECONDS = 10.0
RATE_JOINS = 100.0
"""What rates are averaged over: so many seconds, or as long as so many prompts take to come."""
MOST_STALLED = 0.8
"""Largest share of the time that prompts may take."""


class Mix:
    """What runs in a pool on average, from its outcomes. All models there share it. Rates are per endpoint."""

    __slots__ = (
        "_age",
        "_joins",
        "_prompts",
        "context",
        "decoding",
        "joins",
        "others",
        "prompts",
        "residence",
        "squares",
        "version",
    )

    def __init__(self) -> None:
        self.context = 512.0
        """Tokens of context per running sequence."""
        self.decoding = 1.0
        """Share of a request's time that it decodes."""
        self.residence = 0.0
        """Mean seconds from sending to the last token; 0 until known."""
        self.squares = 0.0
        """Mean of their squares."""
        self.others = 0.0
        """How many others a request finds."""
        self.joins = 0.0
        """Prompts per second."""
        self.prompts = 0.0
        """Share of the time that their tokens take."""
        self.version = 0
        """Counts the looks at the rates."""
        self._joins = self._prompts = self._age = 0.0

    def add(
        self, *, others: float, prompt: float, endpoints: int, context: float, first: float, seconds: float
    ) -> None:
        """One request that ended: how many it met, seconds of its prompt's tokens, of its first token, and in all."""
        before = self.residence
        newest, of_others = (0.05, 0.03) if before else (1.0, 1.0)
        self.others += of_others * (others - self.others)
        self._joins += 1.0 / endpoints
        self._prompts += prompt / endpoints
        share = 0.02 * (1.0 + seconds)
        self.context += (share if share < 1.0 else 1.0) * (context - self.context)
        self.residence = residence = before + newest * (seconds - before)
        self.squares += newest * (seconds * seconds - self.squares)
        waiting = (1.0 - self.decoding) * before
        waiting += newest * (first - waiting)
        decoding = 1.0 - waiting / residence if residence > 0.0 else 1.0
        self.decoding = 0.05 if decoding < 0.05 else decoding if decoding < 1.0 else 1.0

    def during(self, others: float, seconds: float) -> float:
        """Mean number of others in the `seconds` from now on: from `others` it returns to the usual number as fast as
        those leave who are met. Among many labels those are the few long answers: what is left of a request that is
        met is the mean square over twice the mean (renewal theory). After a burst it takes as long as they do."""
        usual = self.residence
        if not usual:
            return others
        met = self.squares / (2.0 * usual)
        part = seconds / (met if met > usual else usual)
        return self.others + (others - self.others) * ((1.0 - math.exp(-part)) / part if part > 1e-3 else 1.0)

    def beside(self, others: float) -> Mix:
        """The same kind of requests at another load: they come as much more often as there are more of them."""
        found = copy(self)
        share = others / self.others if self.others > 0.0 else 1.0
        found.joins, found.prompts = share * self.joins, min(share * self.prompts, MOST_STALLED)
        return found

    def tick(self, passed: float) -> None:
        """Lets `passed` seconds go by. Rates are means over the last `RATE_SECONDS`, or less where much goes on."""
        if passed <= 0.0:
            return
        self._age += passed
        window = max(1.0, min(RATE_SECONDS, RATE_JOINS / self.joins)) if self.joins else RATE_SECONDS
        share = max(1.0 - math.exp(-passed / window), min(passed / self._age, 1.0) if self._age < window else 0.0)
        self.joins += share * (self._joins / passed - self.joins)
        self.prompts += share * (min(self._prompts / passed, MOST_STALLED) - self.prompts)
        self._joins = self._prompts = 0.0
        self.version += 1
