"""Evidence for tasks in a short text: words, phrases and shapes, each with a weight.

The text is the located ask, never a whole document, so a word in a pasted article counts for nothing.
"""

# ruff: noqa: E501, SIM905  (tables read better in long rows)

from __future__ import annotations

import re

from gateway.request.vocabulary import PHRASES, SUBSTRINGS, WORDS
from gateway.types import Task

WORD = re.compile(r"[a-zà-öø-ÿ+#]+")
_OPTION_PAIRS = (
    ("a)", "b)"), ("a.", "b."), ("a:", "b:"), ("a）", "b）"), ("a：", "b："), ("ａ", "ｂ"), ("1)", "2)"), ("1.", "2."),
    ("1:", "2:"), ("1：", "2："), ("1）", "2）"), ("①", "②"), ("ア", "イ"), ("(a", "(b"), ("（1", "（2"),
)  # fmt: skip
_BEFORE_OPTION = " \n(（\t"
_OPTION_HEADS = ("options:", "choices:", "options are", "choices are", '"choices"', "選択肢", "选项", "선택지")
_QUESTION_LABELS = (
    "question:", "passage:", "context:", "premise:", "hypothesis:", "sentence 1:", "text:", "review:", "tweet:",
    "文1", "文１", "前提", "仮説", "質問：", "問題：", "質問:", "問題:",
)  # fmt: skip
_STEPS = re.compile(
    r"step[ -]by[ -]step|think (?:carefully|through)|show your (?:work|reasoning)|explain your (?:reasoning|answer)|schritt für schritt"
    r"|étape par étape|paso a paso|ステップバイステップ|段階的に|順を追って|一歩ずつ|途中式|考え方も|理由も|一步一步|逐步|详细步骤|단계별|차근차근"
)
_MATH_SIGN = re.compile(r"\d\s?[+\-*/×÷=^]\s?\d|\$\d|\d\s?%")
_CLOSED = re.compile(r"^(?:is|are|was|were|does|do|did|can|could|will|has|have|should|would) ")
_WHO = re.compile(
    r"^(?:who|when|where|which|what (?:year|is the (?:name|capital)|country|city|company|color|colour)|in what|how (?:old|tall|far|long|many))\b"
)
_WRITE = frozenset("write compose draft create generate schreibe schreib écris rédige escribe scrivi escreva".split())
_STEP_GATE = frozenset("step think show explain schritt étape paso".split())
_DIGIT = re.compile(r"\d")
Scores = dict[Task, float]


def words_of(text: str) -> set[str]:
    """The Latin words of a lower-case text."""
    return set(WORD.findall(text))


def step_by_step(text: str, words: set[str]) -> bool:
    """Whether a derivation is to be written out."""
    if text.isascii() and not words & _STEP_GATE:
        return False
    return _STEPS.search(text) is not None


def evidence(text: str, words: set[str], language: str) -> Scores:
    """Weights by task in a short lower-case text."""
    scores: Scores = {}
    table = WORDS.get(language)
    if table is None and language in SUBSTRINGS:
        # Technical words stay Latin in every script.
        table = WORDS["en"] if words else None
    elif table is None:
        table = WORDS["en"]
    for word in table.keys() & words if table else ():
        task, weight = table[word]  # type: ignore[index]
        scores[task] = scores.get(task, 0.0) + weight
    anchored = SUBSTRINGS.get(language)
    if anchored is not None:
        for char in anchored.keys() & set(text):
            _add_found(scores, anchored[char], text)
    elif language == "en":
        for word in PHRASES.keys() & words:
            _add_found(scores, PHRASES[word], text)
    _add_shapes(scores, text, words)
    return scores


def _add_found(scores: Scores, phrases: tuple[tuple[str, Task, float], ...], text: str) -> None:
    for phrase, task, weight in phrases:
        if phrase in text:
            scores[task] = scores.get(task, 0.0) + weight


def _add_shapes(scores: Scores, text: str, words: set[str]) -> None:
    """Forms that say more than words do: options, arithmetic, closed questions, "write a story"."""

    def add(task: Task, weight: float) -> None:
        scores[task] = scores.get(task, 0.0) + weight

    if _has_options(text):
        add(Task.MULTIPLE_CHOICE, 3)
    if any(label in text for label in _QUESTION_LABELS):
        add(Task.EXTRACTION, 1)
    if _DIGIT.search(text) and _MATH_SIGN.search(text):
        add(Task.MATH, 1.2)
    if len(text) < 160:
        if _WHO.match(text):
            add(Task.SHORT_QA, 1.8)
        elif _CLOSED.match(text):
            add(Task.SHORT_QA, 1)
    if words & _WRITE:
        # What is written decides; without an object that is known, writing is at least not a label.
        add(Task.LONG_FORM if scores.get(Task.LONG_FORM) else Task.CHAT, 1.5)


def _has_options(text: str) -> bool:
    """Whether lettered or numbered options stand in the text."""
    if any(head in text for head in _OPTION_HEADS):
        return True
    for first, second in _OPTION_PAIRS:
        at = text.find(second, 3)
        if at > 0 and text[at - 1] in _BEFORE_OPTION:
            start = text.find(first, 0, at)
            if start >= 0 and (start == 0 or text[start - 1] in _BEFORE_OPTION):
                return True
    return False
