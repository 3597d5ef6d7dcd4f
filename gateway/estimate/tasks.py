"""Which task a request is: the rules' evidence and the prior's chances together, held against the expected length."""

from __future__ import annotations

from gateway.estimate.model import TASKS, Guess
from gateway.estimate.rules import best_task
from gateway.types import Features, Task

_PLACE = {task: at for at, task in enumerate(TASKS)}
_TOLD = 0.34
"""A share of the rules' evidence that stands against a task for which there is none."""
_BRIEF = frozenset((Task.CLASSIFICATION, Task.MULTIPLE_CHOICE, Task.EXTRACTION, Task.SHORT_QA))
_OTHERS = tuple(_PLACE[task] for task in TASKS if task not in _BRIEF)


def likeliest(features: Features, guess: Guess, *, long: bool) -> Task:
    """The task; UNKNOWN where neither has a clear favourite.

    `long`: the answer proper is expected to be longer than labels, names and facts are. What was taken for such a task
    is then the likeliest of the others, however short its answers look to somebody who knows the request alone.
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
        # To the prior a passage before a short ask looks like a passage to take something from, whatever is asked.
        found = scores[0][0]
    return TASKS[max(_OTHERS, key=chances.__getitem__)] if long and found in _BRIEF else found
