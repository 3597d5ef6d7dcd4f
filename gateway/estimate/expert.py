"""The starting guess: classifies a request into one of a few cases and returns that case's length. Rules, not learned.

A model trained on some sources knows little about the next one. What holds everywhere (a label is short, a translation
is as long as its text, examples show the length) is therefore coded here. The prior learns corrections to this guess;
where training data say nothing, the guess stands.
"""

from __future__ import annotations

import math

from gateway.records import record
from gateway.request.lexicon import BIT, PHRASE_BIT
from gateway.types import Features

_SETTLED = ("scoring", "choice", "schema", "few-shot")
CASES: tuple[str, ...] = (
    *_SETTLED,
    "firm wish", "wish", "tool call", "steps", "template", "template array", "label by system", "label",
    "either", "options", "choose", "code", "translate", "summarize", "rewrite", "sentence", "write",
    "reading", "explain", "word problem", "extract", "question", "long text", "bare", "nothing",
)  # fmt: skip
SETTLED = frozenset(_SETTLED)
"""Cases in which the request itself states the length, so that learned corrections count little."""

_OPEN = sum(BIT[g] for g in ("explain", "analyze", "text", "reason", "how", "why", "create", "long"))
_LABEL = BIT["word"] | BIT["answer"] | BIT["classify"]
_PICK = _LABEL | BIT["choose"] | BIT["who"] | BIT["what"] | BIT["is"]
_TALK = BIT["explain"] | BIT["analyze"] | BIT["how"] | BIT["why"] | BIT["list"] | BIT["opinion"]
_LOOK_UP = BIT["who"] | BIT["answer"] | BIT["extract"] | BIT["what"]
_BINARY = PHRASE_BIT["yes or no"] | PHRASE_BIT["one word"]


@record
class View:
    """Lexicon bits per window of text, and shape features of the instruction."""

    system: int
    first: int
    body: int
    last: int
    any: int
    phrases: int
    switches: int
    either: bool
    template: str
    array: bool
    options: list[str]
    inline_options: int
    numbers: int
    ask: str
    first_line: int
    last_line: int
    question: bool
    tools: int
    features: Features


def expert(view: View) -> tuple[str, float]:
    """(case, guess in log2(1 + tokens))."""
    case, tokens = _settled(view) or _short(view) or _by_verb(view)
    return case, math.log2(1.0 + tokens)


def _settled(v: View) -> tuple[str, float] | None:
    f = v.features
    if f.scoring:
        return "scoring", 1
    if f.structure_tokens is not None:
        return ("choice" if f.labels else "schema"), f.structure_tokens
    if f.few_shot is not None and f.few_shots >= 1:
        # If the examples reason before they answer, the measured part of the answer is too short.
        return "few-shot", max(f.few_shot, 110) if f.step_by_step else f.few_shot
    if v.any & BIT["json"] and v.template and not (v.ask.startswith("{") and not v.system):
        if v.array or "[" in v.template:
            return "template array", 50
        return "template", len(v.template) / 4 + 1
    if f.wish is not None and not (f.step_by_step and not f.wish_firm):
        return ("firm wish" if f.wish_firm else "wish"), f.wish
    if v.tools:
        return "tool call", 35
    if v.phrases & PHRASE_BIT["steps"] or f.step_by_step:
        return "steps", 150
    return None


def _short(v: View) -> tuple[str, float] | None:
    """Cases whose answer is a label, a name or a small object."""
    ends = v.first | v.last
    if v.system & BIT["short"] and v.system & _LABEL:
        return "label by system", 3
    if v.any & BIT["short"] and ends & _LABEL:
        return "label", 3
    if v.phrases & _BINARY:
        return "either", 1.5
    open_ended = ends & _OPEN
    listed = len(v.options) >= 2 and ends & _PICK
    if (v.either or listed or v.inline_options >= 2) and not ends & (BIT["explain"] | BIT["reason"] | BIT["text"]):
        return "options", 2
    if ends & (BIT["choose"] | BIT["classify"]) and not open_ended:
        return "choose", 2
    return None


def _by_verb(v: View) -> tuple[str, float]:
    ends = v.first | v.last
    tokens = v.features.ask_tokens
    if ends & (BIT["code"] | BIT["build"]) and not ends & BIT["context"]:
        return "code", 130
    if ends & BIT["translate"]:
        return "translate", max(10, tokens)
    if ends & BIT["summarize"]:
        return "summarize", 100
    if ends & BIT["rewrite"] and not ends & BIT["text"]:
        return "rewrite", max(6.0, tokens * 0.8)
    if v.phrases & PHRASE_BIT["a sentence"]:
        return "sentence", 12
    if ends & (BIT["text"] | BIT["create"]):
        return "write", 350
    if v.any & BIT["context"] and ends & _LOOK_UP and v.features.user_chars > 250:
        return "reading", 5
    if ends & _TALK:
        return "explain", 250
    if v.numbers >= 2 and (v.phrases & PHRASE_BIT["how many"] or (v.numbers >= 3 and ends & BIT["calculate"])):
        return "word problem", 90
    if ends & BIT["extract"]:
        return "extract", 15
    if ends & BIT["who"] or v.question:
        return "question", 25
    if v.features.user_chars > 500:
        return "long text", 15
    if v.any:
        return "bare", 90
    return "nothing", 90
