"""Turns `Features` into a vector of binary features ("signals"), the input of the shipped prior.

Each lexicon group (`request.lexicon`) gives one bit in each of four windows: the system prompt, and the first line, the
edges and the last line of the last user turn. Numbers are cut at thresholds into further bits (numbers.py). The
expert's case and the rules' task are bits too. All bits form one big integer, so that a whole group costs one
operation. The work is bounded: at most 2,500 characters are read, whatever the prompt's length.
"""

from __future__ import annotations

import re
from functools import lru_cache

from gateway.estimate.expert import CASES, View, expert
from gateway.estimate.numbers import NUMBER_BITS, log2p, number_bits
from gateway.estimate.rules import read_rules
from gateway.records import record
from gateway.request.lexicon import GROUPS, PHRASES
from gateway.request.words import digit_runs
from gateway.types import Features, Structure, Task, ToolChoice

__all__ = ["SIZE", "Signals", "log2p", "signals"]

_HEAD = 360
_TAIL = 300
_SYSTEMS = 512
_FENCE = "```"
_NO_TEMPLATE = ("", False)
# Begins with a literal, so that the regex engine skips from line to line.
_OPTION = re.compile(
    r"\n[ \t]{0,8}(?:[-*・•]|\(?[A-Za-z0-9ア-オ①-⑩][).:、．.）:]|\([A-Za-z0-9]{1,2}\))[ \t]{0,8}([^\n]*)"
)
_INLINE_OPTION = re.compile(r"\([A-Ea-e1-5]\)")
_CIRCLED_OPTION = re.compile(r"[①-⑤]")
_TEMPLATE = re.compile(r"\{[^{}]{1,240}\}")
_JSON = frozenset((Structure.JSON_OBJECT, Structure.JSON_SCHEMA))

WINDOWS = ("system", "first", "ask", "last")
SWITCHES = ("either", "fence", "array", "step by step", "json mode", "tool turn")
_WINDOW_BITS = len(GROUPS)
_PHRASE_AT = _WINDOW_BITS * len(WINDOWS)
_NUMBER_AT = _PHRASE_AT + len(PHRASES)
_SWITCH_AT = _NUMBER_AT + NUMBER_BITS
_CASE_AT = _SWITCH_AT + len(SWITCHES)
_TASK_AT = _CASE_AT + len(CASES)
SIZE = _TASK_AT + len(Task)
"""Number of features."""
_CASE_BIT = {case: 1 << _CASE_AT + i for i, case in enumerate(CASES)}
_TASK_BIT = {task: 1 << _TASK_AT + i for i, task in enumerate(Task)}


@record
class Signals:
    """The binary features of a request and the guesses they correct."""

    bits: int
    """Bit i is feature i; there are `SIZE`."""
    start: float
    """Mean of the guesses of the expert and the rules, log2(1 + tokens)."""
    case: str
    """The expert's case; `nothing` if no feature was recognised."""
    ruled: Task
    """The task by rules."""


def signals(features: Features) -> Signals:
    """Computes the features of a request. Pure; never raises."""
    ruled = read_rules(features)
    view = _view(features)
    case, start = expert(view)
    rules = log2p(ruled.tokens)
    big = view.system
    big |= view.first << _WINDOW_BITS
    big |= view.body << 2 * _WINDOW_BITS
    big |= view.last << 3 * _WINDOW_BITS
    big |= view.phrases << _PHRASE_AT
    big |= number_bits(features, view, start, rules) << _NUMBER_AT
    big |= view.switches << _SWITCH_AT
    big |= _CASE_BIT[case] | _TASK_BIT[ruled.task]
    return Signals(big, (start + rules) / 2, case, ruled.task)


@lru_cache(_SYSTEMS)
def _template(text: str) -> tuple[str, bool]:
    """(JSON template in a system prompt, whether it holds a list of objects). Cached: few occur."""
    found = _TEMPLATE.search(text)
    return found.group() if found else "", "[{" in text


def _view(features: Features) -> View:
    """The lexicon bits of a request and the shape of its instruction."""
    head_text, tail_text = features.user_head, features.user_tail
    last_part = tail_text or head_text
    whole = not tail_text and len(head_text) <= _HEAD + _TAIL
    ask = head_text if whole else head_text[:_HEAD] + "\n" + last_part[-_TAIL:]
    lines = "\n" in head_text or "\n" in tail_text
    system, first, body, last, phrases = features.groups
    template, array = _template(features.system_text) if features.system_text else _NO_TEMPLATE
    if "{" in ask:
        found = None if template else _TEMPLATE.search(ask[:_HEAD])
        template = found.group() if found else template
        array = array or "[{" in ask
    either = "?" in ask and _asks_either(ask)
    fenced = "`" in ask and (_FENCE in head_text or _FENCE in tail_text)
    switches = (
        either
        | fenced << 1
        | array << 2
        | features.step_by_step << 3
        | (features.structure in _JSON) << 4
        | features.after_tool << 5
    )
    options = _OPTION.findall("\n" + last_part[-1200:]) if lines else []
    inline_options = _inline_options(last_part[-800:]) if "(" in last_part or "①" in last_part else 0
    first_line = _line_end(head_text) if lines else len(head_text)
    last_line = len(last_part) - 1 - last_part.rfind("\n") if lines else len(last_part)
    question = last_part[-1:] in ("?", "？")
    tools = 0 if features.tool_choice is ToolChoice.NONE else features.tools
    # Positional: by keyword it costs twice as much.
    return View(
        system, first, body, last, system | body | last, phrases, switches, either, template, array,
        options, inline_options, digit_runs(ask), ask, first_line, last_line, question, tools, features,
    )  # fmt: skip


def _inline_options(text: str) -> int:
    lettered = len(_INLINE_OPTION.findall(text))
    return lettered if text.isascii() else lettered + len(_CIRCLED_OPTION.findall(text))


def _line_end(text: str) -> int:
    at = text.find("\n")
    return at if at >= 0 else len(text)


def _asks_either(ask: str) -> bool:
    """Whether the first or the last question ends in "this or that?"."""
    first, last = ask.find("?"), ask.rfind("?")
    return (first > 0 and " or " in ask[max(0, first - 40) : first]) or (
        last > first and " or " in ask[max(0, last - 40) : last]
    )
