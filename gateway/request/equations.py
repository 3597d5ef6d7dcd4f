"""Bayesian linear regression that keeps only the normal equations; token counting learns its weights with it.

An observation is a profile (amount of each part of a prompt) and a token count. The weights per part are estimated with
a Gaussian prior around starting weights. Old observations decay exponentially.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_PRIOR_SPREAD = 0.35
"""Relative standard deviation of the prior on each weight."""
_NOISE = 0.03
"""Relative standard deviation of a count around the value by the true weights."""
_DECAY = 0.998
_LARGEST_UNIT = 1e6
MOST = 1.0 / (1.0 - _DECAY)
"""What `Equations.seen` approaches."""


class Sums(NamedTuple):
    """Normal equations in unit 1. Those of several processes are added."""

    seen: float
    """Decayed number of observations."""
    matrix: list[list[float]]
    vector: list[float]

    def plus(self, other: Sums) -> Sums:
        """The sum of both."""
        matrix = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(self.matrix, other.matrix, strict=True)]
        vector = [a + b for a, b in zip(self.vector, other.vector, strict=True)]
        return Sums(self.seen + other.seen, matrix, vector)

    def times(self, factor: float) -> Sums:
        """The same with another weight."""
        matrix = [[factor * value for value in row] for row in self.matrix]
        return Sums(factor * self.seen, matrix, [factor * value for value in self.vector])

    def at_most(self, seen: float) -> Sums:
        """The same with the weight of `seen` observations at most."""
        return self if self.seen <= seen else self.times(seen / self.seen)


class Equations:
    """Normal equations of one model, and the weights solved from them.

    Decay is lazy: instead of scaling all old sums down, each new observation is scaled up by `unit`, which grows. The
    matrix and the vector are in this unit. So an observation touches only the cells of its own parts.
    """

    __slots__ = ("foreign", "matrix", "passed", "pending", "prior", "seen", "solved", "unit", "vector")

    def __init__(self, prior: Sequence[float]) -> None:
        size = len(prior)
        self.prior = prior
        self.matrix = [[0.0] * size for _ in range(size)]
        self.vector = [0.0] * size
        self.seen = 0.0
        """Decayed number of observations."""
        self.pending = 0
        """Observations since the last `solve`."""
        self.passed = 0
        """Counts offered since the model is known well, used or skipped."""
        self.unit = 1.0
        self.solved: list[float] = []
        """Solved weights; empty before the first `solve`."""
        self.foreign: Sums | None = None
        """What other processes have observed, which counts beside our own."""

    def add(self, profile: Sequence[int], count: int, scale: float) -> None:
        """Adds one observation with weight `scale`."""
        self.unit /= _DECAY
        if self.unit > _LARGEST_UNIT:
            self.settle()
        scale *= self.unit
        used = [(i, amount) for i, amount in enumerate(profile) if amount]
        for i, amount in used:
            row, share = self.matrix[i], scale * amount
            for j, other in used:
                row[j] += share * other
            self.vector[i] += share * count
        self.seen = self.seen * _DECAY + 1
        self.pending += 1

    def own(self) -> Sums:
        """What this process has observed. Shares the lists: to be read at once."""
        self.settle()
        return Sums(self.seen, self.matrix, self.vector)

    def hear(self, foreign: Sums | None) -> None:
        """What other processes have observed, in place of what they had before."""
        if foreign != self.foreign:
            self.foreign = foreign
            self.solve()

    def resume(self, before: Sums) -> None:
        """What this process had observed before a restart, beside what it has observed since."""
        self.seen, self.matrix, self.vector = self.own().plus(before).at_most(MOST)
        self.solve()

    def settle(self) -> None:
        """Rescales the equations to unit 1, so that they can be added to others or exported."""
        factor, self.unit = 1.0 / self.unit, 1.0
        self.matrix = [[value * factor for value in row] for row in self.matrix]
        self.vector = [value * factor for value in self.vector]

    def solve(self) -> None:
        """Solves for the weights. Parts that no prompt contained keep their prior and are left out of the system."""
        matrix, vector = self.matrix, self.vector
        if self.foreign is not None:
            _, matrix, vector = self.own().plus(self.foreign)
        had = [i for i in range(len(self.prior)) if matrix[i][i]]
        rows = [[matrix[i][j] for j in had] for i in had]
        right = [vector[i] for i in had]
        for at, i in enumerate(had):
            precision = self.unit * (_NOISE / (_PRIOR_SPREAD * self.prior[i])) ** 2
            rows[at][at] += precision
            right[at] += precision * self.prior[i]
        self.pending = 0
        self.solved = list(self.prior)
        for i, weight in zip(had, _solve(rows, right), strict=True):
            self.solved[i] = weight


def _solve(rows: list[list[float]], right: list[float]) -> list[float]:
    """Gauss-Jordan elimination with row pivots. The prior on the diagonal keeps the matrix positive definite."""
    size = len(right)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        right[i], right[pivot] = right[pivot], right[i]
        top, scale = rows[i], rows[i][i]
        for r in range(size):
            if r != i and rows[r][i]:
                factor = rows[r][i] / scale
                rows[r] = [a - factor * b for a, b in zip(rows[r], top, strict=True)]
                right[r] -= factor * right[i]
    return [right[i] / rows[i][i] for i in range(size)]
