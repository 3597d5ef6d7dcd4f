"""Maps each known word to one integer whose bits name the word lists that contain it.

A text is read against a dozen word lists, and most of its words stand in none. So one look-up per word replaces one set
intersection per list, and the union of the bits says which lists are met at all. In scripts without spaces, substrings
take the place of words (`marks`). The lists themselves are in `evidence` and `wish_words`, the groups in `lexicon`:

    bits 0 to 15     a word of this list occurs (CHOOSE, JSON, BRIEF ...)
    bits 16 to 19    firm wishes, one bit per pattern to try
    bits 20 to 26    words of phrases to look for; labels; lists of scripts without spaces
    bits 27 to 31    firm wishes in those scripts
    from bit 32 on   the lexicon's groups, and above them its phrases
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
"""Asks for steps only beside one of `STEPS`, as in "step by step"."""
LETTER_B = 1 << 8
JSON = 1 << 9
UNIT = 1 << 10
NUMBER = 1 << 11
SMALL = 1 << 12
DETAIL = 1 << 13
BRIEF = 1 << 14
FORMAT = 1 << 15
FIRM = 1 << 16
"""First of the bits for firm wishes, one per pattern."""
TASK_PHRASES = 1 << 20
PHRASES = 1 << 21
"""The word occurs in a phrase: `TASK_PHRASES` for task evidence, `PHRASES` for the lexicon."""
QUESTION_LABEL = 1 << 22
OPTION_HEAD = 1 << 23
SMALL_CJK = 1 << 24
DETAIL_CJK = 1 << 25
BRIEF_CJK = 1 << 26
FIRM_CJK = 1 << 27
"""First of the bits for firm wishes in scripts without spaces, one per pattern."""
GROUPS_AT = 32
"""Shift of the lexicon's group bits, above all of these."""

Lists = tuple[tuple[int, Iterable[str]], ...]
"""(bits, words that have them); bits 0 for words that only other tables look up."""


def table(lists: Lists) -> dict[str, int]:
    """Word -> union of the bits of its lists.

    >>> found = table(((CHOOSE, ["which", "pick"]), (FACT, ["which", "who"])))
    >>> found == {"which": CHOOSE | FACT, "pick": CHOOSE, "who": FACT}
    True
    """
    found: dict[str, int] = {}
    for bits, words in lists:
        for word in words:
            found[word] = found.get(word, 0) | bits
    return found
