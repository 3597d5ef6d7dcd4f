"""What usually runs in a pool, as outcomes tell it: how many others a request meets, how long they stay, what joins.

The idea: who runs now is known, but a request's time depends on who runs until it ends. So a `Mix` keeps the usual
number of others and how long they last, and `Mix.during` goes from now's number to the usual one as fast as those who
are there leave.

All figures fade. Means (`others`, `context`, `residence`, `decoding`) move with every outcome by a small share. Rates
(`joins`, `prompts`) are gathered between two ticks of the clock and averaged over some seconds, so that quiet counts.
"""

from __future__ import annotations

import math
from copy import copy

RATE_SECONDS = 10.0
RATE_JOINS = 100.0
LEAST_SECONDS = 1.0
"""What rates are averaged over: so many seconds, or as long as so many prompts take to come, but no less than this."""
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
        "settled",
        "squares",
        "version",
    )

    def __init__(self) -> None:
        self.others = 0.0
        """How many others a request finds."""
        self.residence = 0.0
        """Mean seconds from sending to the last token; 0 until known."""
        self.squares = 0.0
        """Mean of their squares."""
        self.decoding = 1.0
        """Share of a request's time that it decodes; the rest it waits for its first token."""
        self.context = 512.0
        """Tokens of context per running sequence."""
        self.joins = 0.0
        """Prompts per second."""
        self.prompts = 0.0
        """Share of the time that their tokens take."""
        self.settled = False
        """Whether the rates have been looked at for long enough to say something."""
        self.version = 0
        """Counts the looks at the rates."""
        self._joins = self._prompts = 0.0
        """Prompts since the last tick, and the seconds that their tokens take."""
        self._age = 0.0
        """Seconds of all ticks."""

    def add(
        self, *, others: float, prompt: float, endpoints: int, context: float, first: float, seconds: float
    ) -> None:
        """One request that ended: how many it met, seconds of its prompt's tokens, of its first token, and in all."""
        before = self.residence
        # The first outcome counts in full.
        newest, of_others = (0.05, 0.03) if before else (1.0, 1.0)
        self.others += of_others * (others - self.others)
        self._joins += 1.0 / endpoints
        self._prompts += prompt / endpoints
        # At any moment, long answers are there in proportion to the time that they take.
        share = 0.02 * (1.0 + seconds)
        self.context += (share if share < 1.0 else 1.0) * (context - self.context)
        self.residence = residence = before + newest * (seconds - before)
        self.squares += newest * (seconds * seconds - self.squares)
        # Not the mean of shares, but the share of the means: mean seconds before the first token, over mean seconds.
        waiting = (1.0 - self.decoding) * before
        waiting += newest * (first - waiting)
        decoding = 1.0 - waiting / residence if residence > 0.0 else 1.0
        self.decoding = 0.05 if decoding < 0.05 else decoding if decoding < 1.0 else 1.0

    def during(self, others: float, seconds: float) -> float:
        """Mean number of others in the `seconds` from now on, of which there are `others` now.

        Those who are there leave at a rate of one in `met` seconds, so the surplus over the usual number decays as
        exp(-t / met), and its mean over the time is (1 - exp(-part)) / part with part = seconds / met. How long those
        last who are met: the mean square over twice the mean (renewal theory), which among many labels is the time of
        the few long answers; at least the mean request's time. So a burst of long answers lasts while they do.

        For example, 20 others where 4 are usual, in the next 2 seconds, with requests of 2 seconds on average: the
        burst is soon over if they are alike, and hardly changes if a few of them take much longer.

        >>> mix = Mix()
        >>> mix.others, mix.residence, mix.squares = 4.0, 2.0, 5.0
        >>> round(mix.during(20.0, 2.0), 1)
        14.1
        >>> mix.squares = 80.0
        >>> round(mix.during(20.0, 2.0), 1)
        19.2
        """
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
        """Lets `passed` seconds go by, and takes what has come in them into the rates."""
        if passed <= 0.0:
            return
        self._age += passed
        self.settled = self._age >= LEAST_SECONDS
        share = self._share(passed)
        self.joins += share * (self._joins / passed - self.joins)
        self.prompts += share * (min(self._prompts / passed, MOST_STALLED) - self.prompts)
        self._joins = self._prompts = 0.0
        self.version += 1

    def _share(self, passed: float) -> float:
        """How much the last `passed` seconds count: as in a mean over `RATE_SECONDS`, or over less where much comes. In
        the beginning, as in the mean of all seconds so far."""
        window = max(LEAST_SECONDS, min(RATE_SECONDS, RATE_JOINS / self.joins)) if self.joins else RATE_SECONDS
        return max(1.0 - math.exp(-passed / window), min(passed / self._age, 1.0) if self._age < window else 0.0)
