"""Splits texts into Latin words and numbers with C-level passes over bytes; reading an instruction begins with it.

`leaping` builds fast patterns for what such passes cannot find.
"""

from __future__ import annotations

import re

_KEPT = {*range(0x61, 0x7B), *range(0xE0, 0xF7), *range(0xF8, 0x100), ord("+"), ord("#")}
_WORD_BYTES = bytes(byte if byte in _KEPT else 0x20 for byte in range(256))
"""Translation table: keeps word characters (a-z, à-ö, ø-ÿ, + and #) and turns all others into spaces."""
_DIGITS = b"0123456789"
_DIGIT_BYTES = bytes(byte if byte in _DIGITS else 0x20 for byte in range(256))
_FEW = 8
"""From this many line breaks on, counting them at once is faster than finding one after the other."""
# Begins with a character class, so that the regex engine can skip to candidates; `\d+` is tried at every place.
_NUMBER = re.compile(r"\d\d*")
# Only ASCII, and blocks without decimal digits: those of kana, ideographs and Hangul, so that most texts skip the slow
# `\d`, which asks the character database.
_PLAIN_DIGITS = re.compile("[\x00-\u065f\u1c80-\ua61f\uac00-\uff0f\uff1a-\uffff]*")


def leaping(firsts: str, pattern: str) -> re.Pattern[str]:
    """A pattern that tells whether `pattern` occurs in a text; each alternative must begin with one of `firsts`.

    The regex engine skips from one of these characters to the next, instead of trying all alternatives at every place.
    The match itself is only the first character; a look-behind with a nested look-ahead tests the rest.
    """
    return re.compile(rf"[{firsts}](?<=(?={pattern})[{firsts}])")


def word_list(lower: str) -> list[str]:
    """The words of a lower-case text, in order; text in other scripts yields none."""
    return lower.encode("latin-1", "replace").translate(_WORD_BYTES).decode("latin-1").split()


def newlines(text: str, most: int | None = None) -> int:
    """Number of line breaks in the text; not counted beyond `most`.

    `str.count` looks at each character, while `find` skips to the next line break.
    """
    at = text.find("\n")
    found = 0
    while at >= 0:
        found += 1
        if found == most:
            return found
        if found == _FEW and most is None:
            return found + text.count("\n", at + 1)
        at = text.find("\n", at + 1)
    return found


def has_digit(text: str) -> bool:
    """Whether the text contains a digit of any script."""
    raw = _plain(text)
    return len(raw.translate(None, _DIGITS)) < len(raw) if raw is not None else _NUMBER.search(text) is not None


def digit_runs(text: str) -> int:
    """Number of digit runs in the text."""
    raw = _plain(text)
    return len(raw.translate(_DIGIT_BYTES).split()) if raw is not None else len(_NUMBER.findall(text))


def _plain(text: str) -> bytes | None:
    """The text with a sign for each character beyond ASCII; None if one of these may be a digit."""
    if text.isascii():
        return text.encode()
    return text.encode("ascii", "replace") if _PLAIN_DIGITS.fullmatch(text) else None
