"""Where one pool starts to beat another, in numbers and in words: for `/gateway/pools`, the status page and advice.

Two crossovers matter between a plain and a drafting pool of one model: the answer length from which drafting pays at a
load, and the load up to (or, on a mixture of experts, from) which it pays at a length. Both are read off the curves as
they are now, own time only, both pools equally loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Crossover:
    """When drafting pays for one task, at each of `LOADS`."""

    task: Task
    lengths: tuple[int | None, ...]
    """Fewest output tokens with which the drafting pool is faster; None where no answer is long enough."""
    gains: tuple[float, ...]
    """Time saved on a long answer, as a share of the plain pool's; below 0 drafting loses."""

    @property
    def pays(self) -> tuple[int, ...]:
        """Loads at which it pays for long answers."""
        return tuple(load for load, gain in zip(LOADS, self.gains, strict=True) if gain > LEAST_GAIN)


def crossover(plain: Curve, drafting: Curve, task: Task) -> Crossover:
    """Compares two pools of one model."""
    lengths, gains = [], []
    for load in LOADS:
        lengths.append(next((n for n in LENGTHS if _gain(plain, drafting, task, n, load) > LEAST_GAIN), None))
        gains.append(_gain(plain, drafting, task, LONG, load))
    return Crossover(task, tuple(lengths), tuple(gains))


def in_words(found: Crossover, load: float) -> str:
    """One sentence for the load of now: "MTP pays for 11 output tokens and more beside 3 others; not beside 63"."""
    at = max(i for i, value in enumerate(LOADS) if value <= max(load, 0))
    length, pays = found.lengths[at], found.pays
    beside = f"beside {LOADS[at]} other{'s' if LOADS[at] != 1 else ''}" if LOADS[at] else "on an idle endpoint"
    what = "does not pay" if length is None else f"pays for {length} output tokens and more"
    now = f"MTP {what} {beside}"
    if not pays:
        return f"{now}; nor at any load"
    later = next((load for load in LOADS if load > pays[-1]), None)
    parts = [now]
    if pays[0] > LOADS[at]:
        parts.append(f"it does from {pays[0]} on")
    if later is not None:
        parts.append(f"not beside {later}")
    return "; ".join(parts)


def describe(curves: Sequence[Curve], load: float = 0.0) -> dict[str, Any]:
    """One model's pools: each curve as numbers, and every plain and drafting pair's crossovers.

    `load` is the number of other requests per endpoint now.
    """
    plain = [curve for curve in curves if not curve.k]
    drafting = [curve for curve in curves if curve.k]
    return {
        "curves": [_curve(curve) for curve in curves],
        "crossovers": [
            {
                "plain": first.pool,
                "mtp": second.pool,
                "task": task.value,
                "loads": list(LOADS),
                "fewest_output_tokens": list(found.lengths),
                "gain_on_long_answers": [round(gain, 4) for gain in found.gains],
                "summary": f"{task.value}: {in_words(found, load)}",
            }
            for first in plain
            for second in drafting
            for task in SHOWN
            for found in (crossover(first, second, task),)
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


def _gain(plain: Curve, drafting: Curve, task: Task, tokens: float, load: float) -> float:
    slow = plain.seconds(tokens, task, PROMPT, load)
    return 1.0 - drafting.seconds(tokens, task, PROMPT, load) / slow
