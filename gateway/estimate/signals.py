"""`Features` -> a vector of yes/no signals, the input of the shipped prior.

Five short windows of text (system prompt, first line, start, last line, whole ask) are each looked up in the lexicon,
which gives one bit per group of words. Numbers (lengths, counts) are cut at fixed thresholds into further bits. The
expert's case (expert.py) is a bit too. All bits are gathered in one big integer, because that costs one operation for
a whole group. Work is bounded: whatever the prompt's length, at most 2,500 characters are looked at.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from dataclasses import dataclass

from gateway.estimate.expert import CASES, View, expert
from gateway.estimate.lexicon import (
    GROUPS,
    LATIN_PHRASES,
    PHRASES,
    SCRIPT_PHRASES,
    SUBSTRINGS,
    WORDS,
)
from gateway.estimate.rules import answer_length
from gateway.types import Features, Structure, Task, ToolChoice

_HEAD = 360
_TAIL = 300
_LINE = 160
_KNOWN = WORDS.keys()
_WORD = re.compile(r"[a-zà-öø-ÿ+#]+")
_OPTION = re.compile(
    r"^[ \t]*(?:[-*・•]|\(?[A-Za-z0-9ア-オ①-⑩][).:、．.）:]|\([A-Za-z0-9]{1,2}\))[ \t]*([^\n]*)$", re.MULTILINE
)
_INLINE_OPTION = re.compile(r"\([A-Ea-e1-5]\)|[①-⑤]")
_TEMPLATE = re.compile(r"\{[^{}]{1,240}\}")
_TEMPLATE_KEY = re.compile(r'"\w+"\s*:')
_COUNTED = re.compile(
    r"\b(\d{1,3}|two|three|four|five|six|seven|eight|nine|ten)\s+(?:[a-z-]+\s+)?[a-z]+s\b"
    r"|([0-9０-９]{1,3})\s*(?:つ|個|点|選|件|種類|冊|人|案|文字|字|行|段落|个|条|가지)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r'[「『"“‘\'][^「」『』"“”\n]{1,16}[」』"”’\']')
_EITHER = re.compile(r"\b[\w-]+ or (?:[\w-]+\s*){1,4}\?", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+")
_KATAKANA = re.compile(r"[ァ-ヺー]{3,}")
_CJK = re.compile(r"[\u2e80-\uffff]")
_AND = re.compile(r"\band\b")
_CODE_MARKS = re.compile(r"[{}();=<>]")
_ENDS = {":": 1, "：": 1, "?": 2, "？": 2, ".": 3, "。": 3, "!": 3, ")": 4, "]": 4, "}": 4, '"': 4}

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
    ("names", _COUNTS),
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
WINDOWS = ("system", "first", "head", "last", "any")
SWITCHES = ("either", "fence", "array", "step by step", "json mode", "tool turn")
_WINDOW_BITS = len(GROUPS)
_NUMBER_AT = _WINDOW_BITS * len(WINDOWS) + len(PHRASES)
_OFFSETS: tuple[tuple[int, tuple[float, ...]], ...] = tuple(
    (_NUMBER_AT + sum(len(t) for _, t in NUMBERS[:i]), thresholds) for i, (_, thresholds) in enumerate(NUMBERS)
)
_SWITCH_AT = _NUMBER_AT + sum(len(thresholds) for _, thresholds in NUMBERS)
_CASE_AT = _SWITCH_AT + len(SWITCHES)
_TASK_AT = _CASE_AT + len(CASES)
_TASKS = {task: i for i, task in enumerate(Task)}
SIZE = _TASK_AT + len(_TASKS)
"""Number of signals."""
_FORMAT = f"0{SIZE}b"
_TO_BITS = bytes(max(0, i - 48) if i in (48, 49) else 0 for i in range(256))


@dataclass(frozen=True, slots=True)
class Signals:
    """What the text says, in the form that the prior reads."""

    bits: bytes
    """`SIZE` bytes of 0 or 1."""
    start: float
    """The mean of the expert's guess and the rules', log2(1 + tokens)."""
    case: str
    """The expert's case; `nothing` where no signal was found."""
    ruled: Task
    """The task by the rules."""


def log2p(tokens: float) -> float:
    """log2(1 + tokens): the scale on which lengths are predicted."""
    return math.log2(1.0 + tokens)


def signals(features: Features) -> Signals:
    """The signals of a request. Pure; never raises."""
    view = _view(features)
    case, start = expert(view)
    ruled, by_rules = answer_length(features)
    rules = log2p(by_rules)
    values = (*_numbers(features, view, start), rules, rules - start)
    big = view.system
    big |= view.first << _WINDOW_BITS
    big |= view.head << 2 * _WINDOW_BITS
    big |= view.last << 3 * _WINDOW_BITS
    big |= view.any << 4 * _WINDOW_BITS
    big |= view.phrases << 5 * _WINDOW_BITS
    for value, (at, thresholds) in zip(values, _OFFSETS, strict=True):
        big |= ((1 << bisect_left(thresholds, value)) - 1) << at
    big |= view.switches << _SWITCH_AT
    big |= 1 << (_CASE_AT + CASES.index(case))
    big |= 1 << (_TASK_AT + _TASKS[ruled])
    # The format puts the highest bit first; position i of `bits` is bit SIZE - 1 - i.
    return Signals(format(big, _FORMAT).encode().translate(_TO_BITS), (start + rules) / 2, case, ruled)


def _view(features: Features) -> View:
    """The lexicon's answers for each window of the text, and the ask's shape."""
    head_text, tail_text, system = features.user_head, features.user_tail, features.system_text
    last_part = tail_text or head_text
    head = head_text[:_HEAD]
    tail = last_part[-_TAIL:]
    first_line = head_text.partition("\n")[0]
    last_line = last_part[last_part.rfind("\n") + 1 :]
    whole_is_head = not tail_text and len(head_text) <= _HEAD
    mask_head = groups(head)
    mask_first = mask_head if len(first_line) == len(head) else groups(first_line[:_LINE])
    mask_last = mask_head if whole_is_head and len(last_line) == len(head) <= _LINE else groups(last_line[-_LINE:])
    mask_tail = mask_head if whole_is_head and len(head) <= _TAIL else groups(tail)
    mask_system = groups(system) if system else 0
    ask = head if whole_is_head else head + "\n" + tail
    switches = 0
    either = _EITHER.search(ask) is not None if " or " in ask else False
    template = _TEMPLATE.search(system) or _TEMPLATE.search(head) if "{" in system or "{" in head else None
    array = "[{" in system or "[{" in head
    fence = "```" in head_text or "```" in tail_text
    json_mode = features.structure in (Structure.JSON_OBJECT, Structure.JSON_SCHEMA)
    for i, on in enumerate((either, fence, array, features.step_by_step, json_mode, features.after_tool)):
        switches |= on << i
    options = _OPTION.findall(last_part[-1200:]) if "\n" in last_part else []
    return View(
        system=mask_system,
        first=mask_first,
        head=mask_head,
        last=mask_last,
        any=mask_system | mask_head | mask_tail | mask_last,
        phrases=_phrases(ask, system),
        switches=switches,
        either=either,
        template=template.group() if template else "",
        array=array,
        options=options,
        inline_options=len(_INLINE_OPTION.findall(last_part[-800:])) if "(" in last_part or "①" in last_part else 0,
        numbers=len(_NUMBER.findall(ask)),
        ask=ask,
        first_line=len(first_line),
        last_line=len(last_line),
        question=last_part[-1:] in "?？" and bool(last_part),
        tools=0 if features.tool_choice is ToolChoice.NONE else features.tools,
        features=features,
    )


def groups(text: str) -> int:
    """The lexicon's groups in a short text, as bits."""
    mask = 0
    for word in _KNOWN & set(_WORD.findall(text.lower())):
        mask |= WORDS[word]
    if not text.isascii():
        for part, bit in SUBSTRINGS:
            if part in text:
                mask |= bit
    return mask


def _phrases(ask: str, system: str) -> int:
    mask = 0
    text = f" {' '.join(_WORD.findall(ask.lower()))} . {' '.join(_WORD.findall(system.lower()))} "
    for part, bit in LATIN_PHRASES:
        if part in text:
            mask |= bit
    if not ask.isascii() or not system.isascii():
        for part, bit in SCRIPT_PHRASES:
            if part in ask or part in system:
                mask |= bit
    return mask


def _numbers(features: Features, view: View, start: float) -> tuple[float, ...]:
    """The values of `NUMBERS`, in order; -1 for what is not there."""
    ask, options, template = view.ask, view.options, view.template
    head, tail = features.user_head, features.user_tail
    cjk = 0.0 if ask.isascii() else len(_CJK.findall(ask)) / len(ask)
    lines = head.count("\n") + tail.count("\n")
    counted = _COUNTED.search(ask[:_HEAD])
    last_line = (tail or head)[-300:]
    return (
        log2p(features.user_chars),
        log2p(view.first_line),
        log2p(view.last_line),
        log2p(len(features.system_text)),
        log2p(lines),
        ask.count("\n\n"),
        cjk,
        _ENDS.get((tail or head)[-1:], 0),
        _ENDS.get(head[view.first_line - 1 : view.first_line], 0),
        1 if head[:1] in ("{", "[") else 2 if head[:1] in ('"', "「", "'") else 0,
        len(options),
        log2p(sum(map(len, options)) / len(options)) if options else -1,
        view.inline_options,
        log2p(len(template)) if template else -1,
        len(_TEMPLATE_KEY.findall(template)) if template else -1,
        log2p(_count(counted)) if counted else -1,
        log2p(features.wish) if features.wish is not None else -1,
        len(_QUOTED.findall(ask)),
        log2p(features.few_shot) if features.few_shot is not None else -1,
        features.few_shots,
        view.numbers,
        ask.count(","),
        ask.count("?") + ask.count("？"),
        len(_AND.findall(ask)),
        len(_NAME.findall(ask)),
        0 if ask.isascii() else len(_KATAKANA.findall(last_line)),
        len(_CODE_MARKS.findall(ask)),
        features.code_share,
        view.tools,
        features.tool_fields,
        features.turns,
        log2p(features.last_answer) if features.last_answer is not None else -1,
        start,
        features.detail,
    )


def _count(match: re.Match[str]) -> int:
    text = match.group(1) or match.group(2)
    return int(text) if text.isdecimal() else 3
