"""Where one pool starts to beat another, in numbers and in words: for `/gateway/pools` and `gateway advise`.

Two crossovers matter between a plain and a drafting pool of one model: the answer length from which drafting pays at a
load, and the load up to (or, on a mixture of experts, from) which it pays for long answers. Both are read off the
curves as they are now: own time only, both pools equally loaded, and loaded so for as long as the answer takes.

Beside n others an answer of N tokens takes first(n) + steps(N) * step(n). So a curve is read once for each load and
task, however many lengths and pools it is compared at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.routing.curve import Curve
from gateway.types import Task

LOADS = (0, 1, 3, 7, 15, 31, 63, 127, 255)
"""Other requests running per endpoint."""
LENGTHS = (2, 4, 6, 8, 11, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
LONG = 512
PROMPT = 256.0
LEAST_GAIN = 0.01
"""Shares of time below which nothing is said to pay."""
SHOWN = (Task.CHAT, Task.CODE, Task.STRUCTURED_JSON)
"""One task per class of acceptance."""


class _Times(NamedTuple):
    """A curve at one load and task."""

    curve: Curve
    task: Task
    first: float
    step: float

    def seconds(self, tokens: int) -> float:
        return self.first + (self.curve.steps(tokens - 1.0, self.task) * self.step if tokens > 1 else 0.0)


def _times(curve: Curve, task: Task, load: float) -> _Times:
    steps = curve.steps(LONG - 1.0, task)
    return _Times(curve, task, curve.first_seconds(PROMPT, load), curve.decode_seconds(LONG, task, load) / steps)


def _gain(plain: _Times, drafting: _Times, tokens: int) -> float:
    """Share of the plain pool's time that drafting saves."""
    return 1.0 - drafting.seconds(tokens) / plain.seconds(tokens)


@dataclass(frozen=True, slots=True)
class Crossover:
    """When drafting pays for one task, at each of `LOADS` and now."""

    task: Task
    lengths: tuple[int | None, ...]
    """Fewest output tokens with which the drafting pool is faster; None where no answer is long enough."""
    gains: tuple[float, ...]
    """Time saved on a long answer, as a share of the plain pool's; below 0 drafting loses."""
    load: float = 0.0
    """Others per endpoint now."""
    now: int | None = None
    """Fewest output tokens at that load."""
    above: int | None = None
    """Largest load at which it pays for long answers; None where it pays at all that are looked at, or at none."""
    below: int = 0
    """And the smallest."""

    @property
    def pays(self) -> tuple[int, ...]:
        """Loads of `LOADS` at which it pays for long answers."""
        return tuple(load for load, gain in zip(LOADS, self.gains, strict=True) if gain > LEAST_GAIN)


def crossover(plain: Curve, drafting: Curve, task: Task, load: float = 0.0) -> Crossover:
    """Compares two pools of one model; `load` is what runs beside a request now, per endpoint."""
    lengths, gains = [], []
    for at in LOADS:
        one, other = _times(plain, task, at), _times(drafting, task, at)
        lengths.append(next((n for n in LENGTHS if _gain(one, other, n) > LEAST_GAIN), None))
        gains.append(_gain(one, other, LONG))

    def pays_at(load: int) -> bool:
        return _gain(_times(plain, task, load), _times(drafting, task, load), LONG) > LEAST_GAIN

    paying = [at for at, gain in enumerate(gains) if gain > LEAST_GAIN]
    below, above = 0, None
    if paying:
        if paying[0]:
            below = _edge(pays_at, LOADS[paying[0]], LOADS[paying[0] - 1])
        if paying[-1] + 1 < len(LOADS):
            above = _edge(pays_at, LOADS[paying[-1]], LOADS[paying[-1] + 1])
    return Crossover(
        task, tuple(lengths), tuple(gains), load, _fewest(plain, drafting, task, load), above=above, below=below
    )


def _fewest(plain: Curve, drafting: Curve, task: Task, load: float) -> int | None:
    """Exactly how many output tokens it takes at one load, within `LENGTHS`."""
    one, other = _times(plain, task, load), _times(drafting, task, load)
    at = next((i for i, n in enumerate(LENGTHS) if _gain(one, other, n) > LEAST_GAIN), None)
    if not at:
        return LENGTHS[0] if at is not None else None
    return _edge(lambda n: _gain(one, other, n) > LEAST_GAIN, LENGTHS[at], LENGTHS[at - 1])


def _edge(holds: Callable[[int], bool], inside: int, outside: int) -> int:
    """The number next to `outside` for which it still holds, between one for which it does and one for which not."""
    while abs(inside - outside) > 1:
        middle = (inside + outside) // 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


def in_words(found: Crossover) -> str:
    """One sentence: "MTP pays for more than 11 output tokens at load 3; not above 48 running"."""
    at = f"at load {found.load:.0f}"
    now = (
        f"MTP does not pay {at}" if found.now is None else f"MTP pays for more than {found.now - 1} output tokens {at}"
    )
    if not found.pays:
        return f"{now}, nor at any" if found.now is None else f"{now}; not for long answers"
    parts = [now]
    if found.below:
        parts.append(f"not below {found.below} running")
    if found.above is not None:
        parts.append(f"not above {found.above} running")
    return "; ".join(parts)


def describe(curves: Sequence[Curve], load: float = 0.0) -> dict[str, Any]:
    """One model's pools: each curve as numbers, and every plain and drafting pair's crossovers.

    `load` is the number of other requests per endpoint now.
    """
    plain = [curve for curve in curves if not curve.k]
    drafting = [curve for curve in curves if curve.k]
    return {
        "load": round(load, 1),
        "curves": [_curve(curve) for curve in curves],
        "crossovers": [
            {
                "plain": first.pool,
                "mtp": second.pool,
                "task": task.value,
                "loads": list(LOADS),
                "fewest_output_tokens": list(found.lengths),
                "gain_on_long_answers": [round(gain, 4) for gain in found.gains],
                "fewest_output_tokens_now": found.now,
                "pays_from_running": found.below if found.pays else None,
                "pays_to_running": found.above,
                "summary": f"{task.value}: {in_words(found)}",
            }
            for first in plain
            for second in drafting
            for task in SHOWN
            for found in (crossover(first, second, task, load),)
        ],
    }


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "pool": curve.pool,
        "model": curve.model,
        "draft_tokens": curve.k,
        "profile": curve.profile.name,
        "loads": list(LOADS),
        "ttft_seconds": [round(curve.first_seconds(PROMPT, load), 5) for load in LOADS],
        "tpot_seconds": {
            task.value: [round(curve.decode_seconds(LONG, task, load) / (LONG - 1), 6) for load in LOADS]
            for task in SHOWN
        },
        "acceptance_length": {task.value: round(curve.acceptance(task), 3) for task in SHOWN},
        "uncertainty": round(curve.uncertainty, 4),
        "observations": round(curve.tpot.base.weight, 1),
        "changes_noticed": curve.tpot.changes,
    }
