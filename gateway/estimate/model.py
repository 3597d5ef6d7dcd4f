"""The shipped prior: maps features (signals.py) to a length distribution and task probabilities, without any traffic.

    length   expert's guess + sum of boosted trees      (log2(1 + tokens); the trees are trained on the guess's error)
    spread   exp(bias + sum of weights of the set bits) (mean absolute error on that scale, on sources not trained on)
    tasks    softmax(bias + sum of weights of the set bits)

Trees are oblivious: all nodes of a level split on the same feature, so a tree is a table indexed by a few bits. Each
feature has one long integer, its row, whose lanes hold what it adds to all tree indexes, all task logits and the
spread; one sum over the rows of the set features yields everything. Features are taken eight at a time, with the row
sums of each 8-bit pattern cached. Pure Python, about 10 microseconds.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import repeat
from operator import getitem, sub, truediv
from typing import Any

from gateway.estimate.expert import SETTLED
from gateway.estimate.signals import SIZE, Signals
from gateway.records import record
from gateway.types import Task

TASKS: tuple[Task, ...] = tuple(task for task in Task if task is not Task.UNKNOWN)
LEARNED_SHARE = 0.75
"""Share of the trees' correction that is applied; below 1, because new traffic differs from the training data."""
SETTLED_SHARE = 0.1
"""Share of the trees' correction that is applied if the request itself states the length."""
IGNORANT_SPREAD = 2.2
"""Spread of a guess without any feature, log2: about a factor of five either way."""
_LEAST_MARGIN = 1.5
"""Floor of a margin: the p90 of Student's t with 3.5 degrees of freedom, in mean absolute errors. If training saw only
short labels for a task, its own margin says nothing about a chat model's answers.
"""
_LANE = 4
_TASK_ZERO = 1 << 12
_SPREAD_ZERO = 1 << 21
"""Offset of each weight in a lane, so that none is negative."""
_TASK_SCALE = 200.0
_NEVER = 2000
"""A logit this far below the highest gets probability 0."""
_EXP = {behind: math.exp(-behind / _TASK_SCALE) for behind in range(_NEVER)}
_SPREAD_SCALE = 10_000.0
_LANES = struct.Struct(f"<{1 + len(TASKS)}I")
_LEAF_ZERO = 128


class ModelError(ValueError):
    """The model file does not fit this version of the code and has to be trained again."""


@record
class Guess:
    """The prior's result. Lengths are log2(1 + tokens)."""

    location: float
    spread: float
    """Expected absolute error of `location`."""
    tasks: tuple[float, ...]
    """Probabilities in the order of `TASKS`."""
    informed: bool
    """False if no feature was recognised; `location` is then a mere average."""


class _Eight(dict[int, int]):
    """Row sums of eight features by bit pattern. Filled on demand, because few patterns occur."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = rows

    def __missing__(self, pattern: int) -> int:
        found = self[pattern] = sum(row for i, row in enumerate(self._rows) if pattern >> i & 1)
        return found


class Prior:
    """A trained model. Raises `ModelError` if the file was trained on other features."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        if data.get("size") != SIZE:
            raise ModelError(f"The model was trained on {data.get('size')} signals; this version has {SIZE}.")
        trees: Sequence[Mapping[str, Sequence[int]]] = data["trees"]
        # Bytes, so that all trees together fit into the L1 cache.
        self._tables = [bytes([leaf + _LEAF_ZERO for leaf in tree["leaves"]]) for tree in trees]
        self._leaf = float(data["leaf"])
        self._base = float(data["base"]) - len(trees) * _LEAF_ZERO * self._leaf
        spread = [round(weight * _SPREAD_SCALE) for weight in data["spread"]["weights"]]
        rows = [_lanes(own, row) for own, row in zip(spread, data["tasks"]["weights"], strict=True)]
        # The tree indexes are the bytes above the lanes: a feature sets its level's bit in each tree that splits on it.
        for at, tree in enumerate(trees, _LANES.size):
            for level, signal in enumerate(tree["bits"]):
                rows[signal] += 1 << 8 * at + level
        self._eights = [_Eight(rows[at : at + 8]) for at in range(0, SIZE, 8)]
        self._biases = _lanes(
            round(float(data["spread"]["bias"]) * _SPREAD_SCALE),
            [round(float(bias) * _TASK_SCALE) for bias in data["tasks"]["bias"]],
        )
        self._size = _LANES.size + len(trees)
        self.margins: dict[Task, float] = {
            Task(name): max(_LEAST_MARGIN, float(m)) for name, m in data["margins"].items()
        }
        """Starting margin of the p90 per task, in spreads above the location."""

    def guess(self, signals: Signals) -> Guess:
        """The length distribution and task probabilities for a request's features. Pure; never raises."""
        bits = signals.bits
        rows = map(dict.__getitem__, self._eights, bits.to_bytes(len(self._eights), "little"))
        # Half of the eights have no feature set and nothing to add.
        found = sum(filter(None, rows), self._biases)
        lanes = found.to_bytes(self._size, "little")
        spread_lane, *task_lanes = _LANES.unpack_from(lanes)
        correction = self._base + self._leaf * sum(map(getitem, self._tables, lanes[_LANES.size :]))
        correction *= SETTLED_SHARE if signals.case in SETTLED else LEARNED_SHARE
        # The lane's offset was added once with the bias and once with each set feature.
        spread = math.exp((spread_lane - (1 + bits.bit_count()) * _SPREAD_ZERO) / _SPREAD_SCALE)
        informed = signals.case != "nothing"
        location = max(0.3, signals.start + correction)
        spread = min(3.0, max(0.15, spread)) if informed else IGNORANT_SPREAD
        return Guess(location, spread, _softmax(task_lanes), informed)


def _softmax(lanes: list[int]) -> tuple[float, ...]:
    """Probabilities from logits in units of 1 / `_TASK_SCALE`. The lanes' common offset cancels out."""
    behind = map(sub, repeat(max(lanes)), lanes)
    weights = list(map(_EXP.get, behind, repeat(0.0)))
    return tuple(map(truediv, weights, repeat(sum(weights))))


def _lanes(spread: int, tasks: Sequence[int]) -> int:
    """Packs one feature's weights into the lanes of an integer. Raises `ModelError` if a weight does not fit."""
    if abs(spread) >= _SPREAD_ZERO or any(abs(weight) >= _TASK_ZERO for weight in tasks):
        raise ModelError("The model's weights are out of range.")
    lanes = (spread + _SPREAD_ZERO, *(weight + _TASK_ZERO for weight in tasks))
    return sum(lane << (8 * _LANE * i) for i, lane in enumerate(lanes))


def load_prior() -> Prior:
    """Loads the prior that ships with the package."""
    return Prior(json.loads(files("gateway.data").joinpath("prior.json").read_bytes()))
