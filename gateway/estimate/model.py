"""The shipped prior: signals -> a length distribution and task probabilities, before any traffic was seen.

    length   expert's guess + sum of small trees        (log2 of 1 + tokens; trees learned on the guess's error)
    spread   exp(bias + sum of weights of the set bits) (same scale, mean absolute error in sources not trained on)
    tasks    softmax(bias + sum of weights of the set bits)

Every tree asks the same question in all nodes of a level, so that a tree is a table indexed by a few bits. What a set
signal adds to all trees' indexes, to all tasks' logits and to the spread are the lanes of one long integer, its row;
the sum of the rows of the set signals is therefore all that is wanted. Pure Python, about 20 microseconds.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import compress
from operator import getitem
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
_LEAST_MARGIN = 1.0
"""Where training saw a task's answers only as short labels, its margin says nothing about a chat model's."""
_LANE = 4
_TASK_ZERO = 1 << 12
_SPREAD_ZERO = 1 << 21
"""Added to each weight in a lane, so that none is negative."""
_TASK_SCALE = 200.0
_SPREAD_SCALE = 10_000.0
_LANES = struct.Struct(f"<{1 + len(TASKS)}I")
_LEAF_SCALE = 1000.0


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


class Prior:
    """A trained model, ready to be asked. Raises `ModelError` for a file made for other signals."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        if data.get("size") != SIZE:
            raise ModelError(f"The model was trained on {data.get('size')} signals; this version has {SIZE}.")
        trees: Sequence[Mapping[str, Sequence[int]]] = data["trees"]
        self._tables = [[leaf / _LEAF_SCALE for leaf in tree["leaves"]] for tree in trees]
        self._base = float(data["base"])
        self._spread_bias = float(data["spread"]["bias"])
        self._task_bias = [float(b) for b in data["tasks"]["bias"]]
        spread = [round(weight * _SPREAD_SCALE) for weight in data["spread"]["weights"]]
        self._rows = [_lanes(own, row) for own, row in zip(spread, data["tasks"]["weights"], strict=True)]
        # The trees' indexes are the bytes behind the lanes: a set signal adds its level's bit where a tree asks for it.
        for at, tree in enumerate(trees, _LANES.size):
            for level, signal in enumerate(tree["bits"]):
                self._rows[signal] += 1 << 8 * at + level
        self._size = _LANES.size + len(trees)
        self.margins: dict[Task, float] = {
            Task(name): max(_LEAST_MARGIN, float(m)) for name, m in data["margins"].items()
        }
        """Starting p90, in spreads above the location, by task."""

    def guess(self, signals: Signals) -> Guess:
        bits = signals.bits
        found = sum(compress(self._rows, bits)).to_bytes(self._size, "little")
        # The lanes' zeros were added once for each set signal.
        count = bits.count(1)
        spread_lane, *task_lanes = _LANES.unpack_from(found)
        correction = self._base + sum(map(getitem, self._tables, found[_LANES.size :]))
        correction *= SETTLED_SHARE if signals.case in SETTLED else LEARNED_SHARE
        spread = math.exp(self._spread_bias + (spread_lane - count * _SPREAD_ZERO) / _SPREAD_SCALE)
        informed = signals.case != "nothing"
        return Guess(
            location=max(0.3, signals.start + correction),
            spread=min(3.0, max(0.15, spread)) if informed else IGNORANT_SPREAD,
            tasks=self._tasks(task_lanes, count * _TASK_ZERO),
            informed=informed,
        )

    def _tasks(self, lanes: list[int], zero: int) -> tuple[float, ...]:
        logits = [bias + (lane - zero) / _TASK_SCALE for bias, lane in zip(self._task_bias, lanes, strict=True)]
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits]
        total = sum(weights)
        return tuple([weight / total for weight in weights])


def _lanes(spread: int, tasks: Sequence[int]) -> int:
    """One signal's weights as lanes of one integer. Raises `ModelError` for weights that a lane cannot hold."""
    if abs(spread) >= _SPREAD_ZERO or any(abs(weight) >= _TASK_ZERO for weight in tasks):
        raise ModelError("The model's weights are out of range.")
    lanes = (spread + _SPREAD_ZERO, *(weight + _TASK_ZERO for weight in tasks))
    return sum(lane << (8 * _LANE * i) for i, lane in enumerate(lanes))


def load_prior() -> Prior:
    """The prior that ships with the package."""
    return Prior(json.loads(files("gateway.data").joinpath("prior.json").read_bytes()))
