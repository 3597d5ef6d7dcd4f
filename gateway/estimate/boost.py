"""Fits the parts of the prior with numpy: trees for the length, ridge regression for the spread, softmax for the tasks.

The trees are gradient boosting on a Huber loss with oblivious trees (one feature per level). The best feature of a
level is found by exhaustive search; the sums per leaf and feature are one matrix product. Deterministic for a seed.
Used by training only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters of the trees."""

    trees: int = 300
    depth: int = 6
    """Levels of a tree; at most 8, because a leaf's index is a byte."""
    rate: float = 0.15
    shrink: float = 2.0
    """Regularisation: each leaf shrinks as if it had this many more rows with error 0."""
    clip: float = 3.0
    """Errors, log2, are clipped to this size."""
    rows: float = 0.7
    columns: float = 0.3


@dataclass(frozen=True, slots=True)
class Trees:
    """`bits`: trees x depth, the feature of each level; `leaves`: trees x 2^depth, the corrections in log2."""

    base: float
    bits: NDArray[np.int64]
    leaves: Floats

    def predict(self, x: NDArray[np.float32]) -> Floats:
        """Corrections, log2, for rows of 0/1 features."""
        total = np.full(len(x), self.base)
        for bits, leaves in zip(self.bits, self.leaves, strict=True):
            total += leaves[_leaf_index(x, bits)]
        return total


def grow(x: NDArray[np.float32], target: Floats, weight: Floats, settings: Settings, seed: int) -> Trees:
    """Grows trees that predict `target` from rows of 0/1 features."""
    rng = np.random.default_rng(seed)
    rows = len(x)
    varied = np.flatnonzero((x.min(0) == 0) & (x.max(0) == 1))
    base = float(np.average(target, weights=weight))
    fitted = np.full(rows, base)
    all_bits: list[NDArray[np.int64]] = []
    all_leaves: list[Floats] = []
    for _ in range(settings.trees):
        error = np.clip(target - fitted, -settings.clip, settings.clip)
        sample = np.flatnonzero(rng.random(rows) < settings.rows)
        columns = rng.choice(varied, max(settings.depth, int(len(varied) * settings.columns)), replace=False)
        bits = _split(x[np.ix_(sample, columns)], error[sample], weight[sample], settings)
        chosen = columns[bits]
        leaf = _leaf_index(x, chosen)
        size = 1 << settings.depth
        pull = np.bincount(leaf[sample], weights=(error * weight)[sample], minlength=size)
        mass = np.bincount(leaf[sample], weights=weight[sample], minlength=size)
        leaves = settings.rate * pull / (mass + settings.shrink)
        fitted += leaves[leaf]
        all_bits.append(chosen)
        all_leaves.append(leaves)
    return Trees(base, np.array(all_bits), np.array(all_leaves))


def _split(x: NDArray[np.float32], error: Floats, weight: Floats, settings: Settings) -> list[int]:
    """The column that each level splits on, chosen greedily by gain."""
    rows = np.arange(len(x))
    pull, mass = (error * weight).astype(np.float32), weight.astype(np.float32)
    leaf = np.zeros(len(x), np.int64)
    chosen: list[int] = []
    for level in range(settings.depth):
        size = 1 << level
        spread = np.zeros((2 * size, len(x)), np.float32)
        spread[leaf, rows] = pull
        spread[size + leaf, rows] = mass
        ones = spread @ x
        total = spread.sum(1, keepdims=True)
        zeros = total - ones
        gain = ones[:size] ** 2 / (ones[size:] + settings.shrink) + zeros[:size] ** 2 / (zeros[size:] + settings.shrink)
        best = int(np.argmax(gain.sum(0)))
        chosen.append(best)
        leaf |= x[:, best].astype(np.int64) << level
    return chosen


def _leaf_index(x: NDArray[np.float32], bits: NDArray[np.int64]) -> NDArray[np.int64]:
    index = np.zeros(len(x), np.int64)
    for level, bit in enumerate(bits):
        index |= x[:, bit].astype(np.int64) << level
    return index


def ridge(x: NDArray[np.float32], target: Floats, strength: float) -> tuple[float, Floats]:
    """(bias, weights) of a linear least-squares fit with an L2 penalty of `strength` on the weights."""
    mean, centre = x.mean(0, dtype=np.float64), float(target.mean())
    shifted = x - mean
    gram = shifted.T @ shifted + strength * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, shifted.T @ (target - centre))
    return centre - float(mean @ weights), weights


def softmax_fit(
    x: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: int,
    weight: Floats,
    *,
    steps: int = 300,
    decay: float = 2e-3,
) -> tuple[Floats, Floats]:
    """(bias, weights: features x classes) of a softmax regression, by Nesterov's accelerated gradient descent."""
    rows, width = x.shape
    truth = np.zeros((rows, classes), np.float32)
    truth[np.arange(rows), labels] = 1
    share = (weight / weight.sum()).astype(np.float32)[:, None]
    params = np.zeros((width + 1, classes), np.float32)
    speed = np.zeros_like(params)
    design = np.hstack([x, np.ones((rows, 1), np.float32)])
    rate = 4.0 / float(np.mean(design.sum(1)))
    for _ in range(steps):
        ahead = params + 0.9 * speed
        logits = design @ ahead
        logits -= logits.max(1, keepdims=True)
        chance = np.exp(logits)
        chance /= chance.sum(1, keepdims=True)
        slope = design.T @ ((chance - truth) * share) + decay * ahead
        speed = 0.9 * speed - rate * slope
        params = params + speed
    return params[-1].astype(np.float64), params[:-1].astype(np.float64)
