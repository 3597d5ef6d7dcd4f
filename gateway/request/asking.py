"""Finds and reads the instruction of a request, wherever it stands.

It may be the start of the last user turn, its end (below a pasted document), or the system prompt (above a text to be
worked on). Each of these is read alone (`part`) and gets a strength: how much it looks like an instruction. The
strongest part of the user turn leads; evidence from the others counts 0.4 times. The system prompt leads only if the
user turn is material without an instruction, or if the prompt has stronger signs and the only wish about length, a
firm one.
"""

from __future__ import annotations

from gateway.records import record
from gateway.request.evidence import Scores
from gateway.request.instruction import ends, locate
from gateway.request.part import NOTHING, Part, groups_in, read_part
from gateway.request.wishes import Wish
from gateway.types import Place

_LINE = 160
"""Characters of a first or last line that are looked at alone."""
_SURE = 5.0
"""Strength of a clear instruction at the end, beside which the start is only glanced at."""
_GLANCE = 100
_LEAST = 2.0
"""Parts weaker than this are material, not an instruction."""
_ASIDE = 0.4
"""Weight of evidence from parts that do not lead."""


@record
class Asking:
    """What was read from the instruction."""

    text: str
    place: Place
    language: str
    scores: Scores
    wish: Wish | None
    detail: int
    step_by_step: bool
    groups: tuple[int, ...]
    """In the order of `lexicon.Groups`."""


def read_ask(user: str, system: str) -> Asking:
    """Reads the instruction from the last user turn and the system prompt.

    For example, below a document the end leads; over a document without an instruction the system prompt does:

        >>> document = "The old bridge was closed in spring. " * 30
        >>> asking = read_ask(document + "\\n\\nSummarize this in two sentences.", "")
        >>> asking.place, asking.scores, asking.wish
        (<Place.END: 'end'>, {<Task.SUMMARIZATION: 'summarization'>: 4.0}, Wish(tokens=52, firm=False))
        >>> asking = read_ask(document, "Classify the sentiment of the text. Answer with one word.")
        >>> asking.place, asking.scores, asking.wish
        (<Place.SYSTEM: 'system'>, {<Task.CLASSIFICATION: 'classification'>: 6.0}, Wish(tokens=4, firm=True))
    """
    ask = locate(user)
    tail = read_part(ask.tail) if ask.tail else None
    # If the end holds a clear instruction, only the first characters of the start can add to it.
    sure = tail is not None and tail.strength >= _SURE
    head = read_part(ask.head[:_GLANCE] if sure else ask.head)
    told = read_part(ends(system)) if system else NOTHING
    lead, place = head, Place.WHOLE
    others: list[Part] = []
    if tail is not None:
        if tail.strength >= lead.strength:
            lead, other, place = tail, lead, Place.END
        else:
            other, place = tail, Place.START
        if other.strength >= _LEAST:
            others.append(other)
    if system:
        if told.strength >= _LEAST and (lead.strength < _LEAST or _rules(told, lead)):
            others.append(lead)
            lead, place = told, Place.SYSTEM
        else:
            others.append(told)
    return _merge(lead, others, place, _groups(told, head, tail or head))


def _rules(told: Part, asked: Part) -> bool:
    """Whether the system prompt outweighs the user turn: it has a firm wish, the turn has none and is weaker."""
    return told.wish is not None and told.wish.firm and asked.wish is None and told.strength > asked.strength


def _groups(told: Part, head: Part, tail: Part) -> tuple[int, ...]:
    """`Groups`: lexicon groups of the system prompt and of the turn's first line, edges and last line."""
    first, last = head.groups, tail.groups
    cut = head.text.find("\n")
    if cut >= 0:
        first = groups_in(head.text[: min(cut, _LINE)].lower(), head.marks)
    cut = tail.text.rfind("\n")
    if cut >= 0:
        last = groups_in(tail.text[cut + 1 :][-_LINE:].lower(), tail.marks)
    phrases = told.phrases | head.phrases | tail.phrases
    return told.groups, first, head.groups | tail.groups, last, phrases


def _merge(lead: Part, others: list[Part], place: Place, groups: tuple[int, ...]) -> Asking:
    """The leading part, with what the others add: evidence at less weight, and whatever it does not say itself."""
    text, wish, detail, steps = lead.text, lead.wish, lead.detail, lead.steps
    scores = lead.scores.copy()
    for other in others:
        for task, weight in other.scores.items():
            scores[task] = scores.get(task, 0.0) + _ASIDE * weight
        wish = wish or other.wish
        detail = detail or other.detail
        steps = steps or other.steps
        if other.text and len(text) + len(other.text) <= 1000:
            text = f"{text}\n{other.text}"
    return Asking(text, place, lead.language, scores, wish, detail, steps, groups)
