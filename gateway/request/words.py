"""The Latin words and numbers of a text, by C-speed passes over its bytes: what every look at an ask begins with.

And patterns for what passes over bytes cannot find.
"""

from __future__ import annotations

import re

_KEPT = {*range(0x61, 0x7B), *range(0xE0, 0xF7), *range(0xF8, 0x100), ord("+"), ord("#")}
_WORD_BYTES = bytes(byte if byte in _KEPT else 0x20 for byte in range(256))
"""Keeps what a word may hold (a-z, à-ö, ø-ÿ, + and #), and makes spaces of the rest."""
_DIGITS = b"0123456789"
_DIGIT_BYTES = bytes(byte if byte in _DIGITS else 0x20 for byte in range(256))
# Begins with a plain class, to which the search can leap: for `\d+` it would try every place.
_NUMBER = re.compile(r"\d\d*")


def leaping(firsts: str, pattern: str) -> re.Pattern[str]:
    """A pattern that tells whether `pattern`, each of whose alternatives begins with one of `firsts`, occurs in a text.

    The search leaps from one of these characters to the next; the alternation alone it would try at every place. What
    is matched is only the first character: from there, the look back is where `pattern` looks ahead.
    """
    return re.compile(rf"[{firsts}](?<=(?={pattern})[{firsts}])")


def word_list(lower: str) -> list[str]:
    """The words of a lower-case text, in order; other scripts hold none."""
    return lower.encode("latin-1", "replace").translate(_WORD_BYTES).decode("latin-1").split()


def has_digit(text: str) -> bool:
    """Whether a digit of any script stands in the text."""
    if text.isascii():
        return len(text.encode().translate(None, _DIGITS)) < len(text)
    return _NUMBER.search(text) is not None


def digit_runs(text: str) -> int:
    """How many numbers stand in the text."""
    if text.isascii():
        return len(text.encode().translate(_DIGIT_BYTES).split())
    return len(_NUMBER.findall(text))
