"""Explicit wishes about length: "in 200 words", 「200字程度」, "yes or no", 「一言で」, "only the label".

Each language has a table of units with tokens for one of them. A number is only taken together with a unit, and only
where it says how long the answer is to be ("a 500-word essay", "in 3 sentences") rather than how long the input is
("this 6,000-word article").
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.request.wish_words import (
    ABOUT_INPUT,
    AIM_LEADS,
    AIM_TAIL,
    AIMS,
    ANY_LABEL,
    ARTICLES,
    ASKS_FOR,
    BRIEF,
    BRIEF_CHARS,
    BRIEF_CJK,
    CJK,
    CJK_ITEMS,
    CJK_SMALL,
    CJK_UNITS,
    COMPOUND,
    COMPOUNDS,
    COUNTED,
    DETAIL,
    DETAIL_CHARS,
    DETAIL_CJK,
    FIRM_CHARS,
    FIRM_CJK,
    FIRM_GATE,
    FIRM_LATIN,
    FORMATS,
    ITEMS,
    LARGEST,
    LATIN,
    LATIN_UNITS,
    LESS,
    LIST_LEAD,
    LIST_TAIL,
    MORE,
    NUMBERS,
    OF_INPUT,
    SMALL,
    SMALL_ASK,
    SMALL_CJK,
    UNIT_GATE,
    WITHIN,
)


@dataclass(frozen=True, slots=True)
class Wish:
    """A wished length in tokens."""

    tokens: int
    firm: bool = False
    """Whether it names the whole answer, so that little else can follow."""


def find_wish(text: str, words: set[str], chars: set[str], *, cjk: bool) -> Wish | None:
    """The length wish in a short lower-case text; the firmest one, else the one that is said to be an aim."""
    firm = _firm(text, words, chars, cjk)
    sized = _sized_cjk(text) if cjk and COUNTED.search(text) else None
    if sized is None and words & UNIT_GATE:
        sized = _sized_latin(text)
    if firm and sized and sized.tokens > 30:
        return sized
    return firm or sized or _small(text, words, cjk)


def _small(text: str, words: set[str], cjk: bool) -> Wish | None:
    """A single small thing that is asked for: a title, a question, a slogan."""
    if words & SMALL.keys():
        match = SMALL_ASK.search(text)
        if match:
            return Wish(SMALL[match.group("thing")])
    for mark, tokens in SMALL_CJK if cjk else ():
        if mark in text and len(text) < 400 and ASKS_FOR.search(text, text.index(mark), text.index(mark) + 24):
            return Wish(tokens)
    return None


def find_detail(words: set[str], text: str, chars: set[str]) -> int:
    """-1 where brevity is asked for, 1 where detail is, else 0. `text` is only needed in scripts without spaces."""
    if words & DETAIL or (text and chars & DETAIL_CHARS and _has(text, DETAIL_CJK)):
        return 1
    return -1 if words & BRIEF or (text and chars & BRIEF_CHARS and _has(text, BRIEF_CJK)) else 0


def _has(text: str, marks: tuple[str, ...]) -> bool:
    # A plain loop: `any` with a generator costs as much as the search.
    for mark in marks:  # noqa: SIM110
        if mark in text:
            return True
    return False


def _firm(text: str, words: set[str], chars: set[str], cjk: bool) -> Wish | None:
    if cjk and chars & FIRM_CHARS:
        for pattern, tokens in FIRM_CJK:
            if pattern.search(text) and (tokens < ANY_LABEL or not words & FORMATS):
                return Wish(tokens, firm=True)
    if words & FIRM_GATE:
        for pattern, tokens in FIRM_LATIN:
            if pattern.search(text) and (tokens < ANY_LABEL or not words & FORMATS):
                return Wish(tokens, firm=True)
    return None


def _sized_latin(text: str) -> Wish | None:
    best: Wish | None = None
    for match in LATIN.finditer(text):
        unit, lead = match.group("unit"), match.group("lead").split()
        number = _number(match.group("number"), match.group("range"), match.group("k"))
        rate = LATIN_UNITS.get(unit, 24.0 if unit in ITEMS else None)
        if number is None or rate is None or (unit in ITEMS and number < 2):
            continue
        if lead and lead[-1] in OF_INPUT and lead[0] not in AIMS:
            continue
        # "a line", "a page" are things; only "in a line" is a length.
        if match.group("number") in ARTICLES and (not lead or lead[0] not in AIMS):
            continue
        before = text[max(0, match.start() - 16) : match.start("number")]
        tokens = number * rate * (1.25 if MORE.search(before) else 0.75 if LESS.search(before) else 1.0)
        wish = Wish(min(LARGEST, max(1, round(tokens))), firm=unit in ("word", "wort", "mot", "palabra"))
        if lead and lead[0] in AIMS:
            return wish
        best = best or wish
    return best


def _sized_cjk(text: str) -> Wish | None:
    for match in CJK.finditer(text):
        unit, tail = match.group("unit"), match.group("tail")
        number = _number(match.group("number"), match.group("range"), match.group("k"))
        if number is None or ABOUT_INPUT.search(text[max(0, match.start() - 3) : match.start()]):
            continue
        before = text[max(0, match.start() - 4) : match.start()]
        if unit in CJK_ITEMS and (number < 2 or not (LIST_TAIL.search(tail) or LIST_LEAD.search(before))):
            continue
        if unit in CJK_SMALL and not (AIM_TAIL.match(tail) or before.endswith(AIM_LEADS)):
            continue
        if number < COMPOUND and tail[:1] in COMPOUNDS:
            continue
        factor = 1.2 if tail.startswith(("以上", "이상")) else 0.8 if tail.startswith(WITHIN) else 1.0
        firm = unit in ("語", "単語", "단어") and number <= 2
        return Wish(min(LARGEST, max(1, round(number * CJK_UNITS[unit] * factor))), firm)
    return None


def _number(text: str, span: str | None, k: str | None) -> float | None:
    named = NUMBERS.get(text)
    if named is None:
        digits = text.replace(",", "").replace(".", "").replace("，", "")
        if not digits.isdigit():
            return None
        named = int(digits)
    number = float(named)
    if span:
        upper = int("".join(char for char in span if char.isdigit()) or 0)
        number = (number + upper) / 2 if upper > number else number
    return number * {"k": 1000, "千": 1000, "万": 10_000}.get(k or "", 1)
