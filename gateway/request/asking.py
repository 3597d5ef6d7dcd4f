"""Reads the instruction of a request: language, task evidence, length wishes, lexicon groups, and where it stands.

The start of the last user turn, its end and the system prompt are read separately, and each gets a strength. The
strongest part of the user turn leads; evidence from the other parts counts 0.4 times. The system prompt leads only if
the user turn is material without an instruction, or if the prompt has stronger signs and the only wish about length, a
firm one. One look-up per word serves the task evidence, the wishes and the lexicon.
"""

from __future__ import annotations

import re
from functools import lru_cache, reduce
from operator import or_

from gateway.records import record
from gateway.request import evidence as tasks
from gateway.request import lexicon, tells, vocabulary, wish_words
from gateway.request.evidence import Scores, evidence, step_by_step
from gateway.request.instruction import ends, locate
from gateway.request.language import language_of
from gateway.request.marks import Mark, Marks
from gateway.request.wishes import Wish, find_detail, find_wish
from gateway.request.words import has_digit, word_list
from gateway.types import Place

_SPACELESS = frozenset({"ja", "zh", "ko"})
_TELLS = tells.table(
    (
        *tasks.TELLING,
        *wish_words.TELLING,
        (tells.PHRASES, lexicon.LATIN_PHRASES),
        *((bits << tells.GROUPS_AT, (word,)) for word, bits in lexicon.WORDS.items()),
    )
)
_TELLING = frozenset(_TELLS)
_TELLING_MARKS = tells.table(
    (
        *tasks.TELLING_MARKS,
        *wish_words.TELLING_MARKS,
        *((bits << tells.GROUPS_AT, (mark,)) for mark, bits in lexicon.MARKS.items()),
    )
)
_MARKS = Marks(_TELLING_MARKS, {})
_MARKS_OF = {language: Marks(_TELLING_MARKS, evidence) for language, evidence in vocabulary.MARKS.items()}
_PHRASES_AT = tells.GROUPS_AT + len(lexicon.GROUPS)
# Punctuation such as typographic quotes and dashes lies between these ranges and is no other script.
_OTHER_SCRIPT = re.compile("[\u0370-\u1fff\u2070-\U0010ffff]")
_LINE = 160
_KEPT = 1024
_SURE = 5.0
_GLANCE = 100
_ASKS = ("?", "？", "か。", "か")
_LEAST = 2.0
"""Parts weaker than this are material, not an instruction."""


@record
class Asking:
    """What was read from the instruction."""

    text: str
    place: Place
    language: str
    scores: Scores
    wish: Wish | None
    detail: int
    step_by_step: bool
    groups: tuple[int, ...]
    """In the order of `lexicon.Groups`."""


@record
class _Part:
    text: str
    language: str
    scores: Scores
    """Not to be mutated: cached parts are shared between requests."""
    wish: Wish | None
    detail: int
    steps: bool
    strength: float
    """How strongly the part looks like an instruction."""
    groups: int
    phrases: int
    """Bits of the lexicon's phrases."""
    marks: list[Mark]
    """Substrings found in scripts without spaces."""


def read_ask(user: str, system: str) -> Asking:
    """Reads the instruction from the last user turn and the system prompt."""
    ask = locate(user)
    tail = _read(ask.tail) if ask.tail else None
    # If the end holds a clear instruction, only the first characters of the start can add to it.
    sure = tail is not None and tail.strength >= _SURE
    head = _read(ask.head[:_GLANCE] if sure else ask.head)
    told = _read(ends(system)) if system else _NOTHING
    lead, place = head, Place.WHOLE
    others: list[_Part] = []
    if tail is not None:
        if tail.strength >= lead.strength:
            lead, other, place = tail, lead, Place.END
        else:
            other, place = tail, Place.START
        if other.strength >= _LEAST:
            others.append(other)
    if system:
        if told.strength >= _LEAST and (lead.strength < _LEAST or _rules(told, lead)):
            others.append(lead)
            lead, place = told, Place.SYSTEM
        else:
            others.append(told)
    return _merge(lead, others, place, _groups(told, head, tail or head))


def _groups(told: _Part, head: _Part, tail: _Part) -> tuple[int, ...]:
    """`Groups`: lexicon groups of the system prompt and of the turn's first line, edges and last line."""
    first, last = head.groups, tail.groups
    cut = head.text.find("\n")
    if cut >= 0:
        first = _groups_in(head.text[: min(cut, _LINE)].lower(), head.marks)
    cut = tail.text.rfind("\n")
    if cut >= 0:
        last = _groups_in(tail.text[cut + 1 :][-_LINE:].lower(), tail.marks)
    phrases = told.phrases | head.phrases | tail.phrases
    return told.groups, first, head.groups | tail.groups, last, phrases


def groups_of(text: str) -> int:
    """Lexicon groups in a short text, as bits."""
    lower = text.lower()
    return _groups_in(lower, [] if lower.isascii() else _MARKS.found(lower, set(lower)))


def _groups_in(line: str, marks: list[Mark]) -> int:
    """Lexicon groups in a lower-case text that contains no marks but these, as bits."""
    told = reduce(or_, map(_TELLS.__getitem__, _TELLING.intersection(word_list(line))), 0)
    for mark in marks:
        if mark.text in line:
            told |= mark.told
    return told >> tells.GROUPS_AT & lexicon.GROUP_BITS


def _rules(told: _Part, asked: _Part) -> bool:
    """Whether the system prompt outweighs the user turn: it has a firm wish, the turn has none and is weaker."""
    return told.wish is not None and told.wish.firm and asked.wish is None and told.strength > asked.strength


@lru_cache(_KEPT)
def _read(text: str) -> _Part:
    """Reads one short text. Results are cached, because texts recur: most requests use one of a few system prompts, a
    template ends alike in every request, and an agent repeats its user's words at every step."""
    lower = text.lower()
    listed = word_list(lower)
    words = set(listed)
    chars = set(lower) if not lower.isascii() and _OTHER_SCRIPT.search(lower) else set()
    language = language_of(lower, words, chars)
    cjk = language in _SPACELESS
    # Keep only the few words that the tables below contain.
    words &= _TELLING
    told = reduce(or_, map(_TELLS.__getitem__, words), 0)
    phrases = lexicon.phrases_in(listed, words) if told & tells.PHRASES else 0
    marks = _MARKS_OF.get(language, _MARKS).found(lower, chars) if chars else []
    if marks:
        for mark in marks:
            told |= mark.told
        phrases |= told >> _PHRASES_AT
    groups = told >> tells.GROUPS_AT & lexicon.GROUP_BITS
    digits = has_digit(lower)
    scores = evidence(lower, words, marks, told, chars, language, digits=digits)
    wish = find_wish(lower, told, chars, cjk=cjk, digits=digits)
    strength = max(scores.values()) if scores else 0.0
    if wish is not None:
        strength += 3.0 if wish.firm else 2.0
    if text.rstrip().endswith(_ASKS):
        strength += 1.0
    detail = find_detail(told, cjk=cjk)
    return _Part(text, language, scores, wish, detail, step_by_step(lower, told), strength, groups, phrases, marks)


_NOTHING = _Part("", "und", {}, None, 0, False, 0.0, 0, 0, [])


def _merge(lead: _Part, others: list[_Part], place: Place, groups: tuple[int, ...]) -> Asking:
    text, wish, detail, steps = lead.text, lead.wish, lead.detail, lead.steps
    scores = lead.scores.copy()
    for other in others:
        for task, weight in other.scores.items():
            scores[task] = scores.get(task, 0.0) + 0.4 * weight
        wish = wish or other.wish
        detail = detail or other.detail
        steps = steps or other.steps
        if other.text and len(text) + len(other.text) <= 1000:
            text = f"{text}\n{other.text}"
    return Asking(text, place, lead.language, scores, wish, detail, steps, groups)
