"""Decides the task: adds the rules' evidence to the prior's probabilities, then checks against the expected length."""

from __future__ import annotations

from gateway.estimate.model import TASKS, Guess
from gateway.estimate.rules import best_task
from gateway.types import Features, Task

_PLACE = {task: at for at, task in enumerate(TASKS)}
_TOLD = 0.34
"""Share of evidence for another task that overrides EXTRACTION if that has no evidence."""
_BRIEF = frozenset((Task.CLASSIFICATION, Task.MULTIPLE_CHOICE, Task.EXTRACTION, Task.SHORT_QA))
_OTHERS = tuple(_PLACE[task] for task in TASKS if task not in _BRIEF)


def likeliest(features: Features, guess: Guess, *, long: bool) -> Task:
    """The task; UNKNOWN if there is no clear favourite.

    `long`: the answer proper is expected to be longer than labels, names and facts are. A task of short answers is then
    replaced by the likeliest other task.
    """
    if features.hint_task is not None:
        return features.hint_task
    scores = features.task_scores
    if not guess.informed and not scores:
        return Task.UNKNOWN
    chances = [*guess.tasks]
    told = 0.0
    for task, share in scores:
        told += share
        if task is not Task.UNKNOWN:
            chances[_PLACE[task]] += share
    highest = max(chances)
    found = TASKS[chances.index(highest)]
    if highest < 0.3 * (1.0 + told):
        found = best_task(features)[0]
    elif found is Task.EXTRACTION and scores and scores[0][1] >= _TOLD and all(task is not found for task, _ in scores):
        # The prior takes any passage before a short instruction for a passage to extract from.
        found = scores[0][0]
    return TASKS[max(_OTHERS, key=chances.__getitem__)] if long and found in _BRIEF else found
