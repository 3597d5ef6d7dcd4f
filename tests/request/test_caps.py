"""Bounds that the parameters and structures of a request set."""

from __future__ import annotations

import pytest

from gateway.estimate.rules import estimate_rules
from gateway.types import Need, Structure, ToolChoice
from tests.request.helpers import Message, chat, completion, user


class TestCaps:
    @pytest.mark.parametrize(
        ("params", "cap"),
        [
            ({"max_tokens": 9}, 9),
            ({"max_completion_tokens": 8}, 8),
            ({"max_completion_tokens": 8, "max_tokens": 900}, 8),
            ({"max_tokens": "100"}, 100),
            ({"max_tokens": 50.0}, 50),
            ({"max_tokens": 10**30}, 2**31 - 1),
            ({"max_tokens": -5}, None),
            ({"max_tokens": True}, None),
            ({"max_tokens": 3.5}, None),
            ({"max_tokens": float("nan")}, None),
            ({"max_tokens": [5]}, None),
            ({"max_tokens": "many"}, None),
            ({}, None),
        ],
    )
    def test_reads_the_cap_as_clients_write_it(self, params: Message, cap: int | None) -> None:
        """PARAM-03, PARAM-04: both names, strings and floats are read; nonsense counts as not given."""
        assert chat(user("hi"), **params).cap == cap

    def test_knows_the_default_of_completions(self) -> None:
        """Completions stop after 16 tokens unless told otherwise; chats do not."""
        features = completion("Once upon a time")

        assert (features.cap, features.explicit_cap) == (16, False)
        assert completion("x", max_tokens=300).cap == 300

    def test_reads_floors(self) -> None:
        """`min_tokens` is a floor, and `ignore_eos` makes the cap exact."""
        assert chat(user("hi"), max_tokens=90, min_tokens=30).floor == 30
        assert chat(user("hi"), max_tokens=90, ignore_eos=True).floor == 90
        assert chat(user("hi"), max_tokens=9, min_tokens=30).floor == 9

    def test_reads_choices(self) -> None:
        """`n` and `best_of` count the answers to be made."""
        assert chat(user("hi"), n=4).n == 4
        assert completion("x", best_of=3, n=2).n == 3
        assert chat(user("hi"), n="x").n == 1

    @pytest.mark.parametrize(
        ("params", "thinking"),
        [
            ({}, None),
            ({"reasoning_effort": "none"}, False),
            ({"reasoning_effort": "low"}, True),
            ({"chat_template_kwargs": {"enable_thinking": True}}, True),
            ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"}, False),
            ({"chat_template_kwargs": 5, "reasoning_effort": 7}, None),
        ],
    )
    def test_reads_the_thinking_switches(self, params: Message, thinking: bool | None) -> None:
        """The template's own switch wins over the effort."""
        assert chat(user("hi"), **params).thinking is thinking

    @pytest.mark.parametrize(
        ("params", "needs"),
        [
            ({"min_p": 0.1}, {Need.MIN_P}),
            ({"min_p": 0}, set()),
            ({"min_p": "0.05"}, {Need.MIN_P}),
            ({"min_p": True}, {Need.MIN_P}),
            ({"min_p": "x"}, set()),
            ({"min_p": [0.1]}, set()),
            ({"logit_bias": {"5": 1}}, {Need.LOGIT_BIAS}),
            ({"logit_bias": {}}, set()),
            ({"logprobs": True}, {Need.LOGPROBS}),
            ({"logprobs": False}, set()),
            ({"prompt_logprobs": 1}, {Need.PROMPT_LOGPROBS}),
            ({"use_beam_search": True}, {Need.BEAM_SEARCH}),
            ({"response_format": {"type": "json_object"}}, {Need.STRUCTURED}),
            (
                {"response_format": {"type": "json_object"}, "reasoning_effort": "high"},
                {Need.STRUCTURED, Need.STRUCTURED_THINKING},
            ),
        ],
    )
    def test_names_what_not_every_engine_can_do(self, params: Message, needs: set[Need]) -> None:
        """Needs are what pools are gated on; empty values need nothing."""
        assert chat(user("hi"), **params).needs == needs


class TestStructure:
    @pytest.mark.parametrize(
        "params",
        [
            {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no", "perhaps"]}}}},
        ],
    )
    def test_bounds_an_answer_by_its_longest_label(self, params: Message) -> None:
        """A choice list or an enum is a cap even where no cap is given."""
        features = chat(user("Write a long story."), **params)

        assert features.labels == 3
        assert features.cap is not None
        assert features.cap <= 8
        assert not features.explicit_cap

    def test_reads_the_old_form_too(self) -> None:
        """PARAM-07: `guided_choice` counts as short and structured, is marked as old, and is no hard bound."""
        features = chat(user("Is it red?"), guided_choice=["yes", "no"])

        assert features.legacy_guided
        assert (features.structure, features.labels, features.cap) == (Structure.CHOICE, 2, None)
        assert estimate_rules(features).p50 < 16

    def test_sizes_a_schema_by_its_fields(self) -> None:
        """Two short fields are short; a list of paragraphs is not, and free text has no bound."""
        short = {"type": "object", "properties": {"ok": {"type": "boolean"}, "level": {"enum": ["a", "b"]}}}
        items = {"type": "object", "properties": {"summary": {"type": "string"}, "reason": {"type": "string"}}}
        long = {"type": "object", "properties": {"rows": {"type": "array", "items": items}}}
        made = [
            chat(user("x"), response_format={"type": "json_schema", "json_schema": {"schema": schema}})
            for schema in (short, long)
        ]

        assert made[0].structure_tokens is not None
        assert made[1].structure_tokens is not None
        assert made[0].structure_tokens < 24 < 300 < made[1].structure_tokens
        assert made[0].cap is not None
        assert made[1].cap is None

    @pytest.mark.parametrize(
        ("pattern", "bound"),
        [("[0-9]{3}-[0-9]{4}", 8), ("yes|no", 5), ("a+", None), ("(ab){2,5}", 10), (r"\d{2}\.", 3)],
    )
    def test_bounds_simple_expressions(self, pattern: str, bound: int | None) -> None:
        """A regular expression without open repeats is a bound."""
        assert chat(user("x"), structured_outputs={"regex": pattern}).cap == bound

    @pytest.mark.parametrize(
        ("params", "tools", "choice"),
        [
            ({"tools": []}, 0, ToolChoice.NONE),
            ({"tools": None}, 0, ToolChoice.NONE),
            ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 1, ToolChoice.AUTO),
            ({"tools": [{}], "tool_choice": "required"}, 1, ToolChoice.REQUIRED),
            ({"tools": [{}], "tool_choice": {"type": "function"}}, 1, ToolChoice.NAMED),
            ({"tools": [{}], "tool_choice": "none"}, 1, ToolChoice.NONE),
        ],
    )
    def test_reads_tools(self, params: Message, tools: int, choice: ToolChoice) -> None:
        """PARAM-05: an empty list is no tools; the choice is read in all its forms."""
        features = chat(user("hi"), **params)

        assert (features.tools, features.tool_choice) == (tools, choice)
