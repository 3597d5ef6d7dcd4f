"""Turns the numeric features of a request (lengths, counts, shares) into bits: one per fixed threshold that is
exceeded.

Nearly all are integers and use a precomputed table, which ends where the last threshold is exceeded. Thresholds of
lengths are on the scale log2(1 + x); the tables save the logarithm.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from operator import getitem

from gateway.estimate.expert import View
from gateway.request.words import newlines
from gateway.types import Features

# Begins with a character class, so that the regex engine can skip to candidates; `\d{1,3}` is tried everywhere.
_COUNTED = re.compile(
    r"(\d\d?\d?)\s{0,2}(?:つ|個|点|選|件|種類|冊|人|案|文字|字|行|段落|个|条|가지|(?:[a-z-]{1,20}\s)?[a-z]{2,20}s\b)"
)
# The same for a text in ASCII, many times as fast: `\d` asks the character database.
_COUNTED_ASCII = re.compile(r"([0-9][0-9]?[0-9]?)\s{0,2}(?:[a-z-]{1,20}\s)?[a-z]{2,20}s\b")
_COUNTED_WITHIN = 360
_TEMPLATE_KEY = re.compile(r'"\w{1,40}"\s{0,4}:')
_KATAKANA = re.compile(r"[ァ-ヺー][ァ-ヺー][ァ-ヺー]+")
_NO_SIGNS = bytes(set(range(256)) - set(b'{}();=<>"?,'))
_WIDE_QUOTES = "「『“"
_ENDS = {":": 1, "：": 1, "?": 2, "？": 2, ".": 3, "。": 3, "!": 3, ")": 4, "]": 4, "}": 4, '"': 4}
_STARTS = {"{": 1, "[": 1, '"': 2, "「": 2, "'": 2}

_SIZES = (3.0, 4.0, 4.7, 5.3, 6.0, 6.5, 7.0, 7.5, 8.0, 9.0, 10.0, 11.5)
_COUNTS = (0.5, 1.5, 2.5, 4.5, 7.5, 11.5)
_SHORT_SIZES = (-0.5, 0.5, 1.2, 2.2, 3.0, 4.0, 5.0, 6.0, 7.5)
_ONE_TO_FOUR = (0.5, 1.5, 2.5, 3.5)
NUMBERS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("chars", _SIZES),
    ("first line", _SIZES),
    ("last line", _SIZES),
    ("system", (1.0, 4.0, 5.0, 6.0, 7.0, 9.0)),
    ("lines", (0.5, 1.2, 1.8, 2.5, 3.2, 4.2, 5.5)),
    ("blank lines", (0.5, 1.5, 3.5, 8.5)),
    ("cjk", (0.05, 0.3, 0.6, 0.8, 0.93)),
    ("end", _ONE_TO_FOUR),
    ("first line's end", (0.5, 1.5, 2.5)),
    ("start", (0.5, 1.5)),
    ("options", _COUNTS),
    ("option size", _SHORT_SIZES),
    ("inline options", _COUNTS),
    ("template size", (-0.5, 3.5, 4.0, 5.0, 6.0, 7.0)),
    ("template keys", (-0.5, 0.5, 1.5, 3.5)),
    ("counted", (-0.5, 1.2, 1.8, 2.4, 3.0, 4.0)),
    ("wish", _SHORT_SIZES),
    ("quoted", _COUNTS),
    ("few-shot size", _SHORT_SIZES),
    ("few-shots", _COUNTS),
    ("numbers", _COUNTS),
    ("commas", _COUNTS),
    ("questions", (0.5, 1.5, 2.5)),
    ("ands", (0.5, 1.5, 2.5, 4.5)),
    ("katakana", _COUNTS),
    ("code marks", (0.5, 2.5, 6.5, 14.5, 24.5)),
    ("code share", (0.02, 0.2, 0.5)),
    ("tools", _COUNTS),
    ("tool fields", _COUNTS),
    ("turns", (1.5, 2.5, 4.5, 10.5)),
    ("last answer", _SHORT_SIZES),
    ("start tokens", _SHORT_SIZES),
    ("detail", (-0.5, 0.5)),
    ("rules", _SHORT_SIZES),
    ("rules over expert", (-3.0, -1.0, 1.0, 3.0)),
)
_LENGTHS = frozenset(
    ("chars", "first line", "last line", "system", "lines", "template size", "counted", "wish", "few-shot size",
     "last answer")
)  # fmt: skip
"""Integers whose thresholds are on the scale log2(1 + x)."""
_REAL = frozenset(("cjk", "option size", "code share", "start tokens", "rules", "rules over expert"))
"""Numbers that are not integers, given on the scale of their thresholds."""


def log2p(tokens: float) -> float:
    """log2(1 + tokens): the scale of all length predictions."""
    return math.log2(1.0 + tokens)


class _Ladder(dict[int, int]):
    """Code of an integer by its value: -1 (absent), 0, 1, ... until all thresholds are exceeded."""

    def __init__(self, codes: dict[int, int], top: int) -> None:
        super().__init__(codes)
        self._top = top

    def __missing__(self, number: int) -> int:
        return self._top


def _tables() -> tuple[list[_Ladder], list[tuple[float, ...]], list[tuple[int, ...]]]:
    """(tables of the integers, thresholds of the other numbers, codes of the other numbers), each in order.

    A code is a number's bits, shifted to its place behind the numbers before it. Codes of numbers that are not integers
    are indexed by how many thresholds are exceeded.
    """
    ladders: list[_Ladder] = []
    steps: list[tuple[float, ...]] = []
    step_codes: list[tuple[int, ...]] = []
    at = 0
    for name, thresholds in NUMBERS:
        codes = tuple(((1 << passed) - 1) << at for passed in range(len(thresholds) + 1))
        at += len(thresholds)
        if name in _REAL:
            steps.append(thresholds)
            step_codes.append(codes)
            continue
        scale = log2p if name in _LENGTHS else float
        rungs = {-1: codes[bisect_left(thresholds, -1.0)]}
        while (code := codes[bisect_left(thresholds, scale(len(rungs) - 1))]) != codes[-1]:
            rungs[len(rungs) - 1] = code
        ladders.append(_Ladder(rungs, codes[-1]))
    return ladders, steps, step_codes


_LADDERS, _STEPS, _STEP_CODES = _tables()
NUMBER_BITS = sum(len(thresholds) for _, thresholds in NUMBERS)


def number_bits(features: Features, view: View, start: float, rules: float) -> int:
    """Bits of all numbers. `start` and `rules` are the guesses of the expert and the rules, log2(1 + tokens)."""
    # No two numbers share a bit, so a sum joins them. A Python loop would cost as much as reading the text.
    passed: Iterator[int] = map(bisect_left, _STEPS, _real(features, view, start, rules))
    whole = sum(map(dict.__getitem__, _LADDERS, _whole(features, view)))
    return sum(map(getitem, _STEP_CODES, passed), whole)


def _whole(features: Features, view: View) -> tuple[int, ...]:
    """The integers of `NUMBERS`, in order; -1 if absent."""
    ask, template = view.ask, view.template
    count = ask.count
    head, tail = features.user_head, features.user_tail
    last_part = tail or head
    ascii_only = ask.isascii()
    counts = _COUNTED_ASCII if ascii_only else _COUNTED
    counted = counts.search(ask, 0, _COUNTED_WITHIN) if view.numbers else None
    # Counting among the few signs is a fraction of the cost of counting in the whole text.
    signs = ask.encode("latin-1", "ignore").translate(None, _NO_SIGNS)
    quotes, questions, commas = signs.count(b'"'), signs.count(b"?"), signs.count(b",")
    return (
        features.user_chars,
        view.first_line,
        view.last_line,
        len(features.system_text),
        newlines(head) + newlines(tail),
        count("\n\n") if "\n" in ask else 0,
        _ENDS.get(last_part[-1:], 0),
        _ENDS.get(head[view.first_line - 1 : view.first_line], 0),
        _STARTS.get(head[:1], 0),
        len(view.options),
        view.inline_options,
        len(template) or -1,
        len(_TEMPLATE_KEY.findall(template)) if template else -1,
        int(counted.group(1)) if counted else -1,
        -1 if features.wish is None else features.wish,
        quotes if ascii_only else quotes + sum(map(count, _WIDE_QUOTES)),
        -1 if features.few_shot is None else features.few_shot,
        features.few_shots,
        view.numbers,
        commas,
        questions if ascii_only else questions + count("？"),
        count(" and "),
        0 if ascii_only else len(_KATAKANA.findall(last_part[-300:])),
        len(signs) - quotes - questions - commas,
        view.tools,
        features.tool_fields,
        features.turns,
        -1 if features.last_answer is None else features.last_answer,
        features.detail,
    )


def _real(features: Features, view: View, start: float, rules: float) -> tuple[float, ...]:
    """The other numbers of `NUMBERS`, in order."""
    ask, options = view.ask, view.options
    # In UTF-8 a wide character takes two bytes more than a Latin one.
    cjk = 0.0 if ask.isascii() else (len(ask.encode("utf-8", "replace")) / len(ask) - 1.0) / 2.0
    size = log2p(sum(map(len, options)) / len(options)) if options else -1.0
    return cjk, size, features.code_share, start, rules, rules - start
