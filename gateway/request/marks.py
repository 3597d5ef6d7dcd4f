"""Substrings that are looked for in scripts without spaces, where words cannot be looked up.

Hundreds of them are known and a text holds few. A search costs far more than asking whether a character occurs, so a
substring is only searched for where its two rarest characters do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.types import Task


class Mark(NamedTuple):
    """A substring and what it tells."""

    text: str
    told: int
    """As `tells` has it."""
    evidence: tuple[Task, float] | None
    """The task that it is evidence for, in the language of the text, and the weight."""


class Marks:
    """Substrings that are looked for together: those that tell something, and those that are evidence in a language."""

    def __init__(self, told: Mapping[str, int], evidence: Mapping[str, tuple[Task, float]]) -> None:
        self._by_first: dict[str, list[tuple[str, str, Mark]]] = {}
        for text in dict.fromkeys([*told, *evidence]):
            mark = Mark(text, told.get(text, 0), evidence.get(text))
            first, *others = sorted(set(text), key=_rarity, reverse=True)
            self._by_first.setdefault(first, []).append((others[0] if others else first, text, mark))
        self._firsts = frozenset(self._by_first)

    def found(self, text: str, chars: set[str]) -> list[Mark]:
        """Those that stand in a lower-case text of these characters, in no order."""
        return [
            mark
            for first in self._firsts & chars
            for second, part, mark in self._by_first[first]
            if second in chars and part in text
        ]


def _rarity(char: str) -> tuple[bool, str]:
    """Ideographs are rarer than syllables."""
    return "\u4e00" <= char <= "\u9fff", char
