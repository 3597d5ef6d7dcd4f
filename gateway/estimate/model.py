"""The shipped prior: maps features (signals.py) to a length distribution and task probabilities, without any traffic.

    length   expert's guess + sum of boosted trees      (log2(1 + tokens); the trees are trained on the guess's error)
    spread   exp(bias + sum of weights of the set bits) (mean absolute error on that scale, on sources not trained on)
    tasks    softmax(bias + sum of weights of the set bits)

Trees are oblivious: all nodes of a level split on the same feature, so a tree is a table indexed by a few bits. Two
trees share a table, which holds the sum for each pair of their leaves and so halves the look-ups. Each
feature has one long integer, its row, whose lanes hold what it adds to all tree indexes, all task logits and the
spread; one sum over the rows of the set features yields everything. Features are taken sixteen at a time, with the row
sums of each 16-bit pattern cached. Pure Python, about 10 microseconds.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from operator import getitem
from typing import Any, NamedTuple

from gateway.estimate.expert import SETTLED
from gateway.estimate.signals import SIZE, Signals
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
_EXP = tuple(math.exp(-behind / _TASK_SCALE) for behind in range(_NEVER))
_SPREAD_SCALE = 10_000.0
_LANES = struct.Struct(f"<{1 + len(TASKS)}I")
_LEAF_ZERO = 128
_RAMP = bytes(range(256)) * 2
_MOST_LEVELS = 12
"""Most levels of trees that share a table: 4 KB, of which requests use a few places."""
_MOST_PATTERNS = 1024
"""Most cached patterns of sixteen features, at about 430 bytes each. Thousands of different requests have about 100."""


Tree = Mapping[str, Sequence[int]]
"""`bits`: the feature of each level; `leaves`: the correction of each leaf, in units of the model's `leaf`."""


class ModelError(ValueError):
    """The model file does not fit this version of the code and has to be trained again."""


class Guess(NamedTuple):
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


class _Sixteen(dict[int, int]):
    """The same for two neighbouring eights, which halves the sums of a request. Emptied when full."""

    def __init__(self, low: _Eight, high: _Eight) -> None:
        self._low, self._high = low, high

    def __missing__(self, pattern: int) -> int:
        if len(self) >= _MOST_PATTERNS:
            self.clear()
        found = self[pattern] = self._low[pattern & 0xFF] + self._high[pattern >> 8]
        return found


class Prior:
    """A trained model. Raises `ModelError` if the file was trained on other features."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        if data.get("size") != SIZE:
            raise ModelError(f"The model was trained on {data.get('size')} signals; this version has {SIZE}.")
        trees: Sequence[Tree] = data["trees"]
        groups = _grouped(trees)
        self._tables: list[bytes] = [_table([tree["leaves"] for tree in group]) for group in groups]
        self._lowest = sum(min(tree["leaves"]) + _LEAF_ZERO for tree in trees)
        self._leaf = float(data["leaf"])
        self._base = float(data["base"]) - len(trees) * _LEAF_ZERO * self._leaf
        spread = [round(weight * _SPREAD_SCALE) for weight in data["spread"]["weights"]]
        rows = [_lanes(own, row) for own, row in zip(spread, data["tasks"]["weights"], strict=True)]
        # The tables' indexes are above the lanes, two bytes each: a feature sets a bit in each that splits on it.
        for at, group in enumerate(groups):
            for level, signal in enumerate(signal for tree in group for signal in tree["bits"]):
                rows[signal] += 1 << 8 * (_LANES.size + 2 * at) + level
        self._indexes = struct.Struct(f"<{len(groups)}H")
        eights = [_Eight(rows[at : at + 8]) for at in range(0, SIZE + -SIZE % 16, 8)]
        self._sixteens = list(map(_Sixteen, eights[0::2], eights[1::2]))
        self._patterns = struct.Struct(f"<{len(self._sixteens)}H")
        self._biases = _lanes(
            round(float(data["spread"]["bias"]) * _SPREAD_SCALE),
            [round(float(bias) * _TASK_SCALE) for bias in data["tasks"]["bias"]],
        )
        self._size = _LANES.size + self._indexes.size
        self.margins: dict[Task, float] = {
            Task(name): max(_LEAST_MARGIN, float(m)) for name, m in data["margins"].items()
        }
        """Starting margin of the p90 per task, in spreads above the location."""

    def guess(self, signals: Signals) -> Guess:
        """The length distribution and task probabilities for a request's features. Pure; never raises."""
        bits = signals.bits
        patterns = self._patterns.unpack(bits.to_bytes(self._patterns.size, "little"))
        rows = map(getitem, self._sixteens, patterns)
        # Where no feature is set there is nothing to add.
        found = sum(filter(None, rows), self._biases)
        lanes = found.to_bytes(self._size, "little")
        spread_lane, *task_lanes = _LANES.unpack_from(lanes)
        leaves: Iterator[int] = map(getitem, self._tables, self._indexes.unpack_from(lanes, _LANES.size))
        correction = self._base + self._leaf * sum(leaves, self._lowest)
        correction *= SETTLED_SHARE if signals.case in SETTLED else LEARNED_SHARE
        # The lane's offset was added once with the bias and once with each set feature.
        spread = math.exp((spread_lane - (1 + bits.bit_count()) * _SPREAD_ZERO) / _SPREAD_SCALE)
        informed = signals.case != "nothing"
        location = signals.start + correction
        # Written out: calls of `min` and `max` cost several times as much.
        location = location if location > 0.3 else 0.3
        spread = spread if spread > 0.15 else 0.15
        spread = (spread if spread < 3.0 else 3.0) if informed else IGNORANT_SPREAD
        return Guess(location, spread, _softmax(task_lanes), informed)


def _grouped(trees: Sequence[Tree]) -> list[list[Tree]]:
    """Pairs of trees whose sums of leaves span a byte, and whose table is small; what fits nowhere stays alone."""
    groups: list[list[Tree]] = []
    waiting = sorted(trees, key=_span)
    while waiting:
        group = [waiting.pop()]
        if waiting and _span(group[0]) + _span(waiting[0]) < 256:
            levels = len(group[0]["bits"]) + len(waiting[0]["bits"])
            group += [waiting.pop(0)] if levels <= _MOST_LEVELS else []
        groups.append(group)
    return groups


def _span(tree: Tree) -> int:
    return max(tree["leaves"]) - min(tree["leaves"])


def _table(leaves: Sequence[Sequence[int]]) -> bytes:
    """The sums of one leaf of each tree, above the lowest sum. The first tree's leaf is the low part of the index."""
    table = b"\0"
    for own in leaves:
        lowest = min(own)
        above = [leaf - lowest for leaf in own]
        # Translating by a part of the ramp adds a number to each byte.
        table = b"".join([table.translate(_RAMP[more : more + 256]) for more in above])
    return table


def _softmax(lanes: list[int]) -> tuple[float, ...]:
    """Probabilities from logits in units of 1 / `_TASK_SCALE`. The lanes' common offset cancels out."""
    top = max(lanes)
    weights = [_EXP[top - lane] if top - lane < _NEVER else 0.0 for lane in lanes]
    total = sum(weights)
    return tuple([weight / total for weight in weights])


def _lanes(spread: int, tasks: Sequence[int]) -> int:
    """Packs one feature's weights into the lanes of an integer. Raises `ModelError` if a weight does not fit."""
    if abs(spread) >= _SPREAD_ZERO or any(abs(weight) >= _TASK_ZERO for weight in tasks):
        raise ModelError("The model's weights are out of range.")
    lanes = (spread + _SPREAD_ZERO, *(weight + _TASK_ZERO for weight in tasks))
    return sum(lane << (8 * _LANE * i) for i, lane in enumerate(lanes))


def load_prior() -> Prior:
    """Loads the prior that ships with the package."""
    return Prior(json.loads(files("gateway.data").joinpath("prior.json").read_bytes()))
