"""What need not be found out again: of templates whose answers' length history knows, the prior's word and the reading.

A template is asked about once in a while only; between, the same word serves for its requests: seven times at first,
and for about twice as long each time that asking again said the same. Bounded, and without text.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.request.reading import Reading, reading_of
from gateway.types import Features, Task

_USES = 7
_LONGEST = 31
_ALIKE = 0.25
"""log2 of tokens; words that differ by less say the same."""
_MOST = 4096
"""Templates kept; one more, and all begin anew."""


@dataclass(slots=True)
class Recalled:
    """What the prior said of a template, good for some more requests."""

    location: float
    spread: float
    task: Task
    span: int = _USES
    """Requests that it is good for."""
    uses: int = _USES
    """Those that are left of them."""

    def follow(self, before: Recalled) -> None:
        """Takes the place of an earlier word, and serves for longer than it if both say the same."""
        apart = max(abs(self.location - before.location), abs(self.spread - before.spread))
        if self.task is before.task and apart < _ALIKE:
            self.span = self.uses = min(_LONGEST, 2 * before.span + 1)


class Recall:
    """By template: what the prior said, and what the text did."""

    def __init__(self) -> None:
        self._words: dict[int, Recalled] = {}
        self._readings: dict[int, tuple[Reading, Recalled]] = {}

    def take(self, key: int) -> Recalled | None:
        """The word for a request with this history key, which uses it once; None where it has to be asked for."""
        found = self._words.get(key)
        if found is None or found.uses <= 0:
            return None
        found.uses -= 1
        return found

    def keep(self, key: int, word: Recalled, features: Features) -> None:
        """Lets the word and the features' reading serve for the next requests."""
        if max(len(self._words), len(self._readings)) >= _MOST:
            self._words.clear()
            self._readings.clear()
        if (before := self._words.get(key)) is not None:
            word.follow(before)
        self._words[key] = word
        reading_key, reading = reading_of(features)
        self._readings[reading_key] = reading, word

    def drop(self, key: int) -> None:
        """Lets the next request of a template be asked for: its answers are no longer what they were."""
        if (word := self._words.pop(key, None)) is not None:
            word.uses = 0

    def reading(self, key: int) -> Reading | None:
        """The reading that serves for a request, as long as the word that came with it does; see `reading_key`."""
        found = self._readings.get(key)
        return found[0] if found is not None and found[1].uses > 0 else None
