"""Finds explicit length wishes: "in 200 words", 「200字程度」, "yes or no", 「一言で」, "only the label".

Each language has a table of units with the tokens of one unit. A number counts only with a unit, and only if it states
the length of the answer ("a 500-word essay", "in 3 sentences") and not of the input ("this 6,000-word article").
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.request import tells
from gateway.request import wish_words as table

_GATES = tells.UNIT | tells.SMALL | table.ANY_FIRM
"""A text in a spaced script contains no wish unless its words have one of these bits."""


class Wish(NamedTuple):
    """A wished length, in tokens."""

    tokens: int
    firm: bool = False
    """True if the wish covers the whole answer ("only the label"), so that little can follow."""


def find_wish(text: str, told: int, chars: set[str], *, cjk: bool, digits: bool) -> Wish | None:
    """The length wish in a short lower-case text, or None. A firm wish wins, unless a number with a unit asks for more
    than 30 tokens.

    `told` holds the bits of the text's words (`tells`).
    """
    if not cjk and not told & _GATES:
        return None
    firm = _firm(text, told, chars, cjk)
    sized = _sized_cjk(text) if cjk and table.COUNTED.search(text) else None
    if sized is None and told & tells.UNIT and (digits or told & tells.NUMBER):
        sized = _sized_latin(text)
    if firm and sized and sized.tokens > 30:
        return sized
    return firm or sized or _small(text, told, cjk=cjk)


def _small(text: str, told: int, *, cjk: bool) -> Wish | None:
    """A wish for one small thing: a title, a question, a slogan."""
    if told & tells.SMALL:
        match = table.SMALL_ASK.search(text)
        if match:
            return Wish(table.SMALL[match.group("thing")])
    for mark, tokens in table.SMALL_CJK if cjk and told & tells.SMALL_CJK else ():
        if mark in text and len(text) < 400 and table.ASKS_FOR.search(text, text.index(mark), text.index(mark) + 24):
            return Wish(tokens)
    return None


def find_detail(told: int, *, cjk: bool) -> int:
    """-1 if the text asks for brevity, 1 if it asks for detail, else 0."""
    if told & (table.ANY_DETAIL if cjk else tells.DETAIL):
        return 1
    return -1 if told & (table.ANY_BRIEF if cjk else tells.BRIEF) else 0


def _firm(text: str, told: int, chars: set[str], cjk: bool) -> Wish | None:
    if cjk and told & table.ANY_FIRM_CJK and chars & table.FIRM_CHARS:
        for at, (_, pattern, tokens) in enumerate(table.FIRM_CJK):
            asked = told & tells.FIRM_CJK << at and (tokens < table.ANY_LABEL or not told & tells.FORMAT)
            if asked and pattern.search(text):
                return Wish(tokens, firm=True)
    if told & table.ANY_FIRM:
        for at, (_, pattern, tokens) in enumerate(table.FIRM_LATIN):
            asked = told & tells.FIRM << at and (tokens < table.ANY_LABEL or not told & tells.FORMAT)
            if asked and pattern.search(text):
                return Wish(tokens, firm=True)
    return None


def _sized_latin(text: str) -> Wish | None:
    """The first number with a unit that is stated as an aim ("in 3 sentences"), else the first with a unit."""
    for hyphen in table.HYPHENS:
        text = text.replace(hyphen, " ")
    tokens = [token.strip(table.PUNCTUATION) for token in text.split()]
    best: Wish | None = None
    for i in [i for i, token in enumerate(tokens) if token in table.SIZED]:
        unit = tokens[i]
        is_item = unit in table.ITEMS
        at = i - 1
        # "5 creative ideas", "two short sentences": one word may stand in between.
        if at > 0 and _number(tokens[at]) is None and (is_item or tokens[at] in table.BETWEEN):
            at -= 1
        number = _number(tokens[at]) if at >= 0 else None
        if number is None or (is_item and number < 2):
            continue
        article = tokens[at] in table.ARTICLES
        at, number = _with_range(tokens, at, number)
        at -= 1 if at > 0 and tokens[at - 1] in table.ABOUT else 0
        lead = tokens[at - 1] if at > 0 else ""
        first = tokens[at - 2] if at > 1 else ""
        aimed = lead in table.AIMS or (first in table.AIMS and lead not in table.LATIN_UNITS)
        # "this 6,000-word article" is input. "a line" and "a page" are things; only "in a line" is a length.
        if (lead in table.OF_INPUT and not aimed) or (article and lead not in table.AIMS):
            continue
        before = f"{first} {lead}"
        factor = 1.25 if table.MORE.search(before) else 0.75 if table.LESS.search(before) else 1.0
        tokens_wished = number * (24.0 if is_item else table.LATIN_UNITS[unit]) * factor
        wish = Wish(min(table.LARGEST, max(1, round(tokens_wished))), firm=unit in table.ONE_WORD)
        if aimed:
            return wish
        best = best or wish
    return best


def _with_range(tokens: list[str], at: int, number: float) -> tuple[int, float]:
    """(index, number), with a range ("3-4", "two to three") reduced to its middle at the index of its lower end."""
    step = 2 if at > 1 and tokens[at - 1] in ("to", "or", "bis", "à", "a") else 1
    lower = _number(tokens[at - step]) if at >= step and tokens[at - step] not in table.ARTICLES else None
    return (at - step, (lower + number) / 2) if lower is not None and lower < number else (at, number)


def _sized_cjk(text: str) -> Wish | None:
    for match in table.CJK.finditer(text):
        unit, tail = match.group("unit"), match.group("tail")
        number = _number(match.group("number") + (match.group("k") or ""))
        if number is None or table.ABOUT_INPUT.search(text[max(0, match.start() - 3) : match.start()]):
            continue
        before = text[max(0, match.start() - 4) : match.start()]
        if unit in table.CJK_ITEMS and (
            number < 2 or not (table.LIST_TAIL.search(tail) or table.LIST_LEAD.search(before))
        ):
            continue
        if unit in table.CJK_SMALL and not (table.AIM_TAIL.match(tail) or before.endswith(table.AIM_LEADS)):
            continue
        if number < table.COMPOUND and tail[:1] in table.COMPOUNDS:
            continue
        factor = 1.2 if tail.startswith(("以上", "이상")) else 0.8 if tail.startswith(table.WITHIN) else 1.0
        firm = unit in ("語", "単語", "단어") and number <= 2
        return Wish(min(table.LARGEST, max(1, round(number * table.CJK_UNITS[unit] * factor))), firm)
    return None


def _number(token: str) -> float | None:
    """Parses a number in digits ("3,000", "2k", 「２００」) or words; None for any other word."""
    named = table.NUMBERS.get(token)
    if named is not None:
        return named
    factor = 1
    if token[-1:] in ("k", "千", "万"):
        factor = 10_000 if token[-1] == "万" else 1000
        token = token[:-1]
    digits = token.replace(",", "").replace(".", "").replace("，", "")
    return float(int(digits[:9]) * factor) if digits.isdecimal() else None
