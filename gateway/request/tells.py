"""What single Latin words tell about the answer: one number a word, whose bits say in which lists it stands.

One look-up a word replaces an intersection of sets a list, and most words of a text stand in none. The lists are where
they are used, in `evidence` and `wish_words`.
"""

from __future__ import annotations

from collections.abc import Iterable

CHOOSE = 1 << 0
HOW_MANY = 1 << 1
OPTIONS = 1 << 2
WRITE = 1 << 3
FACT = 1 << 4
OPEN = 1 << 5
STEPS = 1 << 6
STEPS_TOO = 1 << 7
LETTER_B = 1 << 8
JSON = 1 << 9
UNIT = 1 << 10
NUMBER = 1 << 11
SMALL = 1 << 12
DETAIL = 1 << 13
BRIEF = 1 << 14
FORMAT = 1 << 15
FIRM = 1 << 16
"""The first of the bits for firm wishes, one for each pattern."""
TASK_PHRASES = 1 << 22
PHRASES = 1 << 23
"""The word stands in a phrase: of those that are evidence for a task, of the lexicon's."""
GROUPS_AT = 24
"""Above all of these stand the bits of the lexicon's groups."""

Lists = tuple[tuple[int, Iterable[str]], ...]
"""(bits, the words that have them); bits 0 for words that are only looked up elsewhere."""


def table(lists: Lists) -> dict[str, int]:
    """Word -> bits."""
    found: dict[str, int] = {}
    for bits, words in lists:
        for word in words:
            found[word] = found.get(word, 0) | bits
    return found
