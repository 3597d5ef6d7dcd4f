"""The shipped prior: signals -> a length distribution and task probabilities, before any traffic was seen.

    length   expert's guess + sum of small trees        (log2 of 1 + tokens; trees learned on the guess's error)
    spread   exp(bias + sum of weights of the set bits) (same scale, mean absolute error in sources not trained on)
    tasks    softmax(bias + sum of weights of the set bits)

Every tree asks the same question in all nodes of a level, so that a tree is a table indexed by a few bits. What a set
signal adds to all trees' indexes, to all tasks' logits and to the spread are the lanes of one long integer, its row;
the sum of the rows of the set signals is therefore all that is wanted. Signals are taken eight at a time: the sums of
the rows of an eight's patterns are kept as they come up. Pure Python, about 10 microseconds.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import repeat
from operator import getitem, sub, truediv
from typing import Any, NamedTuple

from gateway.estimate.expert import SETTLED
from gateway.estimate.signals import SIZE, Signals
from gateway.types import Task

TASKS: tuple[Task, ...] = tuple(task for task in Task if task is not Task.UNKNOWN)
LEARNED_SHARE = 0.75
"""Share of the learned correction that counts. Less than all of it: new traffic is unlike the training data."""
SETTLED_SHARE = 0.1
"""Share of the learned correction that counts where the request itself shows the length."""
IGNORANT_SPREAD = 2.2
"""Mean absolute error, log2, of a guess made with no signal: about a factor of five either way."""
_LEAST_MARGIN = 1.5
"""The p90 of a t with 3.5 degrees of freedom, in mean absolute errors. Where training saw a task's answers only as
short labels, its own margin says nothing about a chat model's."""
_LANE = 4
_TASK_ZERO = 1 << 12
_SPREAD_ZERO = 1 << 21
"""Added to each weight in a lane, so that none is negative."""
_TASK_SCALE = 200.0
_NEVER = 2000
"""A task whose logit is so far behind has no chance."""
_EXP = {behind: math.exp(-behind / _TASK_SCALE) for behind in range(_NEVER)}
_SPREAD_SCALE = 10_000.0
_LANES = struct.Struct(f"<{1 + len(TASKS)}I")
_LEAF_ZERO = 128


class ModelError(ValueError):
    """The model file cannot be used with this code; retrain it."""


class Guess(NamedTuple):
    """What the prior says. Lengths are log2(1 + tokens)."""

    location: float
    spread: float
    """Expected absolute error of `location`."""
    tasks: tuple[float, ...]
    """Probabilities, in the order of `TASKS`."""
    informed: bool
    """False where nothing was recognised, so that `location` is no more than an average."""


class _Eight(dict[int, int]):
    """The sums of the rows of eight signals, by which of them are set. Made when first asked for: few ever are."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = rows

    def __missing__(self, pattern: int) -> int:
        found = self[pattern] = sum(row for i, row in enumerate(self._rows) if pattern >> i & 1)
        return found


class Prior:
    """A trained model, ready to be asked. Raises `ModelError` for a file made for other signals."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        if data.get("size") != SIZE:
            raise ModelError(f"The model was trained on {data.get('size')} signals; this version has {SIZE}.")
        trees: Sequence[Mapping[str, Sequence[int]]] = data["trees"]
        # Bytes, so that all trees together fit into a processor's nearest cache.
        self._tables = [bytes([leaf + _LEAF_ZERO for leaf in tree["leaves"]]) for tree in trees]
        self._leaf = float(data["leaf"])
        self._base = float(data["base"]) - len(trees) * _LEAF_ZERO * self._leaf
        spread = [round(weight * _SPREAD_SCALE) for weight in data["spread"]["weights"]]
        rows = [_lanes(own, row) for own, row in zip(spread, data["tasks"]["weights"], strict=True)]
        # The trees' indexes are the bytes behind the lanes: a set signal adds its level's bit where a tree asks for it.
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
        """Starting p90, in spreads above the location, by task."""

    def guess(self, signals: Signals) -> Guess:
        bits = signals.bits
        rows = map(getitem, self._eights, bits.to_bytes(len(self._eights), "little"))
        # Where no signal of an eight is set, as in half of them, there is nothing to add.
        found = sum(filter(None, rows), self._biases)
        lanes = found.to_bytes(self._size, "little")
        spread_lane, *task_lanes = _LANES.unpack_from(lanes)
        correction = self._base + self._leaf * sum(map(getitem, self._tables, lanes[_LANES.size :]))
        correction *= SETTLED_SHARE if signals.case in SETTLED else LEARNED_SHARE
        # The lane's zero was added with the bias and with each set signal.
        spread = math.exp((spread_lane - (1 + bits.bit_count()) * _SPREAD_ZERO) / _SPREAD_SCALE)
        informed = signals.case != "nothing"
        location = max(0.3, signals.start + correction)
        spread = min(3.0, max(0.15, spread)) if informed else IGNORANT_SPREAD
        return Guess(location, spread, _softmax(task_lanes), informed)


def _softmax(lanes: list[int]) -> tuple[float, ...]:
    """Probabilities from logits in units of 1 / `_TASK_SCALE`. Their common zero cancels out."""
    behind = map(sub, repeat(max(lanes)), lanes)
    weights = list(map(_EXP.get, behind, repeat(0.0)))
    return tuple(map(truediv, weights, repeat(sum(weights))))


def _lanes(spread: int, tasks: Sequence[int]) -> int:
    """One signal's weights as lanes of one integer. Raises `ModelError` for weights that a lane cannot hold."""
    if abs(spread) >= _SPREAD_ZERO or any(abs(weight) >= _TASK_ZERO for weight in tasks):
        raise ModelError("The model's weights are out of range.")
    lanes = (spread + _SPREAD_ZERO, *(weight + _TASK_ZERO for weight in tasks))
    return sum(lane << (8 * _LANE * i) for i, lane in enumerate(lanes))


def load_prior() -> Prior:
    """The prior that ships with the package."""
    return Prior(json.loads(files("gateway.data").joinpath("prior.json").read_bytes()))
