"""Calibrates the p90: keeps a running margin per task that nine of ten answers stay below.

A margin is in spreads above the location. After each finished answer it rises by a step if the answer exceeded the p90,
and falls by a ninth of that step otherwise, so that it settles where one answer in ten exceeds it. This is adaptive
conformal inference (Gibbs and Candes 2021); its quantile tracking follows Robbins and Monro (1951). It assumes no
distribution of the errors.
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
    """Margins per task, learned from finished answers."""

    def __init__(self, margins: Mapping[Task, float]) -> None:
        self._margins: dict[Task, float] = {task: margins.get(task, _START) for task in Task}
        self._seen: dict[Task, int] = dict.fromkeys(Task, 0)

    def margin(self, task: Task) -> float:
        """The p90's margin: spreads above the location."""
        return self._margins[task]

    def learn(self, task: Task, ratio: float) -> None:
        """Learns from one answer. `ratio`: spreads by which the actual length exceeded the location."""
        if not math.isfinite(ratio):
            return
        seen = self._seen[task] = self._seen[task] + 1
        pace = max(_LAST_PACE, _FIRST_PACE / math.sqrt(seen))
        step = pace * (_LEVEL if ratio > self._margins[task] else _LEVEL - 1.0)
        self._margins[task] = min(_HIGHEST, max(_LOWEST, self._margins[task] + step))

    def statistics(self) -> dict[str, tuple[int, float]]:
        """(answers seen, margin) per task."""
        return {task.value: (self._seen[task], self._margins[task]) for task in Task}

    def snapshot(self) -> bytes:
        """`statistics` as JSON, for another process's `merge`."""
        return json.dumps(self.statistics()).encode()

    def merge(self, data: bytes) -> None:
        """Averages the margins, weighted by the answers each side has seen. Raises `ValueError` if `data` is no
        snapshot."""
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
