"""The simulated `/v1/decisions`: vLLM's form, an engine's cost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.helpers import sim

ASK: dict[str, Any] = {
    "model": "e4b",
    "input": "The soup was cold.",
    "questions": [
        {"type": "choice", "instructions": "Mood?", "choices": [{"value": "good"}, {"value": "bad"}], "name": "mood"},
        {"type": "predicate", "instructions": "Is it about food?"},
        {"type": "score", "instructions": "How warm?", "levels": [{"label": "cold"}, {"label": "hot"}]},
    ],
}


async def test_each_question_is_answered_in_order_and_by_one_token() -> None:
    """Shares sum to one, the choice is an option, and the engine counts a token a question."""
    async with sim() as server:
        answer = await server.post("/v1/decisions", ASK)

    mood, food, warm = answer.json()["answers"]
    assert mood["choice"] in ("good", "bad")
    assert (mood["name"], mood["type"], food["name"], warm["type"]) == ("mood", "choice", None, "score")
    assert sum(row["probability"] for row in mood["probabilities"]) == pytest.approx(1)
    assert 0 <= food["probability"] <= 1
    assert 0 <= warm["score"] <= 1
    used = answer.json()["usage"]
    assert used["output_tokens"] == 3
    assert used["total_tokens"] == used["input_tokens"] + 3


async def test_it_costs_a_prefill_and_a_step() -> None:
    """The engine's own counters see it, as a request of the model."""
    async with sim() as server:
        await server.post("/v1/decisions", {**ASK, "questions": ASK["questions"][:1]})
        stats = await server.stats()

    assert stats["finished"]["length"] + stats["finished"]["stop"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"questions": []},
        {"questions": [{"type": "choice", "instructions": "", "choices": [{"value": "a"}]}]},
        {"questions": [{"type": "choice", "instructions": "", "choices": [{"value": "a"}, {"value": "a"}]}]},
        {"questions": [{"type": "choice", "instructions": "", "choices": [{"value": str(i)} for i in range(27)]}]},
        {"questions": [{"type": "choice", "choices": [{"value": "a"}, {"value": "b"}]}]},
        {"questions": [{"type": "else", "instructions": ""}]},
        {"input": [{"role": "assistant", "content": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        {"temperature": 0},
    ],
)
async def test_what_the_api_does_not_take_is_a_400(wrong: dict[str, Any]) -> None:
    """Extra fields are forbidden there, options are two to 26, input is the user's text."""
    async with sim() as server:
        answer = await server.post("/v1/decisions", {**ASK, **wrong})

    assert answer.status_code == 400, answer.text


async def test_an_unknown_model_is_a_404_and_faults_strike_here_too() -> None:
    """As on every other route of the engine."""
    async with sim() as server:
        unknown = await server.post("/v1/decisions", {**ASK, "model": "nope"})
        await server.faults(status=503)
        broken = await server.post("/v1/decisions", ASK)

    assert (unknown.status_code, broken.status_code) == (404, 503)
