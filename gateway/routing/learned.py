"""Corrections to a speed profile, learned from finished requests: small, decaying, and quick to forget what is wrong.

A curve of the profile has the right shape and perhaps the wrong height, so what is learned is a factor, whose logarithm
is a sum of small effects:

    E[measured / (profile * exp(base + by load + by task))] = 1

Each request moves the effects by its relative error (a stochastic approximation; the mean of the ratio, not of its
logarithm, because expected times are what is compared). An effect moves fast at first, slowly later, and returns to
zero without data, or half-way to what pools on the same hardware have shown. Outliers count as three standard
deviations at most. A two-sided CUSUM on the standardised errors notices that the engine has changed (another k, a
drafter that no longer fits, a neighbour on the GPU); then the past counts as one request only, so that the next few
decide.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

HALF_LIFE = 600.0
"""Seconds after which an observation counts half."""
MOST = 60.0
"""Weight above which old observations make room, so that a curve follows slow changes."""
COLD = 0.12
"""Standard error of a profile that nothing has been measured against: what derived figures were off by."""
UNSEEN = 0.3
"""What a task's acceptance may differ from the profile's by, between models and prompts."""
FIRST_SPREAD = 0.3
LEAST_SPREAD = 0.04
SLACK = 1.0
ALARM = 20.0
"""The CUSUM ignores errors below `SLACK` standard deviations and alarms when the rest sum up to `ALARM`."""
LIKENESS = 0.5
_CLIP = 3.0
_BASE_PRIOR = 2.0
_PART_PRIOR = 8.0
_MOST_PARTS = 64


class Cell:
    """One effect: a mean of our own and other replicas' observations, drawn to `center` by `prior` of them."""

    __slots__ = ("center", "foreign_sum", "foreign_weight", "prior", "sum", "value", "weight")

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.weight = self.sum = self.foreign_weight = self.foreign_sum = self.value = 0.0
        self.center = 0.0
        """What is believed without observations: 0 is the profile."""

    def add(self, target: float, weight: float) -> None:
        if (total := self.weight + weight) > MOST:
            keep = (MOST - weight) / self.weight
            self.sum *= keep
            total = MOST
        self.weight = total
        self.sum += target * weight
        self.refresh()

    def fade(self, factor: float) -> None:
        self.weight *= factor
        self.sum *= factor
        self.foreign_weight *= factor
        self.foreign_sum *= factor
        self.refresh()

    def shrink(self, weight: float) -> None:
        """Keeps the value and lets the past count as `weight` observations at most."""
        total = self.weight + self.foreign_weight
        if total > weight:
            self.fade(weight / total)

    def hear(self, weight: float, total: float) -> None:
        """What the other replicas have observed, in place of what they had before."""
        self.foreign_weight, self.foreign_sum = weight, total
        self.refresh()

    def resume(self, weight: float, total: float) -> None:
        """What this process had observed itself before a restart."""
        self.weight += weight
        self.sum += total
        self.refresh()

    def refresh(self) -> None:
        total = self.sum + self.foreign_sum + self.prior * self.center
        self.value = total / (self.weight + self.foreign_weight + self.prior)


def pull_together(cells: Sequence[Cell]) -> None:
    """Lets effects that have a cause in common, such as a machine that is not as its profile says, believe half of
    what the others have observed, as long as they have observed little themselves."""
    weight = total = 0.0
    for cell in cells:
        weight += cell.weight
        total += cell.sum
    for cell in cells:
        center = LIKENESS * (total - cell.sum) / (weight - cell.weight + _PART_PRIOR)
        if center != cell.center:
            cell.center = center
            cell.refresh()


class Effects:
    """The corrections of one curve. Keys of parts are whatever the caller tells apart: load buckets, tasks."""

    __slots__ = ("_down", "_uncertainty", "_up", "base", "changes", "parts", "spread")

    def __init__(self) -> None:
        self.base = Cell(_BASE_PRIOR)
        self.parts: dict[Hashable, Cell] = {}
        self.spread = FIRST_SPREAD
        """Standard deviation of one request's error."""
        self.changes = 0
        """How often the curve was found to have changed."""
        self._up = self._down = 0.0
        self._uncertainty: float | None = None
        """Kept until more is learned or forgotten, for every decision asks for it."""

    def log(self, first: Hashable, second: Hashable = None) -> float:
        """The correction's logarithm."""
        value = self.base.value
        if (cell := self.parts.get(first)) is not None:
            value += cell.value
        if second is not None and (cell := self.parts.get(second)) is not None:
            value += cell.value
        return value

    @property
    def seen(self) -> float:
        """Observations, our own and other replicas', as far as they still count."""
        return self.base.weight + self.base.foreign_weight

    @property
    def uncertainty(self) -> float:
        """Standard error of the correction, from the profile's own and that of the observations: 0.1 is 10 %."""
        known = self._uncertainty
        if known is None:
            seen = self.seen / max(self.spread, LEAST_SPREAD) ** 2
            known = self._uncertainty = 1.0 / math.sqrt(1.0 / COLD**2 + seen)
        return known

    def doubt(self, key: Hashable) -> float:
        """What one part alone may be off by: `UNSEEN` until it has been seen, soon nothing."""
        cell = self.parts.get(key)
        return UNSEEN / (1.0 + (cell.weight + cell.foreign_weight if cell is not None else 0.0))

    def learn(self, ratio: float, keys: Iterable[Hashable], weight: float) -> bool:
        """Takes one ratio of measured over expected, corrections included; returns whether the past was forgotten."""
        if not 0.0 < ratio < math.inf or weight <= 0.0:
            return False
        self._uncertainty = None
        cells = [self._part(key) for key in keys]
        changed = self._watch(math.log(ratio), weight)
        spread = self.spread
        limit = _CLIP * (spread if spread > LEAST_SPREAD else LEAST_SPREAD)
        error = ratio - 1.0
        error = limit if error > limit else -limit if error < -limit else error
        self.base.add(self.base.value + error, weight)
        for cell in cells:
            cell.add(cell.value + error, weight)
        share = 0.05 * weight
        self.spread = math.sqrt((1.0 - share) * spread**2 + share * error**2)
        return changed

    def forget(self, weight: float = 1.0) -> None:
        """Lets the past of the whole curve count as `weight` observations, and its differences not at all."""
        self.base.shrink(weight)
        self.parts.clear()
        self.spread = FIRST_SPREAD
        self._up = self._down = 0.0
        self._uncertainty = None

    def fade(self, factor: float) -> None:
        self._uncertainty = None
        self.base.fade(factor)
        for cell in self.parts.values():
            cell.fade(factor)

    def _watch(self, error: float, weight: float) -> bool:
        z = error / (self.spread if self.spread > LEAST_SPREAD else LEAST_SPREAD)
        z = weight * (4.0 if z > 4.0 else -4.0 if z < -4.0 else z)
        up, down = self._up + z - SLACK * weight, self._down - z - SLACK * weight
        self._up = up = up if up > 0.0 else 0.0
        self._down = down = down if down > 0.0 else 0.0
        if up < ALARM and down < ALARM:
            return False
        self.changes += 1
        self.forget()
        return True

    def _part(self, key: Hashable) -> Cell:
        cell = self.parts.get(key)
        if cell is None:
            cell = Cell(_PART_PRIOR)
            if len(self.parts) < _MOST_PARTS:
                self.parts[key] = cell
        return cell

    def dump(self) -> list[list[object]]:
        """Our own observations, for other replicas and for a restart: rows of key, weight, sum."""
        rows: list[list[object]] = [["", self.base.weight, self.base.sum]]
        rows += [[key, cell.weight, cell.sum] for key, cell in self.parts.items()]
        return rows

    def hear(self, rows: dict[Hashable, tuple[float, float]]) -> None:
        """The other replicas' observations, added up by key."""
        self._uncertainty = None
        self.base.hear(*rows.get("", (0.0, 0.0)))
        for key, (weight, total) in rows.items():
            if key != "":
                self._part(key).hear(weight, total)

    def resume(self, rows: dict[Hashable, tuple[float, float]]) -> None:
        """Our own observations from before a restart, beside those since."""
        self._uncertainty = None
        for key, (weight, total) in rows.items():
            (self.base if key == "" else self._part(key)).resume(weight, total)
