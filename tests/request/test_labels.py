"""Which chat bodies are a pure choice among labels, and what the label is to look like."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.request.labels import read_label_question

ASK = [{"role": "user", "content": "スープは冷めていた。"}]
CHOICE: dict[str, Any] = {"model": "m", "messages": ASK, "structured_outputs": {"choice": ["良い", "悪い"]}}


def schema(inner: object) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": inner}}
    return {"model": "m", "messages": ASK, "response_format": form}


def property_of(value: object, **more: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"label": value}, "required": ["label"], **more}


class TestLabels:
    def test_a_choice_list_is_answered_by_the_label_itself(self) -> None:
        """The content is what decoding under the list would write."""
        question = read_label_question(CHOICE)

        assert question is not None
        assert question.options.labels == ("良い", "悪い")
        assert question.options.content("良い") == "良い"

    @pytest.mark.parametrize(
        ("inner", "label", "content"),
        [
            ({"type": "string", "enum": ["a", "b"]}, "a", '"a"'),
            ({"type": "boolean"}, True, "true"),
            (property_of({"enum": ["良い", "悪い"], "type": "string"}), "悪い", '{"label": "悪い"}'),
            (property_of({"type": "boolean"}, additionalProperties=False), False, '{"label": false}'),
            (
                property_of({"$ref": "#/$defs/Kind"}, **{"$defs": {"Kind": {"enum": ["x", "y"], "type": "string"}}}),
                "y",
                '{"label": "y"}',
            ),
        ],
    )
    def test_a_schema_with_one_value_is_answered_in_its_form(self, inner: object, label: str, content: str) -> None:
        """An enum, a boolean, and an object around one of them; a reference is followed."""
        question = read_label_question(schema(inner))

        assert question is not None
        assert label in question.options.labels
        assert question.options.content(label) == content

    def test_what_the_schema_says_of_the_label_goes_along(self) -> None:
        """A property's description is the question; a prompt alone has none."""
        question = read_label_question(schema(property_of({"enum": ["a", "b"], "description": "Mood?"})))
        plain = read_label_question(CHOICE)

        assert question is not None
        assert plain is not None
        assert (question.options.instructions, plain.options.instructions) == ("Mood?", "")

    @pytest.mark.parametrize(
        "inner",
        [
            {"type": "integer", "enum": [1, 2]},
            {"type": "string"},
            {"enum": ["a", 1]},
            {"enum": ["a", "b"], "pattern": "a"},
            {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}},
            property_of({"enum": ["x", "y"]}, additionalProperties=True),
            property_of({"enum": ["x", "y"]}, minProperties=1),
            property_of({"type": "array", "items": {"enum": ["x", "y"]}}),
            property_of({"$ref": "#/$defs/Gone"}),
            {
                "type": "object",
                "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
                "required": ["a", "b"],
            },
            None,
        ],
    )
    def test_any_other_schema_is_decoded(self, inner: object) -> None:
        """What leaves more open than one label is no pure choice."""
        assert read_label_question(schema(inner)) is None

    @pytest.mark.parametrize("labels", [["one"], ["a", "a"], [], ["a", ""], ["a", 1], [str(i) for i in range(27)]])
    def test_lists_that_cannot_be_asked_are_decoded(self, labels: list[object]) -> None:
        """Two to 26 different texts; the API knows no more."""
        assert read_label_question({**CHOICE, "structured_outputs": {"choice": labels}}) is None


class TestFields:
    @pytest.mark.parametrize(
        "field",
        [
            {"temperature": 0.7},
            {"n": 2},
            {"logprobs": True},
            {"top_logprobs": 3},
            {"stop": ["\n"]},
            {"tools": [{"type": "function"}]},
            {"tool_choice": "required"},
            {"logit_bias": {"5": 1}},
            {"frequency_penalty": 0.5},
            {"min_tokens": 3},
            {"max_tokens": 0},
            {"reasoning_effort": "low"},
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"chat_template_kwargs": {"documents": []}},
            {"stream": "yes"},
            {"stream": False, "stream_options": {"include_usage": True}},
            {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            {"structured_outputs": {"choice": ["a", "b"], "regex": "a"}},
            {"response_format": {"type": "json_object"}},
            {"something_new": 1},
            {"n": True},
        ],
    )
    def test_a_field_that_a_label_cannot_honour_is_decoded(self, field: dict[str, object]) -> None:
        """Nothing that the body says is passed over, unknown fields least of all."""
        assert read_label_question({**CHOICE, **field}) is None

    @pytest.mark.parametrize(
        "field",
        [
            {"temperature": 0},
            {"temperature": 0.0, "top_p": 1, "seed": 3},
            {"n": 1, "logprobs": False, "tools": None, "something_new": None},
            {"max_tokens": 4},
            {"stream": True, "stream_options": {"include_usage": True}},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"response_format": {"type": "text"}},
            {"guided_choice": ["良い", "悪い"]},
            {"user": "u", "metadata": {"a": "b"}},
        ],
    )
    def test_a_field_that_changes_nothing_is_no_obstacle(self, field: dict[str, object]) -> None:
        """Defaults spelled out, and what only names the caller."""
        assert read_label_question({**CHOICE, **field}) is not None

    def test_a_salt_and_the_wish_for_counts_are_kept(self) -> None:
        """They go on to the engine and to the stream."""
        options = {"stream": True, "stream_options": {"include_usage": True}, "cache_salt": "s"}
        question = read_label_question({**CHOICE, **options})

        assert question is not None
        assert (question.include_usage, question.cache_salt) == (True, "s")


class TestMessages:
    def test_system_turns_come_before_the_text(self) -> None:
        """In order, and parts stay apart."""
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": parts}]
        question = read_label_question({**CHOICE, "messages": messages})

        assert question is not None
        assert question.turns == ("Judge.", ("a", "b"))

    @pytest.mark.parametrize(
        "messages",
        [
            [],
            "text",
            [{"role": "system", "content": "Judge."}],
            [*ASK, {"role": "assistant", "content": "良い"}, *ASK],
            [*ASK, *ASK],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
            [{"role": "user", "content": "x", "name": "Ada"}],
            [{"role": "user", "content": None}],
            [{"role": "user", "content": []}],
            ["x"],
        ],
    )
    def test_conversations_and_attachments_are_decoded(self, messages: object) -> None:
        """The API takes user text only; turns of another kind would be told as the user's."""
        assert read_label_question({**CHOICE, "messages": messages}) is None
