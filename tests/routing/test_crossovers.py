"""Curves and crossovers as numbers and words."""

from __future__ import annotations

import json

import pytest

from gateway.routing.crossovers import LOADS, Crossover, crossover, in_words
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
    ("lengths", "gains", "load", "expected"),
    [
        (
            [11] * 9,
            [0.2] * 6 + [-0.1] * 3,
            3.4,
            "MTP pays for 11 output tokens and more beside 3 others; not beside 63",
        ),
        ([None] * 9, [-0.1] * 9, 0, "MTP does not pay on an idle endpoint; nor at any load"),
        ([None] * 4 + [24] * 5, [-0.1] * 4 + [0.2] * 5, 1, "MTP does not pay beside 1 other; it does from 15 on"),
    ],
)
def test_words(lengths: list[int | None], gains: list[float], load: float, expected: str) -> None:
    """One sentence that an operator can act on."""
    assert in_words(Crossover(Task.CHAT, tuple(lengths), tuple(gains)), load) == expected


def test_the_description_is_json_and_covers_every_pool_and_pair() -> None:
    """What the operator's page and advice read."""
    bench = Bench(policy())
    described = bench.router.describe(bench.loads)["gemma-4-e4b"]

    assert json.loads(json.dumps(described)) == described
    assert [curve["pool"] for curve in described["curves"]] == ["plain", "mtp"]
    assert {row["task"] for row in described["crossovers"]} == {"chat", "code", "structured_json"}
    assert all(len(row["fewest_output_tokens"]) == len(LOADS) for row in described["crossovers"])
