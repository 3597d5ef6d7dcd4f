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
    STARTS,
    WORDS,
)
from gateway.estimate.rules import answer_length
from gateway.types import Features, Structure, Task, ToolChoice

_HEAD = 360
_TAIL = 300
_LINE = 160
_KNOWN = WORDS.keys()
_STARTS = STARTS.keys()
_PHRASE_STARTS = LATIN_PHRASES.keys()
_WORD = re.compile(r"[a-zà-öø-ÿ+#]+")
# Begins with a literal, so that the search leaps from line to line.
_OPTION = re.compile(
    r"\n[ \t]{0,8}(?:[-*・•]|\(?[A-Za-z0-9ア-オ①-⑩][).:、．.）:]|\([A-Za-z0-9]{1,2}\))[ \t]{0,8}([^\n]*)"
)
_INLINE_OPTION = re.compile(r"\([A-Ea-e1-5]\)|[①-⑤]")
_TEMPLATE = re.compile(r"\{[^{}]{1,240}\}")
_TEMPLATE_KEY = re.compile(r'"\w{1,40}"\s{0,4}:')
_COUNTED = re.compile(
    r"(\d{1,3})\s{0,2}(?:つ|個|点|選|件|種類|冊|人|案|文字|字|行|段落|个|条|가지|(?:[a-z-]{1,20}\s)?[a-z]{2,20}s\b)"
)
_NUMBER = re.compile(r"\d+")
_KATAKANA = re.compile(r"[ァ-ヺー]{3,}")
_CODE_MARKS = "{}();=<>"
_QUOTES = '"「『“'
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
WINDOWS = ("system", "first", "ask", "last")
SWITCHES = ("either", "fence", "array", "step by step", "json mode", "tool turn")
_WINDOW_BITS = len(GROUPS)
_NUMBER_AT = _WINDOW_BITS * len(WINDOWS) + len(PHRASES)


def _codes() -> tuple[tuple[tuple[float, ...], tuple[int, ...]], ...]:
    """Per number: its thresholds, and the bits (as many ones as thresholds are passed) for each count of them."""
    found: list[tuple[tuple[float, ...], tuple[int, ...]]] = []
    at = _NUMBER_AT
    for _, thresholds in NUMBERS:
        found.append((thresholds, tuple(((1 << k) - 1) << at for k in range(len(thresholds) + 1))))
        at += len(thresholds)
    return tuple(found)


_CODES = _codes()
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
    big |= view.body << 2 * _WINDOW_BITS
    big |= view.last << 3 * _WINDOW_BITS
    big |= view.phrases << 4 * _WINDOW_BITS
    for value, (thresholds, codes) in zip(values, _CODES, strict=True):
        big |= codes[bisect_left(thresholds, value)]
    big |= view.switches << _SWITCH_AT
    big |= 1 << (_CASE_AT + CASES.index(case))
    big |= 1 << (_TASK_AT + _TASKS[ruled])
    # The format puts the highest bit first; position i of `bits` is bit SIZE - 1 - i.
    return Signals(format(big, _FORMAT).encode().translate(_TO_BITS), (start + rules) / 2, case, ruled)


def _view(features: Features) -> View:
    """The lexicon's answers for each window of the text, and the ask's shape."""
    head_text, tail_text, system = features.user_head, features.user_tail, features.system_text
    last_part = tail_text or head_text
    whole = not tail_text and len(head_text) <= _HEAD + _TAIL
    ask = head_text if whole else head_text[:_HEAD] + "\n" + last_part[-_TAIL:]
    first_line = head_text.partition("\n")[0]
    last_line = last_part[last_part.rfind("\n") + 1 :]
    words = _WORD.findall(ask.lower())
    body = groups(ask, words)
    first = body if len(first_line) == len(ask) <= _LINE else groups(first_line[:_LINE])
    last = body if len(last_line) == len(ask) <= _LINE else groups(last_line[-_LINE:])
    in_system = groups(system) if system else 0
    braces = "{" in system or "{" in ask
    template = (_TEMPLATE.search(system) or _TEMPLATE.search(ask[:_HEAD])) if braces else None
    array = braces and ("[{" in system or "[{" in ask)
    either = " or " in ask and _asks_either(ask)
    fence = "```" in head_text or "```" in tail_text
    json_mode = features.structure in (Structure.JSON_OBJECT, Structure.JSON_SCHEMA)
    switches = 0
    for i, on in enumerate((either, fence, array, features.step_by_step, json_mode, features.after_tool)):
        switches |= on << i
    return View(
        system=in_system,
        first=first,
        body=body,
        last=last,
        any=in_system | body | last,
        phrases=_phrases(words, ask, system),
        switches=switches,
        either=either,
        template=template.group() if template else "",
        array=array,
        options=_OPTION.findall("\n" + last_part[-1200:]) if "\n" in last_part else [],
        inline_options=len(_INLINE_OPTION.findall(last_part[-800:])) if "(" in last_part or "①" in last_part else 0,
        numbers=len(_NUMBER.findall(ask)),
        ask=ask,
        first_line=len(first_line),
        last_line=len(last_line),
        question=last_part[-1:] in ("?", "？"),
        tools=0 if features.tool_choice is ToolChoice.NONE else features.tools,
        features=features,
    )


def groups(text: str, words: list[str] | None = None) -> int:
    """The lexicon's groups in a short text, as bits; `words` where they are already known."""
    mask = 0
    for word in _KNOWN & set(_WORD.findall(text.lower()) if words is None else words):
        mask |= WORDS[word]
    if not text.isascii():
        for start in _STARTS & set(text):
            for part, bit in STARTS[start]:
                if part in text:
                    mask |= bit
    return mask


def _asks_either(ask: str) -> bool:
    """Whether the first or the last question ends in "this or that?"."""
    ends = (ask.find("?"), ask.rfind("?"))
    return any(at > 0 and " or " in ask[max(0, at - 40) : at] for at in ends)


def _phrases(words: list[str], ask: str, system: str) -> int:
    mask = 0
    if system:
        words = [*words, ".", *_WORD.findall(system.lower())]
    text = ""
    for first in _PHRASE_STARTS & set(words):
        text = text or f" {' '.join(words)} "
        for part, bit in LATIN_PHRASES[first]:
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
    # Two bytes more than characters for each wide one.
    cjk = 0.0 if ask.isascii() else (len(ask.encode("utf-8", "replace")) / len(ask) - 1.0) / 2.0
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
        log2p(int(counted.group(1))) if counted else -1,
        log2p(features.wish) if features.wish is not None else -1,
        sum(map(ask.count, _QUOTES)),
        log2p(features.few_shot) if features.few_shot is not None else -1,
        features.few_shots,
        view.numbers,
        ask.count(","),
        ask.count("?") + ask.count("？"),
        ask.count(" and "),
        0 if ask.isascii() else len(_KATAKANA.findall(last_line)),
        sum(map(ask.count, _CODE_MARKS)),
        features.code_share,
        view.tools,
        features.tool_fields,
        features.turns,
        log2p(features.last_answer) if features.last_answer is not None else -1,
        start,
        features.detail,
    )
