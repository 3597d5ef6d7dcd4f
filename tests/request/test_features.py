"""Any body at all, hints and keys."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.estimate.rules import estimate_rules
from gateway.request.features import extract
from gateway.request.keys import shape_key, text_keys, thread_key
from gateway.request.lexicon import BIT, PHRASE_BIT, Groups
from gateway.request.parse import parse_body
from gateway.request.tokens import TokenEstimator, rough_tokens
from gateway.types import Api, Hints, Need, Place, Structure, Task, ToolChoice
from tests.request.helpers import Message, chat, completion, of, user

KEYS = st.sampled_from(
    [
        *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "stop"),
        *("stream", "tools", "tool_choice", "logit_bias", "min_p", "response_format", "structured_outputs", "regex"),
        *(
            "guided_choice",
            "guided_json",
            "chat_template_kwargs",
            "reasoning_effort",
            "content",
            "role",
            "type",
            "text",
        ),
        *("json_schema", "schema", "properties", "enum", "items", "anyOf", "$ref", "function", "name", "arguments"),
        *("tool_calls", "choice", "image_url"),
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
WORDS = st.sampled_from(
    ["user", "system", "assistant", "tool", "json_schema", "text", "object", "Q: a\nA: b\n\nQ: c\nA:", "<env>", "3文で"]
)
JSON = st.recursive(
    SCALARS | WORDS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=30
)


class TestAnyBody:
    @settings(max_examples=300, deadline=None)
    @given(JSON, st.sampled_from(Api))
    def test_never_raises_anything_but_a_bad_request(self, data: object, api: Api) -> None:
        """BODY-05, BODY-08, PARAM-03: any JSON value is read or refused, never a crash, and the estimate is sane."""
        try:
            features = extract(parse_body(json.dumps(data).encode()), api)
        except BadRequest:
            assert not isinstance(data, dict) or not isinstance(data.get("model"), str | None)
            return
        estimate = estimate_rules(features)

        assert 0 <= estimate.p50 <= estimate.p90
        assert estimate.output_tokens >= 0
        features.instruction.encode()

    @pytest.mark.parametrize("messages", [[], None, "x", 5, [None], [[]], [{}], [{"role": 5, "content": 7}]])
    def test_reads_strange_messages_as_no_text(self, messages: object) -> None:
        """BODY-08: empty, missing or odd messages are read as an empty conversation."""
        features = of({"model": "m", "messages": messages})

        assert features.instruction == ""
        assert features.task_scores == ()

    def test_reads_a_chat_without_prompt_and_a_completion_without_messages(self) -> None:
        """PARAM-09: neither format needs the other's field."""
        assert chat(user("hi")).turns == 1
        assert completion("hi").turns == 1

    def test_reads_deeply_nested_schemas(self) -> None:
        """A schema of hundreds of levels, or one that refers to itself, ends."""
        schema: dict[str, object] = {"type": "object", "properties": {"a": {"$ref": "#"}}}
        deep: dict[str, object] = {"type": "string"}
        for _ in range(200):
            deep = {"type": "array", "items": deep, "maxItems": 3}

        for each in (schema, deep):
            features = chat(user("hi"), response_format={"type": "json_schema", "json_schema": {"schema": each}})
            assert features.structure is Structure.JSON_SCHEMA


class TestKeys:
    def test_are_stable_across_processes(self) -> None:
        """Keys are the same in every process and replica."""
        features = chat({"role": "system", "content": "Be kind."}, user("hi"), temperature=0)

        assert features.system_key == 0x9CC11283E899A1A2
        assert features == chat({"role": "system", "content": "Be kind."}, user("hi"), temperature=0)

    def test_ignore_dates_and_middles(self) -> None:
        """A date in the system prompt and other matter in the middle of a template keep the keys."""
        made = [
            chat(
                {"role": "system", "content": f"Today is 2031-01-{day}."},
                user(f"Text to be labelled now: {text}. Which label fits?"),
            )
            for day, text in (("04", "rain fell"), ("17", "the boat sank at dawn"))
        ]

        assert made[0].system_key == made[1].system_key
        assert made[0].template_key == made[1].template_key

    def test_follow_a_conversation(self) -> None:
        """The thread's key stays over the turns, and follows the client's session where it names one."""
        system: Message = {"role": "system", "content": "Be kind."}
        first = user("Why is rust red, 1 or 2?")
        later = [system, first, {"role": "assistant", "content": "Iron."}, user("And gold?")]

        assert chat(system, first).thread_key == chat(*later).thread_key != 0
        assert chat(system, user("Other")).thread_key != chat(*later).thread_key
        assert chat(first, session_id="s").thread_key == chat(user("Other"), session_id="s").thread_key
        assert completion("Once").thread_key == 0

    def test_tell_forms_apart(self) -> None:
        """Other parameters, tools or schemas are another form; sampling values are not."""
        base = chat(user("hi"), temperature=0).shape_key

        assert chat(user("bye"), temperature=1).shape_key == base
        assert chat(user("hi"), temperature=0, tools=[{"function": {"name": "f"}}]).shape_key != base
        assert chat(user("hi"), temperature=0, max_tokens=8).shape_key != base


class TestGroups:
    def test_are_those_of_the_ends(self) -> None:
        """The lexicon's words are found in the system prompt, the first and the last line, in any script."""
        system: Message = {"role": "system", "content": "You translate."}
        found = Groups(*chat(system, user("Explain this:\nIt rains.\n一文で要約してください。")).groups)

        assert found.system & BIT["translate"]
        assert found.first & BIT["explain"]
        assert not found.last & BIT["explain"]
        assert found.last & BIT["summarize"]
        assert found.ask & BIT["explain"]
        assert found.ask & BIT["summarize"]
        assert found.phrases & PHRASE_BIT["a sentence"]

    def test_leave_out_the_middle(self) -> None:
        """A word amid a long document is not part of the ask."""
        filler = "The harbour froze over that winter. " * 40

        assert not chat(user(f"{filler}translate {filler}")).groups[2] & BIT["translate"]


class TestParams:
    @pytest.mark.parametrize(("limit", "cap"), [(1, 1), (True, None), (1.0, 1), ("1", 1), ([1], None), (None, None)])
    def test_are_told_apart_by_type(self, limit: object, cap: int | None) -> None:
        """PARAM-03: what is kept for one request's parameters is not taken for those of another that equal them."""
        chat(user("hi"), max_tokens=1)

        assert chat(user("hi"), max_tokens=limit).cap == cap


def test_every_feature_has_its_own_place() -> None:
    """A request that says something on each count: no value is taken for its neighbour's."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y", "z"]}}, "required": ["a"]}
    data = {
        "model": "large",
        "messages": [
            {"role": "system", "content": "Answer in detail."},
            {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "Which one, a or b?"}]},
            {"role": "assistant", "content": "The second one, of course."},
            {"role": "tool", "content": "found"},
            {"role": "assistant", "content": "So"},
        ],
        "stream": True,
        "max_tokens": 900,
        "min_tokens": 7,
        "n": 3,
        "stop": "\n",
        "user": "u",
        "structured_outputs": {"json": schema},
        "tools": [{"function": {"name": "f", "parameters": {"properties": {"p": {}}, "required": ["p", "q"]}}}] * 2,
        "thinking_token_budget": 50,
        "chat_template_kwargs": {"enable_thinking": True},
        "continue_final_message": True,
        "min_p": 0.1,
    }
    hints = Hints(task=Task.MATH, output_tokens=77)
    found = extract(parse_body(json.dumps(data).encode()), Api.CHAT, hints)
    asked = "Which one, a or b?"

    assert (found.api, found.model, found.stream, found.language) == (Api.CHAT, "large", True, "en")
    assert (found.cap, found.token_limit, found.explicit_cap, found.floor, found.n) == (900, 900, True, 7, 3)
    assert (found.stop_line, found.scoring, found.legacy_guided) == (True, False, False)
    assert (found.structure, found.labels, found.tools, found.tool_fields) == (Structure.JSON_SCHEMA, 3, 2, 4)
    assert (found.structure_tokens, found.profile[-5:]) == (8, (184, 1, 0, 5, 1))
    assert (found.tool_choice, found.thinking, found.thinking_budget) == (ToolChoice.AUTO, True, 50)
    assert (found.turns, found.prefill, found.after_tool) == (5, True, True)
    assert (found.detail, found.step_by_step, found.wish, found.few_shot, found.few_shots) == (1, False, None, None, 0)
    assert (found.last_answer, found.place) == (rough_tokens("The second one, of course."), Place.WHOLE)
    assert (found.ask_tokens, found.input_tokens) == (5, TokenEstimator().estimate("large", found.profile))
    assert (found.hint_task, found.hint_tokens, found.code_share) == (Task.MATH, 77, 0.0)
    assert (found.modalities, Need.MIN_P in found.needs) == (frozenset({"text", "image"}), True)
    assert found.task_scores[0][0] is Task.CLASSIFICATION
    assert (found.system_text, found.user_head, found.user_tail, found.user_chars) == (
        "Answer in detail.",
        asked,
        "",
        18,
    )
    assert found.instruction.startswith(asked)
    assert Groups(*found.groups).system & BIT["answer"]
    keys = text_keys("Answer in detail.", asked)
    assert (found.system_key, found.template_key, found.head_key) == (keys.system, keys.template, keys.head)
    assert (found.tail_key, found.form_key, found.shape_key) == (keys.tail, 0, shape_key(data))
    assert found.thread_key == thread_key(data, keys.system, asked)
