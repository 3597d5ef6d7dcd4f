"""Finds known substrings ("marks") in scripts without spaces, where text cannot be split into words.

Hundreds are known and a text contains few. Testing for a character is far cheaper than a search, so a substring is
searched only if its two rarest characters occur.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.records import record
from gateway.types import Task


@record
class Mark:
    """A substring and its meaning."""

    text: str
    told: int
    """Bits as in `tells`."""
    evidence: tuple[Task, float] | None
    """(task, weight) that it is evidence for, in the text's language."""


class Marks:
    """An index of substrings: those with `tells` bits, and those that are evidence in one language."""

    def __init__(self, told: Mapping[str, int], evidence: Mapping[str, tuple[Task, float]]) -> None:
        self._by_first: dict[str, list[tuple[str, str, Mark]]] = {}
        for text in dict.fromkeys([*told, *evidence]):
            mark = Mark(text, told.get(text, 0), evidence.get(text))
            first, *others = sorted(set(text), key=_rarity, reverse=True)
            self._by_first.setdefault(first, []).append((others[0] if others else first, text, mark))
        self._firsts = frozenset(self._by_first)

    def found(self, text: str, chars: set[str]) -> list[Mark]:
        """The marks in a lower-case text with these distinct characters, unordered."""
        return [
            mark
            for first in self._firsts & chars
            for second, part, mark in self._by_first[first]
            if second in chars and part in text
        ]


_COMMON = "のいしてにをたはとなるでがすれまらかこりんっもうおさきくあけえだそつせどよみちやめろわほ"
"""Hiragana in about the order of their frequency in prose."""


def _rarity(char: str) -> tuple[bool, int, str]:
    """Sort key: ideographs are rarer than syllables, and few hiragana make up most of a text."""
    return "\u4e00" <= char <= "\u9fff", _COMMON.find(char) if char in _COMMON else len(_COMMON), char
