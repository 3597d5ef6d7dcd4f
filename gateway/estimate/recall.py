"""Caches the prior's result and the text's reading for templates whose answer length is settled by history.

A cached result serves 7 further requests of its template; then the prior runs again. Whenever the new result agrees
with the old one, the span about doubles, up to 31 requests. Bounded, and without text.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.request.reading import Reading, reading_of
from gateway.types import Features, Task

_USES = 7
_LONGEST = 31
_ALIKE = 0.25
"""Results that differ by less than this, log2, agree."""
_MOST = 4096
"""Most templates cached; when full, the cache is cleared."""


@dataclass(slots=True)
class Recalled:
    """The prior's result for a template, valid for a limited number of requests."""

    location: float
    spread: float
    task: Task
    span: int = _USES
    """Requests that it is valid for."""
    uses: int = _USES
    """How many of them are left."""

    def follow(self, before: Recalled) -> None:
        """Replaces an earlier result; valid for longer if both agree."""
        apart = max(abs(self.location - before.location), abs(self.spread - before.spread))
        if self.task is before.task and apart < _ALIKE:
            self.span = self.uses = min(_LONGEST, 2 * before.span + 1)


class Recall:
    """Cached results and readings by template."""

    def __init__(self) -> None:
        self._words: dict[int, Recalled] = {}
        self._readings: dict[int, tuple[Reading, Recalled]] = {}

    def take(self, key: int) -> Recalled | None:
        """The result for a request with this history key, used up by one; None if the prior has to run."""
        found = self._words.get(key)
        if found is None or found.uses <= 0:
            return None
        found.uses -= 1
        return found

    def keep(self, key: int, word: Recalled, features: Features) -> None:
        """Caches the result and the features' reading for the template's next requests."""
        if max(len(self._words), len(self._readings)) >= _MOST:
            self._words.clear()
            self._readings.clear()
        if (before := self._words.get(key)) is not None:
            word.follow(before)
        self._words[key] = word
        reading_key, reading = reading_of(features)
        self._readings[reading_key] = reading, word

    def drop(self, key: int) -> None:
        """Drops a template whose answers have changed; the prior runs on its next request."""
        if (word := self._words.pop(key, None)) is not None:
            word.uses = 0

    def reading(self, key: int) -> Reading | None:
        """The cached reading for a `reading_key`, valid as long as the result stored with it; else None."""
        found = self._readings.get(key)
        return found[0] if found is not None and found[1].uses > 0 else None
