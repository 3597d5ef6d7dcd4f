"""A request body, checked as vLLM checks it and laid out for the simulation.

Order of checks is vLLM's: content type, JSON, field types (all reported at once), model, then the engine's own rules.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.request.parse import is_true
from gateway.sim.errors import ApiError, field_errors, invalid
from gateway.sim.prompts import chat_prompt, completion_prompts, tool_names

_CHAT_FIELDS: Mapping[str, tuple[type, ...]] = {
    "messages": (list,), "model": (str,), "max_completion_tokens": (int,), "max_tokens": (int,), "n": (int,),
    "stream": (bool,), "stream_options": (dict,), "stop": (str, list), "temperature": (int, float),
    "top_p": (int, float),
    "min_p": (int, float), "top_k": (int,), "seed": (int,), "logprobs": (bool,), "top_logprobs": (int,),
    "logit_bias": (dict,), "min_tokens": (int,), "ignore_eos": (bool,), "tools": (list,), "response_format": (dict,),
    "structured_outputs": (dict,), "chat_template_kwargs": (dict,), "reasoning_effort": (str,),
    "thinking_token_budget": (int,), "include_reasoning": (bool,), "vllm_xargs": (dict,), "prompt_logprobs": (int,),
    "tool_choice": (str, dict), "echo": (bool,), "include_stop_str_in_output": (bool,), "return_token_ids": (bool,),
}  # fmt: skip
_COMPLETION_FIELDS: Mapping[str, tuple[type, ...]] = {
    **{name: kinds for name, kinds in _CHAT_FIELDS.items() if name not in ("messages", "tools", "tool_choice")},
    "prompt": (str, list),
    "logprobs": (int,),
}
_BOOL = (bool,)
_READ_BOOL = TypeAdapter(bool).validate_python
_MAX_N = 16384
_MAX_STOPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the served engine allows."""

    names: tuple[str, ...]
    """Model names that are served; the first is the default."""
    max_model_len: int
    drafting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One checked request."""

    chat: bool
    body: Mapping[str, Any]
    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    """Text, or token ids (completions only); one for chat."""
    instruction: str
    """The text that carries the ask: the last user turn, or the prompt."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    n: int
    stop: tuple[str, ...]
    logprobs: int | None
    """None: off; else the number of alternatives per token."""
    echo: bool

    def flag(self, name: str) -> bool:
        return self.body.get(name) is True


def decode_json(raw: bytes, content_type: str) -> Mapping[str, Any]:
    """The body as an object. Raises ApiError (400)."""
    if content_type.split(";")[0].strip().lower() != "application/json":
        raise invalid("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _lenient(raw)
    if not isinstance(body, dict):
        raise field_errors([("body", "Input should be a valid dictionary", "model_attributes_type")])
    return body


def _lenient(raw: bytes) -> object:
    """What Python's parser takes and orjson does not: NaN, lone surrogates, huge numbers."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))
        raise invalid(
            "1 validation error:\n  {'type': 'json_invalid', 'loc': ('body', "
            f"{getattr(error, 'pos', 0)}), 'msg': 'JSON decode error', 'input': {{}}, 'ctx': {{'error': '{reason}'}}}}"
        ) from error


def parse(body: Mapping[str, Any], *, chat: bool, limits: Limits, batch: bool = False) -> Request:
    """Checks a body. Raises ApiError with vLLM's status and words."""
    body = _typed(body, chat)
    model = _model(body, limits)
    _check_values(body, limits, chat)
    options = body.get("stream_options") or {}
    stream = body.get("stream") is True
    if options and not stream:
        raise invalid("Stream options can only be defined when `stream=True`.", param="stream_options")
    prompts: tuple[str | tuple[int, ...], ...]
    if batch:
        prompts, instruction = _conversations(body), ""
    elif chat:
        prompts, instruction = chat_prompt(body["messages"], body.get("tools"))
    else:
        prompts, instruction = completion_prompts(body["prompt"])
    maximum = (body.get("max_completion_tokens") if chat else None) or body.get("max_tokens")
    if maximum is None and not chat:
        maximum = 16
    stop = body.get("stop")
    usage = is_true(options.get("include_usage"))
    return Request(
        chat=chat,
        body=body,
        model=model,
        prompts=prompts,
        instruction=instruction,
        stream=stream,
        include_usage=usage,
        continuous_usage=usage and is_true(options.get("continuous_usage_stats")),
        max_tokens=None if maximum is None else int(maximum),
        min_tokens=int(body.get("min_tokens") or 0),
        ignore_eos=body.get("ignore_eos") is True,
        n=int(body.get("n") or 1),
        stop=() if not stop else (stop,) if isinstance(stop, str) else tuple(s for s in stop if s),
        logprobs=_logprobs(body, chat),
        echo=not chat and body.get("echo") is True,
    )


def _conversations(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The prompts of a batch. Raises ApiError."""
    for name in ("stream", "tools", "use_beam_search"):
        if body.get(name):
            raise invalid(f"`{name}` is not supported in a batch.", param=name)
    conversations = body["messages"]
    if not conversations or not all(isinstance(one, list) for one in conversations):
        raise field_errors([("messages", "Input should be a list of conversations", "list_type")])
    return tuple(chat_prompt(one, None)[0][0] for one in conversations)


def _typed(body: Mapping[str, Any], chat: bool) -> Mapping[str, Any]:
    """The body with its switches read as pydantic reads them, such as `"true"` and 1. Raises ApiError."""
    known = _CHAT_FIELDS if chat else _COMPLETION_FIELDS
    needed = "messages" if chat else "prompt"
    wrong, switches = [], {}
    if body.get(needed) is None:
        wrong.append((needed, "Field required", "missing"))
    for name, value in body.items():
        kinds = known.get(name)
        if kinds is None or value is None:
            continue
        if kinds == _BOOL:
            try:
                switches[name] = _READ_BOOL(value)
            except ValidationError as error:
                why = error.errors()[0]
                wrong.append((name, why["msg"], why["type"]))
            continue
        # A bool is an int to Python and not to pydantic; 3.0 is an int to pydantic and not to Python.
        if (isinstance(value, bool) and bool not in kinds) or (
            not isinstance(value, kinds) and not (int in kinds and isinstance(value, float) and value.is_integer())
        ):
            wrong.append((name, f"Input should be a valid {kinds[0].__name__}", f"{kinds[0].__name__}_type"))
    if wrong:
        raise field_errors(wrong)
    return {**body, **switches}


def _model(body: Mapping[str, Any], limits: Limits) -> str:
    model = body.get("model")
    if not model:
        return limits.names[0]
    if model not in limits.names:
        names = ", ".join(f"`{name}`" for name in limits.names)
        message = f"The model `{model}` does not exist. Available models: {names}."
        raise ApiError(404, "NotFoundError", message, param="model")
    return str(model)


def _check_values(body: Mapping[str, Any], limits: Limits, chat: bool) -> None:
    temperature = body.get("temperature")
    if temperature is not None and not 0 <= temperature <= 2:
        raise invalid(f"temperature must be in [0, 2], got {temperature}.", param="temperature")
    top_p = body.get("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise invalid(f"top_p must be in (0, 1], got {top_p}.", param="top_p")
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is not None and (value < 1 or value == math.inf):
            raise invalid(f"{name} must be at least 1, got {value}.", param=name)
        if value is not None and value > limits.max_model_len:
            raise invalid(
                f"{name}={value} cannot be greater than max_model_len={limits.max_model_len}. Please request fewer "
                "output tokens.",
                param=name,
            )
    maximum = (body.get("max_completion_tokens") if chat else None) or body.get("max_tokens")
    minimum = body.get("min_tokens")
    if minimum is not None and (minimum < 0 or (maximum is not None and minimum > maximum)):
        raise invalid(
            f"min_tokens must be greater than or equal to 0 and at most max_tokens={maximum}, got {minimum}.",
            param="min_tokens",
        )
    n = body.get("n")
    if n is not None and not 1 <= n <= _MAX_N:
        raise invalid(f"n must be at least 1 and at most {_MAX_N}, got {n}.", param="n")
    if n is not None and n > 1 and temperature == 0:
        raise invalid(f"n must be 1 when using greedy sampling, got {n}.", param="n")
    stop = body.get("stop")
    if isinstance(stop, list) and (len(stop) > _MAX_STOPS or not all(isinstance(item, str) for item in stop)):
        raise invalid(f"stop must be at most {_MAX_STOPS} strings.", param="stop")
    if limits.drafting and ((body.get("min_p") or 0) > 0 or body.get("logit_bias")):
        raise invalid("The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.")
    if (body.get("prompt_logprobs") or 0) > 0 and body.get("stream"):
        raise invalid("`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
    if chat:
        _check_chat(body)


def _check_chat(body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    if tools == []:
        raise invalid("`tools` must not be an empty array. Either provide at least one tool or omit the field.",
                      param="tools")  # fmt: skip
    if tools and len(tool_names(tools)) != len(tools):
        raise invalid("Every tool needs a `function` with a `name`.", param="tools")
    choice = body.get("tool_choice")
    if choice not in (None, "none") and not tools:
        raise invalid("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if name not in tool_names(tools or []):
            raise invalid("The tool specified in `tool_choice` does not match any of the specified `tools`.",
                          param="tool_choice")  # fmt: skip
    elif choice not in (None, "none", "auto", "required"):
        raise invalid(f"Invalid value for `tool_choice`: {choice}.", param="tool_choice")
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise invalid("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")


def _logprobs(body: Mapping[str, Any], chat: bool) -> int | None:
    if chat:
        return int(body.get("top_logprobs") or 0) if body.get("logprobs") is True else None
    value = body.get("logprobs")
    return None if value is None else max(int(value), 0)
