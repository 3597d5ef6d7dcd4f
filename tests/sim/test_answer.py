"""What the simulated model answers: task, length, language, form."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.sim.answer import Answer, plan
from gateway.sim.reading import language_of
from gateway.sim.request import Limits, Request, parse
from gateway.sim.tokens import Vocabulary, pieces
from gateway.types import Task

LIMITS = Limits(names=("m",), max_model_len=16384, drafting=False)


def request(text: str, **fields: Any) -> Request:
    return parse({"messages": [{"role": "user", "content": text}], **fields}, chat=True, limits=LIMITS)


def answer(text: str, choice: int = 0, seed: int = 0, **fields: Any) -> Answer:
    asked = request(text, **fields)
    prompt = asked.prompts[0]
    assert isinstance(prompt, str)
    return plan(asked, prompt, choice, server_seed=seed, room=16000)


@pytest.mark.parametrize(
    ("text", "task", "low", "high"),
    [
        ("Classify the sentiment of: what a lovely day", Task.CLASSIFICATION, 1, 4),
        ("次の文の感情を分類してください: とても楽しかった", Task.CLASSIFICATION, 1, 4),
        ("Which is a fruit?\nA) apple\nB) brick\nAnswer with one letter.", Task.MULTIPLE_CHOICE, 2, 2),
        ("Write a Python function that sorts a list.", Task.CODE, 60, 2000),
        ("Explain in detail how rivers shape valleys.", Task.LONG_FORM, 150, 3000),
        ("火山がどうして噴火するのか詳しく説明してください。", Task.LONG_FORM, 150, 3000),
        ("Translate into Japanese: the shop is closed.", Task.TRANSLATION, 15, 200),
        ("What is the capital of Kenya?", Task.SHORT_QA, 2, 120),
    ],
)
def test_the_task_decides_the_length(text: str, task: Task, low: int, high: int) -> None:
    """Labels are short, essays are long, in any language."""
    for seed in range(5):
        made = answer(text, seed=seed)

        assert made.task is task
        assert low <= len(made.tokens) <= high
        assert made.finish == "stop"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Explain rain", "en"),
        ("雨の仕組みを説明して", "ja"),
        ("请详细解释雨的成因", "zh"),
        ("비가 오는 이유를 설명해 줘", "ko"),
        ("Explain rain in Japanese", "ja"),
        ("雨について英語で説明して", "en"),
    ],
)
def test_the_answer_is_in_the_language_asked(text: str, language: str) -> None:
    """By script, unless the request names another language."""
    assert language_of(text) == language
    assert language_of(answer(text).text()) == language


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("Write about rain in 200 words.", 200, 300),
        ("雨について200字程度で書いて", 90, 160),
        ("Rain in 3 sentences", 40, 60),
    ],
)
def test_an_explicit_length_is_kept_roughly(text: str, low: int, high: int) -> None:
    """Numbers of words, characters and sentences count."""
    assert low <= len(answer(text).tokens) <= high


def test_a_cap_ends_the_answer_with_length() -> None:
    """`max_tokens` cuts, and the finish reason says so."""
    made = answer("Explain in detail how rivers flow.", max_tokens=20)

    assert (len(made.tokens), made.finish) == (20, "length")


def test_ignore_eos_and_min_tokens_write_on() -> None:
    """The cap becomes the exact length, a floor is kept."""
    assert len(answer("Classify: good", ignore_eos=True, max_tokens=100).tokens) == 100
    assert len(answer("Classify: good", min_tokens=30).tokens) == 30


def test_the_client_can_force_task_and_length() -> None:
    """`vllm_xargs` sets both exactly, for calibrated load."""
    made = answer("Hello", vllm_xargs={"sim_output_tokens": 77, "sim_task": "code"})

    assert (made.task, len(made.tokens), made.finish) == (Task.CODE, 77, "stop")


def test_a_choice_list_is_answered_with_one_of_it() -> None:
    """`structured_outputs.choice` gives one label and nothing else."""
    made = answer("Explain at length", structured_outputs={"choice": ["alpha", "beta"]})

    assert made.text() in ("alpha", "beta")
    assert made.task is Task.CLASSIFICATION


def test_removed_guided_fields_constrain_nothing() -> None:
    """vLLM ignores `guided_choice` silently, and so does this."""
    assert answer("Explain in detail", guided_choice=["alpha"]).text() != "alpha"


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "kind": {"enum": ["a", "b"]},
        "count": {"type": "integer", "minimum": 3, "maximum": 5},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "inner": {"$ref": "#/$defs/inner"},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "self": {"$ref": "#"},
    },
    "required": ["name", "kind"],
    "$defs": {"inner": {"type": "object", "properties": {"ok": {"type": "boolean"}}}},
}


@pytest.mark.parametrize("text", ["Give me data", "データをください"])
def test_a_schema_is_answered_with_an_instance(text: str) -> None:
    """Types, enums, bounds, references and recursion: valid JSON of the schema's form."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    value = json.loads(answer(text, response_format=wanted).text())

    assert len(value["name"]) <= 4
    assert value["kind"] in ("a", "b")
    assert 3 <= value["count"] <= 5
    assert len(value["tags"]) >= 2
    assert isinstance(value["inner"]["ok"], bool)
    assert isinstance(value["maybe"], float)


def test_json_object_mode_gives_an_object() -> None:
    """Any object will do."""
    assert isinstance(json.loads(answer("x", response_format={"type": "json_object"}).text()), dict)


@pytest.mark.parametrize(("pattern", "possible"), [("(yes|no)", {"yes", "no"}), ("はい|いいえ", {"はい", "いいえ"})])
def test_simple_patterns_are_kept(pattern: str, possible: set[str]) -> None:
    """Alternatives of words; the rest of regular expressions is not played."""
    assert answer("x", structured_outputs={"regex": pattern}).text() in possible


def test_a_pattern_of_digits_is_kept() -> None:
    """`[0-9]{4}` gives four digits."""
    text = answer("x", structured_outputs={"regex": "[0-9]{4}"}).text()

    assert len(text) == 4
    assert text.isdigit()


def test_auto_tools_are_called_when_the_text_names_them() -> None:
    """A weather question calls `get_weather`; a greeting does not; after a tool's result there is prose."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]

    assert answer("What is the weather in Oslo", tools=tools).finish == "tool_calls"
    assert answer("Good morning", tools=tools).finish == "stop"
    asked = parse(
        {
            "messages": [{"role": "user", "content": "weather please"}, {"role": "tool", "content": "sunny"}],
            "tools": tools,
        },
        chat=True,
        limits=LIMITS,
    )
    assert plan(asked, "", 0, server_seed=0, room=1000).finish == "stop"


def test_a_stop_string_ends_the_answer_before_it() -> None:
    """Text after the stop, and the stop itself, is gone; the reason names it; with the switch it stays."""
    full = answer("Explain rain in detail").text()
    stop = full[40:46]
    cut = answer("Explain rain in detail", stop=[stop, "never there"])
    kept = answer("Explain rain in detail", stop=stop, include_stop_str_in_output=True)

    at = full.index(stop)
    assert (cut.text(), cut.finish, cut.stop_reason) == (full[:at], "stop", stop)
    assert kept.text() == full[: at + len(stop)]


def test_a_stop_string_waits_for_min_tokens() -> None:
    """Before the floor a stop string does not stop."""
    first = answer("Explain rain in detail").tokens[0]
    made = answer("Explain rain in detail", stop=[first], min_tokens=10)

    assert len(made.tokens) >= 10


def test_thinking_comes_first_and_keeps_its_budget() -> None:
    """Reasoning precedes content; off by default; the budget bounds it."""
    made = answer("Explain rain", chat_template_kwargs={"enable_thinking": True})

    assert [segment.kind for segment in made.segments] == ["reasoning", "content"]
    assert [segment.kind for segment in answer("Explain rain").segments] == ["content"]
    off = answer("Explain rain", reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
    assert [segment.kind for segment in off.segments] == ["content"]
    short = answer("Explain rain", reasoning_effort="high", thinking_token_budget=10)
    assert short.segments[0].end <= 40


def test_code_looks_like_code() -> None:
    """A fenced block, whose whole functions parse."""
    text = answer("Write a Python class").text()
    body = text.removeprefix("```python\n").removesuffix("```")

    assert text.startswith("```python\n")
    assert ast.parse(body).body


def test_the_same_request_has_the_same_answer_and_others_differ() -> None:
    """Delivery changes nothing; seed, choice and server seed do."""
    base = answer("Explain rain").text()

    assert answer("Explain rain", stream=True, temperature=0.3).text() == base
    assert answer("Explain rain", choice=1).text() != base
    assert answer("Explain rain", seed=1).text() != base
    assert answer("Explain rain").text() == base
    asked = request("Explain rain", seed=5)
    assert plan(replace(asked, stream=True), "", 0, server_seed=0, room=99).text() != base


@pytest.mark.parametrize("text", ["Hi, world! 123", "こんにちは、世界。", "한국어 文字\n\n  x", "\ud800 é ß 😀", ""])
def test_pieces_join_to_the_text(text: str) -> None:
    """Tokens lose nothing, and ids lead back to the text."""
    vocabulary = Vocabulary()

    assert "".join(pieces(text)) == text
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_unknown_and_byte_ids_decode_to_something() -> None:
    """Ids below 256 are bytes; one never given out is the replacement character."""
    assert Vocabulary().decode([227, 129, 130, 200_000]) == "あ\ufffd"
