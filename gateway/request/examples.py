"""Measures the answers of in-context examples, the best predictor of the next answer's length.

Within a prompt, examples are found by the labels of lines, in any language. If a label ("A:", 「回答：」) begins two or
more lines, the text after each one, up to an empty line or the next example, is an answer. One-line examples with an
arrow (`input -> output`) and short assistant turns of similar length count too.
"""

from __future__ import annotations

import re
from statistics import median

from gateway.request.keys import line_label
from gateway.request.tokens import count_parts, rough_total
from gateway.request.words import newlines

_WINDOW = 6000
_LAST_LINES = 6
_MAX_EXAMPLES = 8
_MAX_OPEN = 40
_LONGEST = 2000
_ARROWS = ("->", "=>", "→")
_EVEN = 4.0
_SHORT = 40
_ANSWERS = re.compile(
    r"a\d*$|answer|output|label|response|result|sentiment|category|class|translation|antwort|ausgabe|réponse|sortie|respuesta|salida"
    r"|回答|答え|解答|答|出力|ラベル|分類|結果|答案|输出|标签|정답|답|출력|ответ",
    re.IGNORECASE,
)
_BEGINS_ANSWER = re.compile(r"let's|let us|think|まず|首先|先に", re.IGNORECASE)


def in_prompt(text: str) -> tuple[int, int] | None:
    """(median tokens, number) of the example answers inside `text`; None without examples."""
    text = text[-_WINDOW:]
    # Early exits: most prompts have no colon or few lines, and end without a labelled line or with a label that occurs
    # once.
    if not (":" in text or "：" in text):
        return _arrows(text)
    if newlines(text, 2) < 2:
        return None
    last = [line_label(line) for line in _last_lines(text)]
    ending = [label for label in last if label]
    if not ending or all([text.count(label) < 2 for label in ending[-2:]]):
        return _arrows(text)
    lines = text.split("\n")
    labels = [*map(line_label, lines[:-_LAST_LINES]), *last]
    answer, is_open = _answer_label(lines, labels)
    if not answer:
        return None
    places = [i for i, label in enumerate(labels) if label == answer]
    # The last occurrence is the one to fill in, unless the prompt stops before it.
    done = (places[:-1] if is_open else places)[-_MAX_EXAMPLES:]
    begins = next((label for label in labels if label and labels.count(label) >= 2), "")
    return _sizes([_answer(lines, labels, i, begins) for i in done])


def _last_lines(text: str) -> list[str]:
    """The last `_LAST_LINES` lines, found from the end, so that the lines before are not split."""
    lines: list[str] = []
    end = len(text)
    while end >= 0 and len(lines) < _LAST_LINES:
        cut = text.rfind("\n", 0, end)
        lines.append(text[cut + 1 : end])
        end = cut
    return lines[::-1]


def _sizes(answers: list[str]) -> tuple[int, int] | None:
    """(median tokens, number) of texts."""
    lengths = _lengths([answer[:_LONGEST] for answer in answers if answer])
    return (max(1, round(median(lengths))), len(lengths)) if lengths else None


def _lengths(texts: list[str]) -> list[float]:
    """Tokens of each text. All are counted at once, for speed, and shared out by characters."""
    joined = "".join(texts)
    if not joined:
        return []
    rate = rough_total(count_parts(joined)) / len(joined)
    return [len(text) * rate for text in texts]


def in_turns(answers: list[str]) -> tuple[int, int] | None:
    """(median tokens, number) of assistant turns that look like examples: at least two, short or of similar length."""
    if len(answers) < 2:
        return None
    lengths = [max(1.0, length) for length in _lengths([answer[:_LONGEST] for answer in answers[-_MAX_EXAMPLES:]])]
    if max(lengths) <= _SHORT or max(lengths) <= _EVEN * min(lengths):
        return round(median(lengths)), len(lengths)
    return None


def _answer_label(lines: list[str], labels: list[str]) -> tuple[str, bool]:
    """(label, is open): the label whose text the model is to write, "" if there is none, and whether the prompt already
    ends with it."""
    at = len(labels) - 1
    while not labels[at]:
        at -= 1
    last = labels[at]
    rest = _after(lines[at], last)
    named = [label for label in labels if label]
    after = {named[i + 1] for i, label in enumerate(named[:-1]) if label == last}
    # "Q: .. A: .. Q: .." ends with a question; the label that used to follow it is the answer's. Only labels that name
    # an answer count, because the speakers of a transcript alternate too.
    if rest and len(after) == 1 and not _BEGINS_ANSWER.match(rest):
        follower = after.pop()
        return (follower, False) if _ANSWERS.match(follower) and follower != last else ("", False)
    is_open = not rest or (len(rest) <= _MAX_OPEN and _BEGINS_ANSWER.match(rest) is not None)
    is_last = named.count(last) >= 2 and is_open and not any(line.strip() for line in lines[at + 1 :])
    return (last, True) if is_last else ("", False)


def _answer(lines: list[str], labels: list[str], at: int, begins: str) -> str:
    """The text under a label, up to an empty line or to the label that begins the next example."""
    held = [_after(lines[at], labels[at])]
    for i in range(at + 1, len(lines)):
        if not lines[i].strip() or (labels[i] in (begins, labels[at]) and labels[i]):
            break
        held.append(lines[i])
    return "\n".join(held)


def _after(line: str, label: str) -> str:
    return line[line.index(label) + len(label) + 1 :].strip()


def _arrows(text: str) -> tuple[int, int] | None:
    """Examples of the form `input -> output`, one per line, with the last one open."""
    ending = text[text.rfind("\n") + 1 :].rstrip()
    if not ending.endswith(_ARROWS) or newlines(text, 2) < 2:
        return None
    arrow = next(each for each in _ARROWS if ending.endswith(each))
    lines = text.split("\n")
    answers = [line.rpartition(arrow)[2].strip() for line in lines[:-1] if arrow in line]
    sizes = _sizes(answers[-_MAX_EXAMPLES:])
    return sizes if sizes and sizes[1] >= 2 else None
