"""Scores of predicted against actual lengths: rank correlation, accuracy, p90 coverage, regret, kinds of misses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.profiles import Profile
from gateway.request.lexicon import BIT
from gateway.request.part import groups_of
from gateway.types import Estimate, Features, Task

RUNNING = (1, 16, 64)
"""Requests already running in each pool, for `regret`."""
DRAFTED = 2


@dataclass(frozen=True, slots=True)
class Judged:
    """One prediction and the actual length."""

    row: int
    features: Features
    estimate: Estimate
    tokens: int
    task: Task


def kendall_tau(predicted: Sequence[float], actual: Sequence[float]) -> float | None:
    """Kendall's tau-b in O(n log n) (Knight 1966); None where either side is constant."""
    n = len(predicted)
    if n < 2:
        return None
    order = sorted(range(n), key=lambda i: (predicted[i], actual[i]))
    pairs = n * (n - 1) // 2
    tied_x = _tied(Counter(predicted).values())
    tied_y = _tied(Counter(actual).values())
    tied_both = _tied(Counter(zip(predicted, actual, strict=True)).values())
    swaps = _inversions([actual[i] for i in order])
    below = math.sqrt((pairs - tied_x) * (pairs - tied_y))
    return (pairs - tied_x - tied_y + tied_both - 2 * swaps) / below if below else None


def _tied(counts: Iterable[int]) -> int:
    return sum(c * (c - 1) // 2 for c in counts)


def _inversions(values: list[float]) -> int:
    """Pairs in the wrong order, by merge sort; ties do not count."""
    total = 0
    width = 1
    while width < len(values):
        merged: list[float] = []
        for start in range(0, len(values), 2 * width):
            left, right = values[start : start + width], values[start + width : start + 2 * width]
            i = j = 0
            while i < len(left) and j < len(right):
                if right[j] < left[i]:
                    total += len(left) - i
                    merged.append(right[j])
                    j += 1
                else:
                    merged.append(left[i])
                    i += 1
            merged += left[i:] + right[j:]
        values = merged
        width *= 2
    return total


def tau(judged: Sequence[Judged]) -> float:
    """Kendall's tau over all rows; 0 if undefined."""
    return kendall_tau([j.estimate.p50 for j in judged], [float(j.tokens) for j in judged]) or 0.0


def tau_within(judged: Sequence[Judged], sources: Sequence[str]) -> float:
    """Mean tau within each source, weighted by rows; sources with a constant length are left out."""
    by_source: dict[str, list[Judged]] = {}
    for j, source in zip(judged, sources, strict=True):
        by_source.setdefault(source, []).append(j)
    total = weight = 0.0
    for rows in by_source.values():
        if len({j.tokens for j in rows}) > 1:
            total += len(rows) * tau(rows)
            weight += len(rows)
    return total / weight if weight else 0.0


def accuracy(judged: Sequence[Judged], threshold: int) -> float:
    """Share of rows whose p50 is on the same side of the threshold as the actual length."""
    return sum((j.estimate.p50 > threshold) == (j.tokens > threshold) for j in judged) / max(1, len(judged))


def coverage(judged: Sequence[Judged]) -> dict[str, float]:
    """Share of rows with an actual length up to the p90, by actual task."""
    by_task: dict[str, list[bool]] = {}
    for j in judged:
        by_task.setdefault(j.task.value, []).append(j.tokens <= j.estimate.p90)
    return {task: sum(rows) / len(rows) for task, rows in sorted(by_task.items())}


def regret(
    judged: Sequence[Judged],
    profiles: Sequence[Profile],
    *,
    know_task: bool,
    lengths: Sequence[Sequence[float]] | None = None,
) -> float:
    """Time lost to prediction errors, as a share of what perfect knowledge saves over the better single pool.

    Model: a plain and a drafting pool (k = 2) with `RUNNING` requests each; a request takes TTFT + tokens x TPOT and
    joins the pool that looks faster for its expected length. With `know_task` the choice uses the labelled task, so
    that only the length's error counts; otherwise acceptance follows the estimated task. `lengths` replaces the
    expected length by several equally likely ones per row.
    """
    lengths = lengths or [(j.estimate.output_tokens,) for j in judged]
    lost = saved = 0.0
    for profile in profiles:
        for running in RUNNING:
            plain_all = drafted_all = best_all = taken_all = 0.0
            for j, expected in zip(judged, lengths, strict=True):
                plain, drafted = (_seconds(profile, j.features, j.task, j.tokens, running, k) for k in (0, DRAFTED))
                task = j.task if know_task else j.estimate.task
                plain_all += plain
                drafted_all += drafted
                best_all += min(plain, drafted)
                for tokens in expected:
                    guess = [_seconds(profile, j.features, task, tokens, running, k) for k in (0, DRAFTED)]
                    taken_all += (plain if guess[0] <= guess[1] else drafted) / len(expected)
            lost += taken_all - best_all
            saved += min(plain_all, drafted_all) - best_all
    return lost / saved if saved > 0 else 0.0


def _seconds(profile: Profile, features: Features, task: Task, tokens: float, running: int, k: int) -> float:
    context = features.input_tokens + tokens / 2
    return profile.ttft(features.input_tokens, running, k) + tokens * profile.tpot(task, running + 1, k, context)


def misses(judged: Sequence[Judged], threshold: int = 64) -> dict[str, int]:
    """Counts predictions on the wrong side of the threshold by kind; the first matching kind counts."""
    found: Counter[str] = Counter()
    for j in judged:
        if (j.estimate.p50 > threshold) != (j.tokens > threshold):
            found[_kind(j, threshold)] += 1
    return dict(found.most_common())


def _kind(j: Judged, threshold: int) -> str:
    ratio = (j.estimate.p50 + 1) / (j.tokens + 1)
    if 0.5 <= ratio <= 2:
        return "within a factor of two, across the line"
    chars, long = j.features.user_chars, j.tokens > threshold
    if j.features.tools:
        return "tools, several calls or a spoken answer" if long else "tools, one short call"
    if long and groups_of(j.features.user_head) & (BIT["classify"] | BIT["choose"]):
        return "label words, long answer"
    if long and chars < 200:
        return "short prompt, long answer"
    if long:
        return "long prompt, long answer"
    if chars > 1000:
        return "long document, short answer"
    if j.features.language != "en":
        return "short answer, not English"
    return "open question, short answer"
