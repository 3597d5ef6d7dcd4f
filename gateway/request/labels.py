"""Recognises a chat request that is a pure choice among labels, and extracts the question.

Unlike the rest of this package it reads strictly, because the gateway writes the answer itself. Any unknown field, or
one that a single label cannot honour (a stop string, several choices, log probabilities, tools, thinking, a temperature
above 0), disqualifies the request.

Labels come from `structured_outputs.choice`, or from a JSON schema (in `response_format` or `structured_outputs`) that
is an enum of strings, a boolean, or an object whose only property is one of these. The messages must be system turns
followed by one user turn, all of text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

MOST_LABELS = 26
"""Most labels: vLLM names the options A to Z."""

Label = str | bool


class Options(NamedTuple):
    """The allowed labels and the form of the answer."""

    labels: tuple[Label, ...]
    as_json: bool = False
    field: str | None = None
    """The property that holds the label; None if the label is the whole answer."""
    instructions: str = ""
    """The schema's description of the label; usually empty."""

    def content(self, label: Label) -> str:
        """The message content for a label, as guided decoding would write it."""
        if not self.as_json:
            return str(label)
        return json.dumps(label if self.field is None else {self.field: label}, ensure_ascii=False)


class LabelQuestion(NamedTuple):
    """One question about a text."""

    turns: tuple[str | tuple[str, ...], ...]
    """Texts of the messages in order; a tuple for a message that came in parts."""
    options: Options
    include_usage: bool
    """Whether a stream ends with a usage chunk."""
    cache_salt: str | None


def read_label_question(data: Mapping[str, object]) -> LabelQuestion | None:
    """The question in a chat body, or None if the request is not a pure choice."""
    for name, value in data.items():
        if value is not None and not name.startswith("guided_") and not _FIELDS.get(name, _never)(value):
            return None
    stream_options = data.get("stream_options")
    if isinstance(stream_options, dict) and data.get("stream") is not True:
        return None
    options = _options(data)
    if options is None or not 2 <= len(set(options.labels)) == len(options.labels) <= MOST_LABELS:
        return None
    turns = _turns(data.get("messages"))
    if turns is None:
        return None
    include = isinstance(stream_options, dict) and stream_options.get("include_usage") is True
    salt = data.get("cache_salt")
    return LabelQuestion(turns, options, include, salt if isinstance(salt, str) else None)


def _turns(messages: object) -> tuple[str | tuple[str, ...], ...] | None:
    if not isinstance(messages, list) or not messages:
        return None
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    if roles[-1] != "user" or any(role not in ("system", "developer") for role in roles[:-1]):
        return None
    turns = [_text(message) for message in messages]
    return None if None in turns else tuple(turn for turn in turns if turn is not None)


def _text(message: Mapping[str, object]) -> str | tuple[str, ...] | None:
    content = message.get("content")
    if not message.keys() <= {"role", "content"}:
        return None
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    texts = [
        part["text"]
        for part in content
        if isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    ]
    return tuple(texts) if len(texts) == len(content) else None


def _options(data: Mapping[str, object]) -> Options | None:
    form, outputs = data.get("response_format"), data.get("structured_outputs")
    wanted = form if isinstance(form, dict) and form.get("type") != "text" else None
    if wanted is not None:
        inner = wanted.get("json_schema")
        if outputs is not None or wanted.get("type") != "json_schema" or not isinstance(inner, dict):
            return None
        return _of_schema(inner.get("schema"))
    if not isinstance(outputs, dict):
        return None
    said = {name: value for name, value in outputs.items() if value is not None}
    if said.keys() == {"choice"}:
        labels = _texts(said["choice"])
        return Options(labels) if labels else None
    return _of_schema(said["json"]) if said.keys() == {"json"} else None


def _of_schema(schema: object) -> Options | None:
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    if properties is None:
        return _of_value(schema, schema)
    if not schema.keys() <= _OBJECT_KEYS or schema.get("type") != "object" or schema.get("additionalProperties"):
        return None
    if not isinstance(properties, dict) or len(properties) != 1 or schema.get("required") != list(properties):
        return None
    ((name, value),) = properties.items()
    found = _of_value(value, schema)
    return None if found is None else found._replace(field=name)


def _of_value(schema: object, root: Mapping[str, object]) -> Options | None:
    """The labels of a string enum or a boolean; follows at most one `$ref`."""
    if not isinstance(schema, dict):
        return None
    said = schema.get("description")
    if isinstance(reference := schema.get("$ref"), str):
        if not schema.keys() <= {"$ref", "title", "description"}:
            return None
        schema = _referred(reference, root)
        if schema is None or "$ref" in schema:
            return None
        said = said or schema.get("description")
    if not schema.keys() <= _VALUE_KEYS:
        return None
    labels: tuple[Label, ...] | None = None
    if schema.get("type") == "boolean" and "enum" not in schema:
        labels = (True, False)
    elif schema.get("type", "string") == "string":
        labels = _texts(schema.get("enum"))
    return Options(labels, as_json=True, instructions=said if isinstance(said, str) else "") if labels else None


def _referred(reference: str, root: Mapping[str, object]) -> dict[str, object] | None:
    for place in ("$defs", "definitions"):
        inside = root.get(place)
        if isinstance(inside, dict) and reference.startswith(f"#/{place}/"):
            found = inside.get(reference.removeprefix(f"#/{place}/"))
            return found if isinstance(found, dict) else None
    return None


def _texts(value: object) -> tuple[Label, ...] | None:
    if not isinstance(value, list) or not all(isinstance(label, str) and label for label in value):
        return None
    return tuple(value)


def _never(value: object) -> bool:
    return False


def _any(value: object) -> bool:
    return True


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _text_only(value: object) -> bool:
    return isinstance(value, str)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _positive(value: object) -> bool:
    return _whole(value) and isinstance(value, int) and value > 0


def _share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def _is(*allowed: object) -> Callable[[object], bool]:
    return lambda value: any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _stream_options(value: object) -> bool:
    return isinstance(value, dict) and value.keys() <= {"include_usage"} and all(map(_flag, value.values()))


_OBJECT_KEYS = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "title",
        "description",
        "$schema",
        "$defs",
        "definitions",
    }
)
_VALUE_KEYS = frozenset({"type", "enum", "title", "description", "$schema", "$defs", "definitions"})
_FIELDS: Mapping[str, Callable[[object], bool]] = {
    "model": _text_only,
    "messages": _any,
    "structured_outputs": _any,
    "response_format": _any,
    "stream": _flag,
    "stream_options": _stream_options,
    "temperature": _is(0),
    "top_p": _share,
    "top_k": _whole,
    "seed": _whole,
    "n": _is(1),
    "max_tokens": _positive,
    "max_completion_tokens": _positive,
    "min_tokens": _is(0),
    "min_p": _is(0),
    "presence_penalty": _is(0),
    "frequency_penalty": _is(0),
    "repetition_penalty": _is(1),
    "logit_bias": _is({}),
    "stop": _is([]),
    "logprobs": _is(False),
    "top_logprobs": _is(0),
    "tool_choice": _is("none", "auto"),
    "parallel_tool_calls": _flag,
    "reasoning_effort": _is("none"),
    "chat_template_kwargs": _is({}, {"enable_thinking": False}),
    "cache_salt": _text_only,
    "user": _text_only,
    "session_id": _text_only,
    "request_id": _text_only,
    "safety_identifier": _text_only,
    "prompt_cache_key": _text_only,
    "metadata": _any,
    "store": _is(False),
}
"""Check per field; null always passes. `top_p`, `top_k` and `seed` do not change which label is the most likely."""
