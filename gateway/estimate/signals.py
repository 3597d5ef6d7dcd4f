"""`Features` -> a vector of yes/no signals, the input of the shipped prior.

Five short windows of text (system prompt, first line, start, last line, whole ask) are each looked up in the lexicon,
which gives one bit per group of words. Numbers (lengths, counts) are cut at fixed thresholds into further bits. The
expert's case (expert.py) is a bit too. All bits are gathered in one big integer, because that costs one operation for
a whole group. Work is bounded: whatever the prompt's length, at most 2,500 characters are looked at. What a system
prompt says is kept for the next request that has it, as most have one of a few.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from gateway.estimate.expert import CASES, View, expert
from gateway.estimate.lexicon import (
    GROUPS,
    LATIN_PHRASES,
    PHRASES,
    SCRIPT_PHRASES,
    STARTS,
    WORDS,
)
from gateway.estimate.numbers import NUMBER_BITS, log2p, number_bits
from gateway.estimate.rules import Ruled, read_rules
from gateway.request.words import digit_runs, word_list
from gateway.types import Features, Structure, Task, ToolChoice

__all__ = ["SIZE", "Signals", "groups", "log2p", "signals"]

_HEAD = 360
_TAIL = 300
_LINE = 160
_SYSTEMS = 512
_KNOWN = WORDS.keys()
_STARTS = STARTS.keys()
_PHRASE_STARTS = LATIN_PHRASES.keys()
_SCRIPT_STARTS = SCRIPT_PHRASES.keys()
# The set of these characters costs less than that of all.
_START = re.compile(f"[{''.join(map(re.escape, sorted(_STARTS | _SCRIPT_STARTS)))}]")
# Begins with a literal, so that the search leaps from line to line.
_OPTION = re.compile(
    r"\n[ \t]{0,8}(?:[-*・•]|\(?[A-Za-z0-9ア-オ①-⑩][).:、．.）:]|\([A-Za-z0-9]{1,2}\))[ \t]{0,8}([^\n]*)"
)
_INLINE_OPTION = re.compile(r"\([A-Ea-e1-5]\)|[①-⑤]")
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
"""Number of signals."""
_CASE_BIT = {case: 1 << _CASE_AT + i for i, case in enumerate(CASES)}
_TASK_BIT = {task: 1 << _TASK_AT + i for i, task in enumerate(Task)}
_FORMAT = f"0{SIZE}b"
_TO_BITS = bytes(max(0, i - 48) if i in (48, 49) else 0 for i in range(256))


class Signals(NamedTuple):
    """What the text says, in the form that the prior reads."""

    bits: bytes
    """`SIZE` bytes of 0 or 1."""
    start: float
    """The mean of the expert's guess and the rules', log2(1 + tokens)."""
    case: str
    """The expert's case; `nothing` where no signal was found."""
    ruled: Task
    """The task by the rules."""


def signals(features: Features, ruled: Ruled | None = None) -> Signals:
    """The signals of a request; `ruled` where the rules were asked already. Pure; never raises."""
    ruled = ruled or read_rules(features)
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
    # The format puts the highest bit first; position i of `bits` is bit SIZE - 1 - i.
    return Signals(format(big, _FORMAT).encode().translate(_TO_BITS), (start + rules) / 2, case, ruled.task)


class _Marks(NamedTuple):
    """What a text in a script without spaces holds."""

    parts: tuple[tuple[str, int], ...] = ()
    """Of the lexicon's groups, each with its bits."""
    phrases: int = 0


_NO_MARKS = _Marks()


class _System(NamedTuple):
    """What a system prompt says."""

    groups: int
    phrases: int
    template: str
    array: bool


@lru_cache(_SYSTEMS)
def _read_system(text: str) -> _System:
    words = word_list(text.lower())
    different = set(words)
    marks = _marks(text)
    template = _TEMPLATE.search(text)
    return _System(
        groups=_bits(different, text, marks),
        phrases=_phrases(words, different) | marks.phrases,
        template=template.group() if template else "",
        array="[{" in text,
    )


def _view(features: Features) -> View:
    """The lexicon's answers for each window of the text, and the ask's shape."""
    head_text, tail_text = features.user_head, features.user_tail
    last_part = tail_text or head_text
    whole = not tail_text and len(head_text) <= _HEAD + _TAIL
    ask = head_text if whole else head_text[:_HEAD] + "\n" + last_part[-_TAIL:]
    first_line = head_text.partition("\n")[0]
    last_line = last_part[last_part.rfind("\n") + 1 :]
    words = word_list(ask.lower())
    different = set(words)
    marks = _marks(ask)
    body = _bits(different, ask, marks)
    first = body if len(first_line) == len(ask) <= _LINE else _line_bits(first_line[:_LINE], marks)
    last = body if len(last_line) == len(ask) <= _LINE else _line_bits(last_line[-_LINE:], marks)
    system = _read_system(features.system_text)
    braces = "{" in ask
    template = _TEMPLATE.search(ask[:_HEAD]) if braces and not system.template else None
    array = system.array or (braces and "[{" in ask)
    either = "or" in different and _asks_either(ask)
    switches = (
        either
        | (_fenced(head_text) or _fenced(tail_text)) << 1
        | array << 2
        | features.step_by_step << 3
        | (features.structure in _JSON) << 4
        | features.after_tool << 5
    )
    return View(
        system=system.groups,
        first=first,
        body=body,
        last=last,
        any=system.groups | body | last,
        phrases=_phrases(words, different) | marks.phrases | system.phrases,
        switches=switches,
        either=either,
        template=template.group() if template else system.template,
        array=array,
        options=_OPTION.findall("\n" + last_part[-1200:]) if "\n" in last_part else [],
        inline_options=len(_INLINE_OPTION.findall(last_part[-800:])) if "(" in last_part or "①" in last_part else 0,
        numbers=digit_runs(ask),
        ands="and" in different,
        ask=ask,
        first_line=len(first_line),
        last_line=len(last_line),
        question=last_part[-1:] in ("?", "？"),
        tools=0 if features.tool_choice is ToolChoice.NONE else features.tools,
        features=features,
    )


def groups(text: str) -> int:
    """The lexicon's groups in a short text, as bits."""
    return _line_bits(text, _marks(text))


def _marks(text: str) -> _Marks:
    if text.isascii():
        return _NO_MARKS
    chars = set(_START.findall(text))
    phrases = 0
    for start in _SCRIPT_STARTS & chars:
        for phrase, bit in SCRIPT_PHRASES[start]:
            if phrase in text:
                phrases |= bit
    return _Marks(tuple([pair for start in _STARTS & chars for pair in STARTS[start] if pair[0] in text]), phrases)


def _line_bits(line: str, marks: _Marks) -> int:
    """The groups in a line of a text whose marks are known: only what is in the text can be in its line."""
    return _bits(set(word_list(line.lower())), line, marks)


def _bits(words: set[str], text: str, marks: _Marks) -> int:
    mask = 0
    for word in _KNOWN & words:
        mask |= WORDS[word]
    for part, bit in marks.parts:
        if part in text:
            mask |= bit
    return mask


def _fenced(text: str) -> bool:
    # A look for one character is many times as fast as one for three.
    return "`" in text and "```" in text


def _asks_either(ask: str) -> bool:
    """Whether the first or the last question ends in "this or that?"."""
    ends = (ask.find("?"), ask.rfind("?"))
    return any(at > 0 and " or " in ask[max(0, at - 40) : at] for at in ends)


def _phrases(words: list[str], different: set[str]) -> int:
    """The lexicon's Latin phrases in a text of these words (`different`: each once), as bits."""
    mask = 0
    spaced = ""
    for first in _PHRASE_STARTS & different:
        spaced = spaced or f" {' '.join(words)} "
        for part, bit in LATIN_PHRASES[first]:
            if part in spaced:
                mask |= bit
    return mask
