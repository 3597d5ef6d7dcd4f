"""What single words tell about the answer: one number a word, whose bits say in which lists it stands.

One look-up a word replaces an intersection of sets a list, and most words of a text stand in none. In scripts without
spaces a substring stands for a word (`marks`). The lists are where they are used, in `evidence` and `wish_words`.
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
TASK_PHRASES = 1 << 20
PHRASES = 1 << 21
"""The word stands in a phrase: of those that are evidence for a task, of the lexicon's."""
QUESTION_LABEL = 1 << 22
OPTION_HEAD = 1 << 23
SMALL_CJK = 1 << 24
DETAIL_CJK = 1 << 25
BRIEF_CJK = 1 << 26
FIRM_CJK = 1 << 27
"""The first of the bits for firm wishes in scripts without spaces, one for each pattern."""
GROUPS_AT = 32
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
