"""A row holds all that a decision needs again, and nothing that was written."""

from __future__ import annotations

from dataclasses import fields, replace

import orjson
import pytest

from gateway.decisions.row import NAMES, TEXTS, as_row, keep, read_row
from gateway.types import (
    Api,
    Features,
    Need,
    Outcome,
    Place,
    Result,
    Structure,
    Task,
    ToolChoice,
)
from tests.decisions.past import TEXT, outcomes, policy

FULL = Features(
    api=Api.COMPLETIONS, model="m", stream=True, input_tokens=7, language="ja", cap=5, explicit_cap=True,
    token_limit=6, structure_tokens=3, floor=1, stop_line=True, scoring=True, n=2, structure=Structure.CHOICE,
    legacy_guided=True, labels=4, tools=1, tool_choice=ToolChoice.NAMED, thinking=True, thinking_budget=8, turns=3,
    prefill=True, after_tool=True, wish=11, wish_firm=True, detail=1, step_by_step=True, few_shot=12, few_shots=2,
    last_answer=13, ask_tokens=14, place=Place.END, hint_task=Task.MATH, hint_tokens=15, profile=(1, 2, 3),
    code_share=0.25, modalities=frozenset({"text", "image"}), needs=frozenset({Need.MIN_P, Need.LOGPROBS}),
    task_scores=((Task.CODE, 0.5), (Task.MATH, 0.25)), instruction=TEXT, system_text=TEXT, user_head=TEXT,
    user_tail=TEXT, user_chars=16, tool_fields=2, groups=(1, 2, 3, 4, 5), system_key=2**64 - 1, template_key=1,
    head_key=2, tail_key=3, form_key=4, shape_key=5, thread_key=6,
)  # fmt: skip


def test_the_example_sets_every_feature() -> None:
    """A feature that is added must travel in rows too, and this is what notices it."""
    usual = Features(api=Api.CHAT, model="")

    assert [f.name for f in fields(Features) if getattr(FULL, f.name) == getattr(usual, f.name)] == []


def test_a_row_gives_the_request_back_without_its_text() -> None:
    """Numbers and hashes survive JSON; the four texts do not even go in."""
    outcome = replace(outcomes(policy(), [100])[0], features=FULL, key="alpha")

    line = orjson.dumps(as_row(keep(outcome, -0.25, at=1000.0)))
    back = read_row(orjson.loads(line))

    assert TEXT.encode() not in line
    assert back.features == replace(FULL, instruction="", system_text="", user_head="", user_tail="")
    assert back.decision is not None
    assert outcome.decision is not None
    assert [cost.pool for cost in back.decision.costs] == ["plain", "mtp"]
    assert (back.decision.pool, back.decision.reason, back.decision.order) == (
        outcome.decision.pool,
        outcome.decision.reason,
        outcome.decision.order,
    )
    assert (back.usage, back.key, back.result) == (outcome.usage, "alpha", Result.OK)
    assert back.ended - back.started == pytest.approx(outcome.ended - outcome.started, abs=1e-5)
    assert back.first_byte is not None
    assert back.sent_upstream is not None
    assert back.first_byte > back.sent_upstream


def test_what_is_kept_holds_no_text() -> None:
    """The memory of the last thousand requests is no copy of what people wrote."""
    kept = keep(outcomes(policy(), [100])[0], None, at=0.0)

    assert TEXT not in repr(kept)
    assert not TEXTS & set(NAMES)


def test_a_refused_request_has_a_row_too() -> None:
    """One row per finished request, whatever its end."""
    outcome = Outcome(request_id="x", result=Result.REJECTED, status=429, started=1.0, ended=1.5, error="rate_limit")

    row = as_row(keep(outcome, None, at=10.0))

    assert (row["decision"], row["features"], row["pools"]) == (None, None, [])
    assert row["outcome"]["error"] == "rate_limit"
    assert read_row(orjson.loads(orjson.dumps(row))).decision is None


@pytest.mark.parametrize("line", [b"{}", b'{"at": 1, "outcome": {}}', b'{"at": "x", "outcome": {"seconds": 1}}'])
def test_what_is_no_row_is_a_value_error(line: bytes) -> None:
    """A file from elsewhere is told apart, not guessed at."""
    with pytest.raises(ValueError, match=r"."):
        read_row(orjson.loads(line))
