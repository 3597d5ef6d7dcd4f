"""Curves and crossovers as numbers and words."""

from __future__ import annotations

import json

import pytest

from gateway.routing.crossovers import LEAST_GAIN, LOADS, LONG, PROMPT, Crossover, crossover, in_words
from gateway.routing.curve import Curve
from gateway.types import Task
from tests.routing.worlds import Bench, policy


def found(model: str, architecture: str, task: Task) -> Crossover:
    bench = Bench(policy(model=model, architecture=architecture, profile="h200"))
    plain, mtp = (bench.state.curves.get(pool, model) for pool in ("plain", "mtp"))
    assert plain is not None
    assert mtp is not None
    return crossover(plain, mtp, task)


def test_dense_prose_pays_up_to_a_load_and_a_mixture_of_experts_from_one_on() -> None:
    """The measured crossovers of both kinds of model, from their profiles."""
    dense, moe = found("gemma-4-e4b", "dense", Task.CHAT), found("gemma-4-26b", "moe", Task.CHAT)

    assert dense.pays[0] == 0
    assert dense.pays[-1] == 127
    assert moe.pays == (15, 31, 63, 127, 255)
    assert moe.lengths[0] is None


def test_code_pays_earlier_than_prose() -> None:
    """Better drafts need fewer tokens to pay."""
    prose, code = (found("gemma-4-e4b", "dense", task).lengths[2] for task in (Task.CHAT, Task.CODE))

    assert prose is not None
    assert code is not None
    assert code < prose


@pytest.mark.parametrize(
    ("gains", "load", "now", "edges", "expected"),
    [
        (
            [0.2] * 6 + [-0.1] * 3,
            3.4,
            12,
            (0, 48),
            "MTP pays for more than 11 output tokens at load 3; not above 48 running",
        ),
        ([-0.1] * 9, 0, None, (0, None), "MTP does not pay at load 0, nor at any"),
        ([-0.1] * 9, 7, 6, (0, None), "MTP pays for more than 5 output tokens at load 7; not for long answers"),
        ([-0.1] * 4 + [0.2] * 5, 1, None, (10, None), "MTP does not pay at load 1; not below 10 running"),
    ],
)
def test_words(
    gains: list[float], load: float, now: int | None, edges: tuple[int, int | None], expected: str
) -> None:  # fmt: skip
    """One sentence that an operator can act on."""
    below, above = edges
    row = Crossover(Task.CHAT, (None,) * 9, tuple(gains), load, now, above=above, below=below)

    assert in_words(row) == expected


def test_the_edges_are_exact() -> None:
    """One token less, or one more request beside it, and drafting pays no longer."""
    bench = Bench(policy(profile="h200"))
    plain, mtp = (bench.state.curves.get(pool, "gemma-4-e4b") for pool in ("plain", "mtp"))
    assert plain is not None
    assert mtp is not None
    found = crossover(plain, mtp, Task.CHAT, 3.0)
    assert found.now is not None
    assert found.above is not None

    def pays(tokens: int, load: float) -> bool:
        def seconds(curve: Curve) -> float:
            return curve.first_seconds(PROMPT, load) + curve.decode_seconds(tokens, Task.CHAT, load)

        return seconds(mtp) < (1.0 - LEAST_GAIN) * seconds(plain)

    assert pays(found.now, 3.0)
    assert not pays(found.now - 1, 3.0)
    assert pays(LONG, found.above)
    assert not pays(LONG, found.above + 1)


def test_a_crossover_is_that_of_its_load_whatever_runs_usually() -> None:
    """What pays beside 63 others is asked for 63 others all the while, not for the load that a quiet pool falls back
    to."""
    quiet, usual = Bench(policy(profile="h200")), Bench(policy(profile="h200"))
    for curve in quiet.state.curves:
        curve.mix.residence, curve.mix.others = 0.1, 0.0

    def gains(bench: Bench) -> list[float]:
        described = bench.router.describe(bench.loads)["gemma-4-e4b"]
        return [gain for row in described["crossovers"] for gain in row["gain_on_long_answers"]]

    assert gains(quiet) == gains(usual)


def test_the_description_is_json_and_covers_every_pool_and_pair() -> None:
    """What the operator's page and advice read."""
    bench = Bench(policy())
    described = bench.router.describe(bench.loads)["gemma-4-e4b"]

    assert json.loads(json.dumps(described)) == described
    assert [curve["pool"] for curve in described["curves"]] == ["plain", "mtp"]
    assert {row["task"] for row in described["crossovers"]} == {"chat", "code", "structured_json"}
    assert all(len(row["fewest_output_tokens"]) == len(LOADS) for row in described["crossovers"])
