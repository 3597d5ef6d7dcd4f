"""Keeps the p90 true: per task, a running margin that nine of ten answers stay below.

A margin is in spreads above the location. After each finished answer it moves up a little if the answer was above the
p90 and down a ninth of that if it was not, so that it comes to rest where one in ten is above (adaptive conformal
inference, Gibbs and Candes 2021; the quantile form by Robbins and Monro). It needs no model of the errors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from gateway.types import Task

_LEVEL = 0.9
_FIRST_PACE = 0.6
_LAST_PACE = 0.12
_LOWEST, _HIGHEST = 0.0, 8.0
_START = 1.9


class Calibration:
    """Margins by task, learned from finished answers."""

    def __init__(self, margins: Mapping[Task, float]) -> None:
        self._margins: dict[Task, float] = {task: margins.get(task, _START) for task in Task}
        self._seen: dict[Task, int] = dict.fromkeys(Task, 0)

    def margin(self, task: Task) -> float:
        """Spreads from the location to the p90."""
        return self._margins[task]

    def learn(self, task: Task, ratio: float) -> None:
        """`ratio`: how many spreads the actual length was above the location."""
        if not math.isfinite(ratio):
            return
        seen = self._seen[task] = self._seen[task] + 1
        pace = max(_LAST_PACE, _FIRST_PACE / math.sqrt(seen))
        step = pace * (_LEVEL if ratio > self._margins[task] else _LEVEL - 1.0)
        self._margins[task] = min(_HIGHEST, max(_LOWEST, self._margins[task] + step))

    def statistics(self) -> dict[str, tuple[int, float]]:
        """(answers seen, margin) by task."""
        return {task.value: (self._seen[task], self._margins[task]) for task in Task}

    def snapshot(self) -> bytes:
        return json.dumps(self.statistics()).encode()

    def merge(self, data: bytes) -> None:
        """Averages the margins, weighted by what each side has seen. Raises `ValueError` for other bytes."""
        for task, theirs, margin in _read(data):
            mine = self._seen[task]
            if theirs > 0 and math.isfinite(margin):
                mean = (self._margins[task] * mine + margin * theirs) / (mine + theirs)
                self._margins[task] = min(_HIGHEST, max(_LOWEST, mean))
                self._seen[task] = mine + theirs


def _read(data: bytes) -> list[tuple[Task, int, float]]:
    found = json.loads(data)
    if not isinstance(found, dict) or not all(isinstance(pair, list) and len(pair) == 2 for pair in found.values()):
        raise ValueError("Not a snapshot of a calibration.")
    pairs = [(Task(name), pair) for name, pair in found.items()]
    if not all(isinstance(seen, int) and isinstance(margin, float) for _, (seen, margin) in pairs):
        raise ValueError("Not a snapshot of a calibration.")
    return [(task, seen, margin) for task, (seen, margin) in pairs]
