"""Generated bodies: whatever a client sends, the simulated server plans an answer or refuses in vLLM's form."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.sim.answer import plan
from gateway.sim.errors import ApiError
from gateway.sim.request import Limits, parse

LIMITS = Limits(names=("m",), max_model_len=2048, drafting=True)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 3000) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYWORDS = st.sampled_from(
    ["type", "enum", "const", "properties", "items", "required", "minItems", "maxItems", "minimum", "maximum",
     "exclusiveMinimum", "maxLength", "minLength", "anyOf", "$ref", "pattern", "format"]
)  # fmt: skip
SCHEMAS = st.recursive(
    st.dictionaries(
        KEYWORDS, JSON | st.sampled_from(["object", "array", "integer", "string", "#", "number"]), max_size=4
    ),
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=3), inner)}
    ),
    max_leaves=4,
)
TOOLS = st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": JSON, "parameters": SCHEMAS})}))
FIELDS = {
    "max_tokens": JSON,
    "n": st.integers(0, 3) | JSON,
    "stop": JSON,
    "min_tokens": JSON,
    "ignore_eos": JSON,
    "seed": JSON,
    "vllm_xargs": JSON | st.fixed_dictionaries({"sim_task": JSON, "sim_output_tokens": JSON}),
    "tools": JSON
    | st.lists(st.fixed_dictionaries({"function": JSON | st.fixed_dictionaries({"name": JSON})}), max_size=2),
    "tool_choice": JSON | st.sampled_from(["required", "auto", "none"]),
    "structured_outputs": st.fixed_dictionaries({}, optional={k: JSON for k in ("choice", "regex", "json")}),
    "response_format": st.fixed_dictionaries(
        {"type": st.just("json_schema"), "json_schema": st.fixed_dictionaries({"schema": SCHEMAS}) | JSON}
    ),
    "reasoning_effort": JSON,
    "chat_template_kwargs": JSON,
    "thinking_token_budget": st.integers(-5, 50),
}


SENSIBLE = st.fixed_dictionaries(
    {},
    optional={
        **{name: FIELDS[name] for name in ("structured_outputs", "response_format", "thinking_token_budget")},
        "max_tokens": st.integers(1, 200),
        "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=3),
        "ignore_eos": st.booleans(),
        "reasoning_effort": st.sampled_from(["none", "low"]),
    },
)
"""Fields whose types are right, so that planning is reached every time."""


@settings(max_examples=300, deadline=None)
@given(
    fields=SENSIBLE | st.fixed_dictionaries({}, optional=FIELDS),
    content=JSON | st.text(max_size=30),
    role=st.sampled_from(["user", "tool", "assistant"]),
)
def test_any_chat_body_is_answered_or_refused(fields: dict[str, Any], content: object, role: str) -> None:
    """Planning raises nothing but ApiError, and every answer has between one token and what the context leaves."""
    body = {"messages": [{"role": role, "content": content}], **fields}
    try:
        request = parse(body, chat=True, limits=LIMITS)
        for choice in range(request.n):
            answer = plan(request, str(request.prompts[0]), choice, server_seed=0, room=500)
            assert 1 <= len(answer.tokens) <= 500
            assert all(0 <= segment.start <= segment.end <= len(answer.tokens) for segment in answer.segments)
    except ApiError as refusal:
        error = refusal
    else:
        return

    assert error.status == 400
    assert error.body().startswith(b'{"error":{"message":')


@settings(max_examples=100, deadline=None)
@given(prompt=JSON, fields=st.fixed_dictionaries({}, optional={"echo": JSON, "logprobs": JSON, "max_tokens": JSON}))
def test_any_completion_body_is_answered_or_refused(prompt: object, fields: dict[str, Any]) -> None:
    """The same for completions."""
    try:
        request = parse({"prompt": prompt, **fields}, chat=False, limits=LIMITS)
        assert plan(request, "x", 0, server_seed=0, room=500).tokens
    except ApiError as refusal:
        error = refusal
    else:
        return

    assert error.status == 400
