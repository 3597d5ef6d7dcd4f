"""Combines what the text and the parameters of a request say about its answer into a `Reading`.

A reading holds no text. If history knows the length of a template's answers, `estimate.recall` reuses one request's
reading for later ones, and their texts are not read.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.records import record
from gateway.request.asking import Asking
from gateway.request.evidence import Scores
from gateway.request.params import Params
from gateway.types import Features, Place, Structure, Task, ToolChoice

_UNSURE = 1.5
"""Weight of "none of these tasks" beside the evidence: a faint hint reaches a share of 40 %, a clear word 75 %."""


@record
class Reading:
    """Fields as in `Features`. It holds no text, so that one request's reading can serve another."""

    place: Place
    language: str
    task_scores: tuple[tuple[Task, float], ...]
    wish: int | None
    wish_firm: bool
    detail: int
    step_by_step: bool
    groups: tuple[int, ...]


Known = Callable[[int], Reading | None]
"""Looks up a cached reading by its key; None if there is none."""


def reading_of(features: Features) -> tuple[int, Reading]:
    """(key, reading) of a request that was read, for reuse by others with its template and form."""
    reading = Reading(
        place=features.place,
        language=features.language,
        task_scores=features.task_scores,
        wish=features.wish,
        wish_firm=features.wish_firm,
        detail=features.detail,
        step_by_step=features.step_by_step,
        groups=features.groups,
    )
    return reading_key(features.template_key, features.shape_key, features.after_tool), reading


def reading_key(template: int, shape: int, after_tool: bool) -> int:
    """Key of a template, a request form (`Features.template_key`, `shape_key`), and whether a tool result came last."""
    return hash((template, shape, after_tool))


def read_of_ask(asking: Asking, params: Params, code: float, *, after_tool: bool) -> Reading:
    """The reading of an instruction. `code` is the share of code in the user turn."""
    scores = _scores(asking, params, code, after_tool=after_tool)
    wish, firm = asking.wish or (None, False)
    # Positional: by keyword it costs twice as much.
    return Reading(asking.place, asking.language, scores, wish, firm, asking.detail, asking.step_by_step, asking.groups)


def _scores(asking: Asking, params: Params, share: float, *, after_tool: bool) -> tuple[tuple[Task, float], ...]:
    """Evidence of the text and the parameters as (task, share), largest share first."""
    scores = asking.scores
    shape, choice = params.shape, params.choice
    if choice is not ToolChoice.NONE:
        sure = choice is not ToolChoice.AUTO
        _add(scores, Task.TOOL_CALL, 20 if sure else 2 if after_tool else 4)
    labels = shape.labels and shape.size and shape.size.typical <= 16
    if shape.kind is Structure.CHOICE or params.caps.scoring or labels:
        _add(scores, Task.CLASSIFICATION, 12)
    elif shape.kind in (Structure.JSON_SCHEMA, Structure.JSON_OBJECT):
        _add(scores, Task.STRUCTURED_JSON, 8)
    if asking.step_by_step:
        _add(scores, Task.REASONING, 3)
    if share > 0.2:
        _add(scores, Task.CODE, 2 * share)
    if not scores:
        return ()
    total = sum(scores.values()) + _UNSURE
    ranked = sorted([(-weight, task) for task, weight in scores.items()])
    return tuple([(task, round(-negative / total, 4)) for negative, task in ranked])


def _add(scores: Scores, task: Task, weight: float) -> None:
    scores[task] = scores.get(task, 0.0) + weight
