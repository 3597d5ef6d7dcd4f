"""The shipped prior: signals -> a length distribution and task probabilities, before any traffic was seen.

    length   expert's guess + sum of small trees        (log2 of 1 + tokens; trees learned on the guess's error)
    spread   exp(bias + sum of weights of the set bits) (same scale, mean absolute error in sources not trained on)
    tasks    softmax(bias + sum of weights of the set bits)

Every tree asks the same question in all nodes of a level, so that a tree is a table indexed by a few bits. All trees
are indexed at once: `bytes.translate` gathers the bits that the trees ask for, level by level; the bytes of a level are
one big integer, and the levels are added, each shifted by its place. Likewise the weights of a bit for all tasks are
the lanes of one integer. Pure Python, about 30 microseconds.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import compress
from operator import getitem
from typing import Any

from gateway.estimate.expert import SETTLED
from gateway.estimate.signals import SIZE, Signals
from gateway.types import Task

TASKS: tuple[Task, ...] = tuple(task for task in Task if task is not Task.UNKNOWN)
LEARNED_SHARE = 0.8
"""Share of the learned correction that counts. Less than all of it: new traffic is unlike the training data."""
SETTLED_SHARE = 0.1
"""Share of the learned correction that counts where the request itself shows the length."""
IGNORANT_SPREAD = 2.2
"""Mean absolute error, log2, of a guess made with no signal: about a factor of five either way."""
_LEAST_MARGIN = 1.0
"""Where training saw a task's answers only as short labels, its margin says nothing about a chat model's."""
_HALF = 255
_LANE = 4
_LANE_ZERO = 1 << 12
_LANES = struct.Struct(f"<{len(TASKS)}I")
_LEAF_SCALE = 1000.0
_TASK_SCALE = 200.0


class ModelError(ValueError):
    """The model file cannot be used with this code; retrain it."""


@dataclass(frozen=True, slots=True)
class Guess:
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
        self._trees = len(trees)
        asked = [tree["bits"][level] for level in range(len(trees[0]["bits"])) for tree in trees]
        # A table of `translate` has 256 places; the last one of each half stays 0 for the bits of the other half.
        self._first = bytes(bit if bit < _HALF else _HALF for bit in asked)
        self._second = bytes(bit - _HALF if bit >= _HALF else _HALF for bit in asked)
        self._tables = [[leaf / _LEAF_SCALE for leaf in tree["leaves"]] for tree in trees]
        self._base = float(data["base"])
        self._spread_bias = float(data["spread"]["bias"])
        self._spread = [float(w) for w in data["spread"]["weights"]]
        self._task_bias = [float(b) for b in data["tasks"]["bias"]]
        self._lanes = [_pack(row) for row in data["tasks"]["weights"]]
        self.margins: dict[Task, float] = {
            Task(name): max(_LEAST_MARGIN, float(m)) for name, m in data["margins"].items()
        }
        """Starting p90, in spreads above the location, by task."""

    def guess(self, signals: Signals) -> Guess:
        bits = signals.bits
        first = bits[:_HALF] + b"\0"
        second = bits[_HALF:].ljust(256, b"\0")
        gathered = int.from_bytes(self._first.translate(first), "little")
        gathered |= int.from_bytes(self._second.translate(second), "little")
        answers = gathered.to_bytes(len(self._first), "little")
        trees = self._trees
        index = 0
        for level, at in enumerate(range(0, len(answers), trees)):
            index += int.from_bytes(answers[at : at + trees], "little") << level
        leaves = map(getitem, self._tables, index.to_bytes(trees, "little"))
        correction = self._base + sum(leaves)
        correction *= SETTLED_SHARE if signals.case in SETTLED else LEARNED_SHARE
        spread = math.exp(self._spread_bias + sum(compress(self._spread, bits)))
        informed = signals.case != "nothing"
        return Guess(
            location=max(0.3, signals.start + correction),
            spread=min(3.0, max(0.15, spread)) if informed else IGNORANT_SPREAD,
            tasks=self._tasks(bits),
            informed=informed,
        )

    def _tasks(self, bits: bytes) -> tuple[float, ...]:
        chosen = list(compress(self._lanes, bits))
        lanes = _LANES.unpack(sum(chosen).to_bytes(_LANES.size, "little"))
        zero = _LANE_ZERO * len(chosen)
        logits = [bias + (lane - zero) / _TASK_SCALE for bias, lane in zip(self._task_bias, lanes, strict=True)]
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits]
        total = sum(weights)
        return tuple(weight / total for weight in weights)


def _pack(weights: Sequence[int]) -> int:
    """The tasks' weights of one bit as lanes of one integer, shifted so that none is negative."""
    return sum((weight + _LANE_ZERO) << (8 * _LANE * i) for i, weight in enumerate(weights))


def load_prior() -> Prior:
    """The prior that ships with the package."""
    return Prior(json.loads(files("gateway.data").joinpath("prior.json").read_bytes()))
