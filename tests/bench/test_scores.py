"""Scores of predicted against actual lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench.scores import Judged, accuracy, coverage, kendall_tau, misses, regret
from gateway.profiles import get_profile
from gateway.types import Api, Estimate, Features, Task


def judged(predicted: float, actual: int, *, p90: float = 1e9, task: Task = Task.CHAT, chars: int = 50) -> Judged:
    features = Features(api=Api.CHAT, model="m", input_tokens=100, user_chars=chars, language="en")
    estimate = Estimate(task=task, output_tokens=predicted, p50=predicted, p90=p90, confidence=0.5, source="prior")
    return Judged(0, features, estimate, actual, task)


def slow_tau(x: list[int], y: list[int]) -> float | None:
    """Tau-b by its definition, over all pairs."""
    n = len(x)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    score = sum(((x[i] > x[j]) - (x[i] < x[j])) * ((y[i] > y[j]) - (y[i] < y[j])) for i, j in pairs)
    free_x, free_y = (sum(v[i] != v[j] for i, j in pairs) for v in (x, y))
    return score / (free_x * free_y) ** 0.5 if free_x and free_y else None


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40))
def test_tau_is_that_of_all_pairs(points: list[tuple[int, int]]) -> None:
    """The fast tau equals the definition, ties included."""
    x, y = [p[0] for p in points], [p[1] for p in points]
    expected = slow_tau(x, y)

    assert kendall_tau(x, y) == (None if expected is None else pytest.approx(expected))


def test_accuracy_counts_sides_of_the_threshold() -> None:
    """A prediction is right where it is on the actual length's side, the threshold itself being short."""
    rows = [judged(64, 10), judged(65, 10), judged(200, 65), judged(3, 900)]

    assert accuracy(rows, 64) == 0.5


def test_coverage_is_by_actual_task() -> None:
    """An answer as long as the p90 is covered."""
    rows = [judged(5, 9, p90=9), judged(5, 10, p90=9), judged(5, 1, p90=9, task=Task.CODE)]

    assert coverage(rows) == {"chat": 0.5, "code": 1.0}


def test_knowing_the_length_loses_nothing() -> None:
    """A perfect estimate has no regret; one that is always long loses all that knowing short ones gains."""
    profiles = [get_profile("h200", "e4b"), get_profile("h200", "26b-a4b")]
    lengths = [1, 2, 3, 400, 800] * 4
    perfect = [judged(n, n) for n in lengths]
    blind = [judged(500, n) for n in lengths]

    assert regret(perfect, profiles, know_task=True) == pytest.approx(0.0, abs=1e-9)
    assert regret(blind, profiles, know_task=True) > 0.2
    assert regret(blind, profiles, know_task=True, lengths=[(n,) for n in lengths]) == pytest.approx(0.0, abs=1e-9)
    half = regret(blind, profiles, know_task=True, lengths=[(n, 500.0) for n in lengths])
    assert half == pytest.approx(regret(blind, profiles, know_task=True) / 2)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (judged(60, 70), "within a factor of two, across the line"),
        (judged(5, 900), "short prompt, long answer"),
        (judged(500, 3, chars=9000), "long document, short answer"),
        (judged(500, 3), "open question, short answer"),
    ],
)
def test_misses_have_a_kind(row: Judged, kind: str) -> None:
    """Each wrong side of the threshold is counted under the kind that describes it."""
    assert misses([row, judged(10, 10)]) == {kind: 1}
