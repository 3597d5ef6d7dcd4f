"""In-context examples and the lengths of their answers, the best sign there is of how long the next one will be.

Inside one prompt the examples are found by the labels that begin its lines, in any language: where "A:" or 「回答：」
stands at the start of at least two lines, what follows it, up to the next label or an empty line, is an answer.
"""

from __future__ import annotations

import re
from statistics import median

from gateway.request.tokens import rough_tokens

_WINDOW = 6000
_LAST = 800
_MAX_EXAMPLES = 8
_LABEL = re.compile(r"^[ \t>#*-]{0,4}([^\s:：][^:：\n]{0,23}?)[ \t]?(?:[:：]|->|=>|→)", re.MULTILINE)
_ARROW = re.compile(r"^[^\n]{1,200}?(?:->|=>|→)[ \t]?([^\n]{0,200})$", re.MULTILINE)
_EVEN = 4.0
_SHORT = 40


def in_prompt(text: str) -> tuple[int, int] | None:
    """(median tokens, number) of the examples' answers inside `text`; None without examples."""
    window = text[-_WINDOW:]
    if ":" not in window and "：" not in window and ">" not in window and "→" not in window:
        return None
    ending = window[-_LAST:]
    # Most prompts end without a labelled line, or with one that occurs once: no examples, and no walk over the window.
    labels = _LABEL.findall(ending)
    if not labels or all(window.count(label) < 2 for label in labels[-2:]):
        return _arrows(window) if ">" in ending or "→" in ending else None
    found = list(_LABEL.finditer(window))
    if len(found) < 3:
        return _arrows(window)
    label = _answer_label(window, found)
    if label is None:
        return None
    lengths: list[int] = []
    for i, match in enumerate(found[:-1]):
        if match.group(1) != label:
            continue
        answer = window[match.end() : found[i + 1].start()]
        answer = answer.split("\n\n", 1)[0].strip()
        if answer:
            lengths.append(max(1, rough_tokens(answer[:2000])))
    if len(lengths) < 1 or (len(lengths) < 2 and found[-1].group(1) != label):
        return None
    recent = lengths[-_MAX_EXAMPLES:]
    return round(median(recent)), len(recent)


def in_turns(answers: list[str]) -> tuple[int, int] | None:
    """The same for assistant turns that look like examples: at least two, short and of like length."""
    if len(answers) < 2:
        return None
    lengths = [max(1, rough_tokens(answer[:2000])) for answer in answers[-_MAX_EXAMPLES:]]
    if max(lengths) <= _SHORT or max(lengths) <= _EVEN * min(lengths):
        return round(median(lengths)), len(lengths)
    return None


def _answer_label(window: str, found: list[re.Match[str]]) -> str | None:
    """The label whose text the model is to write: the last one where nothing follows, else the one missing at the end."""
    last = found[-1]
    names = [match.group(1) for match in found]
    rest = window[last.end() :].strip()
    if names.count(last.group(1)) >= 2 and (len(rest) <= 40 and "\n" not in rest):
        before = names[-2] if len(names) > 1 else ""
        # "Q: .. A: .. Q: .." ends with the question; then the label that used to follow it is the answer's.
        if rest and before != last.group(1):
            following = [names[i + 1] for i, name in enumerate(names[:-1]) if name == last.group(1)]
            if following and len(set(following)) == 1 and following[0] != last.group(1) and _is_open(rest):
                return following[0]
        return last.group(1)
    following = [names[i + 1] for i, name in enumerate(names[:-1]) if name == last.group(1)]
    if len(following) >= 2 and len(set(following)) == 1 and following[0] != last.group(1):
        return following[0]
    return None


def _is_open(rest: str) -> bool:
    """Whether what follows the last label is a question rather than the beginning of an answer ("Let's think")."""
    return not re.match(r"let|think|まず|首先|先", rest, re.IGNORECASE)


def _arrows(window: str) -> tuple[int, int] | None:
    """Examples of the form `input -> output`, one a line, the last one open."""
    answers = [match.group(1).strip() for match in _ARROW.finditer(window)]
    if len(answers) < 3 or answers[-1]:
        return None
    lengths = [max(1, rough_tokens(answer)) for answer in answers[:-1] if answer]
    return (round(median(lengths)), len(lengths)) if len(lengths) >= 2 else None
