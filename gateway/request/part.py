"""Reads one short text that may hold the instruction: its language, evidence of the task, length wish, lexicon groups.

The idea: a text has many words, and few of them mean anything here. So each word is looked up once, in one table of all
words that any list holds (`tells`); the bits of those that are found say which lists to look at more closely. Scripts
without spaces have no words to look up, so known substrings (`marks`) take their place.
"""

from __future__ import annotations

import re
from functools import lru_cache, reduce
from operator import or_

from gateway.records import record
from gateway.request import evidence as tasks
from gateway.request import lexicon, tells, vocabulary, wish_words
from gateway.request.evidence import Scores, evidence, step_by_step
from gateway.request.language import language_of
from gateway.request.marks import Mark, Marks
from gateway.request.wishes import Wish, find_detail, find_wish
from gateway.request.words import has_digit, word_list

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
_KEPT = 1024
_ASKS = ("?", "？", "か。", "か")
_FIRM_WISH, _WISH, _QUESTION = 3.0, 2.0, 1.0
"""What these add to a part's strength, beside the weight of its likeliest task."""


@record
class Part:
    """What was read from one text."""

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


NOTHING = Part("", "und", {}, None, 0, False, 0.0, 0, 0, [])
"""What is read from no text."""


@lru_cache(_KEPT)
def read_part(text: str) -> Part:
    """Reads one short text. Results are cached, because texts recur: most requests use one of a few system prompts, a
    template ends alike in every request, and an agent repeats its user's words at every step.

    For example, a wish for 200 characters in Japanese comes to 144 tokens; "summarize" weighs 4.5, a wish 2 more:

        >>> part = read_part("この記事を200字程度で要約してください。")
        >>> part.language, part.scores, part.wish, part.strength
        ('ja', {<Task.SUMMARIZATION: 'summarization'>: 4.5}, Wish(tokens=144, firm=False), 6.5)
        >>> sorted(mark.text for mark in part.marks)
        ['字', '要約', '記事']
    """
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
        strength += _FIRM_WISH if wish.firm else _WISH
    if text.rstrip().endswith(_ASKS):
        strength += _QUESTION
    detail = find_detail(told, cjk=cjk)
    return Part(text, language, scores, wish, detail, step_by_step(lower, told), strength, groups, phrases, marks)


def groups_of(text: str) -> int:
    """Lexicon groups in a short text, as bits."""
    lower = text.lower()
    return groups_in(lower, [] if lower.isascii() else _MARKS.found(lower, set(lower)))


def groups_in(line: str, marks: list[Mark]) -> int:
    """Lexicon groups in a lower-case text that contains no marks but these, as bits."""
    told = reduce(or_, map(_TELLS.__getitem__, _TELLING.intersection(word_list(line))), 0)
    for mark in marks:
        if mark.text in line:
            told |= mark.told
    return told >> tells.GROUPS_AT & lexicon.GROUP_BITS
