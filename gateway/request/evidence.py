"""Weighs evidence for each task in a short text: words, phrases and shapes such as option lists or arithmetic.

The text is the located instruction, never a whole document, so words in a pasted article do not count.
"""

# ruff: noqa: E501, SIM905  (tables read better in long rows)

from __future__ import annotations

import re

from gateway.request import tells
from gateway.request.marks import Mark
from gateway.request.vocabulary import PHRASES, WORDS
from gateway.types import Task

_OPTION_PAIRS = (("a)", "b)"), ("a.", "b."), ("a:", "b:"), ("(a", "(b"))
_NUMBER_PAIRS = (("1)", "2)"), ("1.", "2."), ("1:", "2:"))
_WIDE_OPTION_PAIRS = (("a）", "b）"), ("a：", "b："), ("a、", "b、"), ("ａ", "ｂ"), ("ア", "イ"), ("가.", "나."))
_WIDE_NUMBER_PAIRS = (("1：", "2："), ("1）", "2）"), ("1、", "2、"), ("①", "②"), ("（1", "（2"))
_CHOOSE_WORDS = frozenset("which choose select option options answer pick best correct".split())
_CHOOSE_MARKS = ("選", "どれ", "番号", "记", "哪", "选", "고르", "골라", "보기")
_HOW_MANY = frozenset("many much total cost cuántos cuántas cuánto combien viele".split())
_HOW_MANY_MARKS = ("何", "いくら", "多少", "几", "몇", "сколько")
_TWO_NUMBERS = re.compile(r"[\d０-９][^\d０-９]{1,200}[\d０-９]")
_BEFORE_OPTION = " \n(（\t"
_OPTION_WORDS = frozenset(("options", "choices"))
_OPTION_HEADS = ("options:", "choices:", "options are", "choices are", '"choices"', "options -")
_WIDE_OPTION_HEADS = ("選択肢", "选项", "선택지")
# Gates: a text without any of these characters contains none of the wide letter or number pairs.
_WIDE_LETTERS = frozenset("bｂイ나")
_WIDE_NUMBERS = frozenset("2２②")
_QUESTION_LABELS = (
    "question:", "passage:", "context:", "premise:", "hypothesis:", "sentence 1:", "text:", "review:", "tweet:",
)  # fmt: skip
_WIDE_QUESTION_LABELS = ("文1", "文１", "前提", "仮説", "質問：", "問題：", "質問:", "問題:", "문장 1", "질문:")
_STEPS = re.compile(
    r"step[ -]by[ -]step|think (?:carefully|through)|show your (?:work|reasoning)|explain your (?:reasoning|answer)|schritt für schritt"
    r"|étape par étape|paso a paso|ステップバイステップ|段階的に|順を追って|一歩ずつ|途中式|考え方も|理由も|一步一步|逐步|详细步骤|단계별|차근차근"
)
# "3 + 4", "$5", "6 %". It begins with a character class, so that the regex engine can skip to candidates.
_MATH_SIGN = re.compile(r"[0-9０-９$](?:(?<=\$)\d|(?<!\$)\s?(?:[+\-*/×÷=^]\s?\d|%))")
_CLOSED = re.compile(r"^(?:is|are|was|were|does|do|did|can|could|will|has|have|should|would) ")
_WRITE = frozenset("write compose draft create generate schreibe schreib écris rédige escribe scrivi escreva".split())
_FACT_WORDS = frozenset("who whom whose which what when where".split())
_OPEN_WORDS = frozenset(
    "how why explain describe are difference differences meaning think should could would you compare benefits ways causes effects if factors"
    " important importance influence role impact effect consider consequences reasons steps strategies tips implications happens better best".split()
)
_DETERMINERS = (" the ", "this ", "following ", "above ", "below ", "given ", "online ", "each ")
_WIDE_DETERMINERS = ("以下の", "次の", "この", "上の", "下記の", "下面的", "以下", "这篇", "다음 ", "이 ")
_STEP_GATE = frozenset("step think show explain schritt étape paso".split())
_STEP_PARTNERS = frozenset("by carefully through your paso".split())
_STEP_MARKS = ("step by", "step-by", "think carefully", "think through", "show your ", "explain your ", "paso a paso")
TELLING: tells.Lists = (
    *((0, words) for words in WORDS.values()),
    (tells.TASK_PHRASES, PHRASES),
    (tells.CHOOSE, _CHOOSE_WORDS),
    (tells.HOW_MANY, _HOW_MANY),
    (tells.OPTIONS, _OPTION_WORDS),
    (tells.WRITE, _WRITE),
    (tells.FACT, _FACT_WORDS),
    (tells.OPEN, _OPEN_WORDS),
    (tells.STEPS, _STEP_GATE),
    (tells.STEPS_TOO, _STEP_PARTNERS),
    (tells.LETTER_B, ("b",)),
    (tells.JSON, ("json",)),
)
"""All words that this module looks up; the other words of a text are dropped first."""
TELLING_MARKS: tells.Lists = (
    (tells.CHOOSE, _CHOOSE_MARKS),
    (tells.HOW_MANY, _HOW_MANY_MARKS),
    (tells.OPTION_HEAD, _WIDE_OPTION_HEADS),
    (tells.QUESTION_LABEL, _WIDE_QUESTION_LABELS),
)
"""The same for scripts without spaces."""
Scores = dict[Task, float]


def step_by_step(text: str, told: int) -> bool:
    """Whether the text asks for reasoning to be written out."""
    if text.isascii() and not (told & tells.STEPS and told & tells.STEPS_TOO and _has(text, _STEP_MARKS)):
        return False
    return _STEPS.search(text) is not None


def evidence(
    text: str, words: set[str], marks: list[Mark], told: int, chars: set[str], language: str, *, digits: bool
) -> Scores:
    """Evidence weights by task of a short lower-case text.

    Args:
        text: the text.
        words: its words that stand in `TELLING`.
        marks: the substrings found in it.
        told: bits of these words and marks (`tells`).
        chars: its distinct characters; empty if all letters are Latin.
        language: ISO 639-1 code.
        digits: whether it contains a digit.
    """
    scores: Scores = {}
    # Technical terms are written in Latin letters in every script.
    table = WORDS.get(language) or WORDS["en"]
    for word in table.keys() & words:
        task, weight = table[word]
        if task is Task.LONG_FORM and _is_input(text, word, _DETERMINERS):
            task, weight = Task.EXTRACTION, 0.7
        scores[task] = scores.get(task, 0.0) + weight
    for mark in marks:
        if mark.evidence is not None:
            task, weight = mark.evidence
            if task is not Task.LONG_FORM or mark.text.isascii() or not _is_input(text, mark.text, _WIDE_DETERMINERS):
                scores[task] = scores.get(task, 0.0) + weight
    if told & tells.TASK_PHRASES and language == "en":
        for word in PHRASES.keys() & words:
            for phrase, task, weight in PHRASES[word]:
                if phrase in text:
                    scores[task] = scores.get(task, 0.0) + weight
    _add_shapes(scores, text, told, chars, digits)
    return scores


def _is_input(text: str, word: str, determiners: tuple[str, ...]) -> bool:
    """Whether the word names the input ("the following article") rather than the text to be written."""
    at = text.find(word)
    return text[max(0, at - 12) : at].endswith(determiners)


def _add_shapes(scores: Scores, text: str, told: int, chars: set[str], digits: bool) -> None:
    """Adds evidence from shapes: option lists, arithmetic, closed questions, "write a story"."""
    options = _options(text, told, chars)
    if options:
        # A numbered list may also hold questions or notes, so it needs a word that asks for a choice.
        asked = options > 1 or told & tells.CHOOSE
        _add(scores, Task.MULTIPLE_CHOICE, 3 if asked else 0.7)
    if told & tells.JSON:
        _add(scores, Task.STRUCTURED_JSON, 2)
    if told & tells.QUESTION_LABEL or (":" in text and _has(text, _QUESTION_LABELS)):
        _add(scores, Task.EXTRACTION, 1)
    if digits:
        if _MATH_SIGN.search(text):
            _add(scores, Task.MATH, 1.2)
        if told & tells.HOW_MANY and _TWO_NUMBERS.search(text):
            _add(scores, Task.MATH, 2)
    if told & tells.FACT and not told & tells.OPEN and len(text) < 320 and "?" in text[-24:]:
        _add(scores, Task.SHORT_QA, 2.2)
    elif not told & tells.OPEN and len(text) < 160 and _CLOSED.match(text):
        _add(scores, Task.SHORT_QA, 1)
    if told & tells.WRITE:
        # A known object decides the task; without one the answer is at least longer than a label.
        _add(scores, Task.LONG_FORM if scores.get(Task.LONG_FORM) else Task.CHAT, 1.5)


def _add(scores: Scores, task: Task, weight: float) -> None:
    scores[task] = scores.get(task, 0.0) + weight


def _options(text: str, told: int, chars: set[str]) -> int:
    """2 if the text has lettered options or announces options, 1 if it has numbered ones, else 0."""
    if (
        told & tells.OPTION_HEAD
        or (told & tells.OPTIONS and _has(text, _OPTION_HEADS))
        or (told & tells.LETTER_B and _has_pair(text, _OPTION_PAIRS))
    ):
        return 2
    if not _WIDE_LETTERS.isdisjoint(chars) and _has_pair(text, _WIDE_OPTION_PAIRS):
        return 2
    return int(
        ("2" in text and _has_pair(text, _NUMBER_PAIRS))
        or (not _WIDE_NUMBERS.isdisjoint(chars) and _has_pair(text, _WIDE_NUMBER_PAIRS))
    )


def _has_pair(text: str, pairs: tuple[tuple[str, str], ...]) -> bool:
    for first, second in pairs:
        at = text.find(second, 3)
        if at > 0 and text[at - 1] in _BEFORE_OPTION:
            start = text.find(first, 0, at)
            if start >= 0 and (start == 0 or text[start - 1] in _BEFORE_OPTION):
                return True
    return False


def _has(text: str, marks: tuple[str, ...]) -> bool:
    # A plain loop: `any` with a generator costs as much as the search itself.
    for mark in marks:  # noqa: SIM110
        if mark in text:
            return True
    return False
