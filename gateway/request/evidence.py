"""Evidence for tasks in a short text: words, phrases and shapes, each with a weight.

The text is the located ask, never a whole document, so a word in a pasted article counts for nothing.
"""

# ruff: noqa: E501, SIM905  (tables read better in long rows)

from __future__ import annotations

import re

from gateway.request.vocabulary import PHRASES, SUBSTRINGS, WORDS
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
_WIDE_OPTION_CHARS = frozenset("肢项선bｂイ나2２②")
_WIDE_LABEL_CHARS = frozenset("１1仮質問前장질")
_QUESTION_LABELS = (
    "question:", "passage:", "context:", "premise:", "hypothesis:", "sentence 1:", "text:", "review:", "tweet:",
)  # fmt: skip
_WIDE_QUESTION_LABELS = ("文1", "文１", "前提", "仮説", "質問：", "問題：", "質問:", "問題:", "문장 1", "질문:")
_STEPS = re.compile(
    r"step[ -]by[ -]step|think (?:carefully|through)|show your (?:work|reasoning)|explain your (?:reasoning|answer)|schritt für schritt"
    r"|étape par étape|paso a paso|ステップバイステップ|段階的に|順を追って|一歩ずつ|途中式|考え方も|理由も|一步一步|逐步|详细步骤|단계별|차근차근"
)
# "3 + 4", "$5", "6 %"; begins with one class of characters, at which the search can leap.
_MATH_SIGN = re.compile(r"[\d$](?:(?<=\$)\d|(?<!\$)\s?(?:[+\-*/×÷=^]\s?\d|%))")
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
TELLING = frozenset().union(
    *WORDS.values(),
    PHRASES,
    _CHOOSE_WORDS,
    _HOW_MANY,
    _OPTION_WORDS,
    _WRITE,
    _FACT_WORDS,
    _OPEN_WORDS,
    _STEP_GATE,
    _STEP_PARTNERS,
    ("b",),
)
"""Every word that is asked for here: the others of a text need not be looked at."""
Scores = dict[Task, float]


def step_by_step(text: str, words: set[str]) -> bool:
    """Whether a derivation is to be written out."""
    if text.isascii() and not (words & _STEP_GATE and words & _STEP_PARTNERS and _has(text, _STEP_MARKS)):
        return False
    return _STEPS.search(text) is not None


def evidence(text: str, words: set[str], chars: set[str], language: str, *, digits: bool) -> Scores:
    """Weights by task in a short lower-case text with these `TELLING` words and, where it is not ASCII, characters.

    `digits`: whether it holds any.
    """
    scores: Scores = {}
    table = WORDS.get(language)
    if table is None and language in SUBSTRINGS:
        # Technical words stay Latin in every script.
        table = WORDS["en"] if words else None
    elif table is None:
        table = WORDS["en"]
    for word in table.keys() & words if table else ():
        task, weight = table[word]  # type: ignore[index]
        if task is Task.LONG_FORM and _is_input(text, word, _DETERMINERS):
            task, weight = Task.EXTRACTION, 0.7
        scores[task] = scores.get(task, 0.0) + weight
    anchored = SUBSTRINGS.get(language)
    if anchored is not None:
        for char in anchored.keys() & chars:
            _add_found(scores, anchored[char], text)
    elif language == "en":
        for word in PHRASES.keys() & words:
            _add_found(scores, PHRASES[word], text)
    _add_shapes(scores, text, words, chars, digits)
    return scores


def _add_found(scores: Scores, phrases: tuple[tuple[str, Task, float], ...], text: str) -> None:
    for phrase, task, weight in phrases:
        if phrase in text:
            if task is Task.LONG_FORM and not phrase.isascii() and _is_input(text, phrase, _WIDE_DETERMINERS):
                continue
            scores[task] = scores.get(task, 0.0) + weight


def _is_input(text: str, word: str, determiners: tuple[str, ...]) -> bool:
    """Whether "the following article" or the like is what is worked on rather than what is to be written."""
    at = text.find(word)
    return text[max(0, at - 12) : at].endswith(determiners)


def _add_shapes(scores: Scores, text: str, words: set[str], chars: set[str], digits: bool) -> None:
    """Forms that say more than words do: options, arithmetic, closed questions, "write a story"."""

    def add(task: Task, weight: float) -> None:
        scores[task] = scores.get(task, 0.0) + weight

    options = _options(text, words, chars)
    if options:
        # A numbered list is as often a list of questions or notes; a choice has to be asked for.
        add(Task.MULTIPLE_CHOICE, 3 if options > 1 or words & _CHOOSE_WORDS or _has(text, _CHOOSE_MARKS) else 0.7)
    if "json" in words:
        add(Task.STRUCTURED_JSON, 2)
    if (":" in text and _has(text, _QUESTION_LABELS)) or (
        chars & _WIDE_LABEL_CHARS and _has(text, _WIDE_QUESTION_LABELS)
    ):
        add(Task.EXTRACTION, 1)
    if digits:
        if _MATH_SIGN.search(text):
            add(Task.MATH, 1.2)
        if (words & _HOW_MANY or _has(text, _HOW_MANY_MARKS)) and _TWO_NUMBERS.search(text):
            add(Task.MATH, 2)
    if len(text) < 320 and words & _FACT_WORDS and not words & _OPEN_WORDS and "?" in text[-24:]:
        add(Task.SHORT_QA, 2.2)
    elif len(text) < 160 and _CLOSED.match(text) and not words & _OPEN_WORDS:
        add(Task.SHORT_QA, 1)
    if words & _WRITE:
        # What is written decides; without an object that is known, writing is at least not a label.
        add(Task.LONG_FORM if scores.get(Task.LONG_FORM) else Task.CHAT, 1.5)


def _options(text: str, words: set[str], chars: set[str]) -> int:
    """2 where lettered options stand in the text or options are announced, 1 where they are numbered, else 0."""
    wide = chars & _WIDE_OPTION_CHARS
    if (words & _OPTION_WORDS and _has(text, _OPTION_HEADS)) or (wide and _has(text, _WIDE_OPTION_HEADS)):
        return 2
    if ("b" in words and _has_pair(text, _OPTION_PAIRS)) or (wide and _has_pair(text, _WIDE_OPTION_PAIRS)):
        return 2
    return int(("2" in text and _has_pair(text, _NUMBER_PAIRS)) or (bool(wide) and _has_pair(text, _WIDE_NUMBER_PAIRS)))


def _has_pair(text: str, pairs: tuple[tuple[str, str], ...]) -> bool:
    for first, second in pairs:
        at = text.find(second, 3)
        if at > 0 and text[at - 1] in _BEFORE_OPTION:
            start = text.find(first, 0, at)
            if start >= 0 and (start == 0 or text[start - 1] in _BEFORE_OPTION):
                return True
    return False


def _has(text: str, marks: tuple[str, ...]) -> bool:
    # A plain loop: `any` with a generator costs as much as the search.
    for mark in marks:  # noqa: SIM110
        if mark in text:
            return True
    return False
