"""pydantic's errors in words for a policy's author: what is wrong, what was meant, what replaces a retired name."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from gateway.policy.document import Document
from gateway.policy.problems import Finding, Loc, at_key, at_value, did_you_mean
from gateway.policy.values import kind_of, quoted

MISSING = "is missing"

RETIRED: dict[tuple[str, ...], str] = {
    ("api_keys",): "use `access.keys`",
    ("auth",): "use `access`",
    ("backends",): "use `pools`",
    ("clusters",): "use `pools`",
    ("upstreams",): "use `pools`",
    ("model_list",): "use `models` and `pools`",
    ("redis",): "set the environment variable GATEWAY_REDIS_URL",
    ("routes",): "use `routing.rules`",
    ("rules",): "use `routing.rules`",
    ("router_settings",): "use `routing`",
    ("server", "host"): "use the option --host",
    ("server", "port"): "use the option --port",
    ("pools", "*", "backends"): "use `endpoints`",
    ("pools", "*", "servers"): "use `endpoints`",
    ("pools", "*", "url"): "use `endpoints`, a list",
    ("pools", "*", "urls"): "use `endpoints`",
    ("pools", "*", "kind"): "a pool with `speculative` is an MTP pool",
    ("pools", "*", "type"): "a pool with `speculative` is an MTP pool",
    ("pools", "*", "mtp"): "use `speculative: {method: mtp, tokens: 2}`",
    ("pools", "*", "num_speculative_tokens"): "use `speculative: {tokens: N}`",
    ("pools", "*", "served_model_name"): "use `model`",
    ("pools", "*", "timeout"): "use `timeouts`, with connect, first_byte, idle and total",
    ("pools", "*", "speculative", "k"): "use `tokens`",
    ("pools", "*", "speculative", "num_speculative_tokens"): "use `tokens`",
    ("models", "*", "backends"): "use `pools`",
    ("models", "*", "max_model_len"): "use `context_length`",
    ("routing", "default"): "a rule without `when` is the default",
    ("routing", "policy"): "use `objective`",
    ("routing", "strategy"): "use `objective`",
    ("routing", "token_threshold"): "use `threshold`",
    ("routing", "rules", "*", "if"): "use `when`",
    ("routing", "rules", "*", "match"): "use `when`",
    ("routing", "rules", "*", "pool"): "use `prefer` or `require`",
    ("routing", "rules", "*", "then"): "use `prefer` or `require`",
    ("routing", "rules", "*", "when", "max_tokens"): "use `output_tokens`, the predicted length",
    ("routing", "rules", "*", "when", "tokens"): "use `output_tokens` or `input_tokens`",
    ("access", "keys", "*", "key"): "use `env` (a variable that holds the key) or `sha256` (its digest)",
    ("access", "keys", "*", "value"): "use `env` (a variable that holds the key) or `sha256` (its digest)",
    ("access", "keys", "*", "rpm"): "use `requests_per_minute`",
    ("access", "keys", "*", "tpm"): "use `tokens_per_minute`",
}
"""Names from older drafts and from other gateways, and what to write instead."""


def explain(error: ValidationError) -> Iterator[Finding]:
    """Each of pydantic's errors in our words."""
    for item in error.errors(include_url=False):
        loc: Loc = item["loc"]
        kind, context = item["type"], item.get("ctx", {})
        if loc and loc[-1] == "[key]":
            yield at_key(loc[:-1], _message(kind, context, item["input"], item["msg"]))
        elif kind == "extra_forbidden":
            yield at_key(loc, _unknown(loc))
        else:
            yield at_value(loc, _message(kind, context, item["input"], item["msg"]))


def _message(kind: str, context: dict[str, Any], value: object, fallback: str) -> str:
    match kind:
        case "policy":
            return str(context["text"])
        case "missing":
            return MISSING
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"expected a mapping, got {kind_of(value)}"
        case "tuple_type" | "list_type":
            return f"expected a list, got {kind_of(value)}"
        case "too_short":
            return "is empty; at least one is needed"
        case "greater_than_equal":
            return f"expected at least {context['ge']:g}"
        case "less_than_equal":
            return f"expected at most {context['le']:g}" if context["le"] < 1e6 else "the number is too large"
        case "finite_number":
            return "expected a finite number"
        case "literal_error" | "enum":
            return _not_one_of(value, re.findall(r"'([^']*)'", context["expected"]))
    return fallback


def _not_one_of(value: object, known: list[str]) -> str:
    if not isinstance(value, str):
        return f"expected one of {', '.join(known)}, got {kind_of(value)}"
    shown = quoted(value)
    hint = did_you_mean(value, known) if shown != quoted(None) else ""
    return f"{shown} is not one of {', '.join(known)}{hint}"


def _unknown(loc: Loc) -> str:
    *above, last = loc
    shown = f"`{str(last)[:60]}`"
    for pattern, advice in RETIRED.items():
        if len(pattern) == len(loc) and all(p in ("*", part) for p, part in zip(pattern, loc, strict=True)):
            return f"{shown} is not used here; {advice}"
    known = known_names(tuple(above))
    hint = did_you_mean(str(last), known) or "; known are " + ", ".join(known)
    return f"unknown name {shown}{hint}"


def known_names(loc: Loc) -> list[str]:
    """The names that the mapping at `loc` may hold, from the schema's types."""
    at: Any = Document
    for part in loc:
        at = _inner(at)
        if isinstance(at, type) and issubclass(at, BaseModel):
            at = next(f.annotation for n, f in at.model_fields.items() if part in (n, f.alias))
        else:
            arguments = [a for a in typing.get_args(at) if a is not ...]
            at = arguments[-1]
    at = _inner(at)
    return [f.alias or n for n, f in at.model_fields.items()]


def _inner(at: Any) -> Any:
    """The type without `Annotated` and `| None`."""
    while True:
        if typing.get_origin(at) is typing.Annotated:
            at = typing.get_args(at)[0]
        elif isinstance(at, types.UnionType) or typing.get_origin(at) is typing.Union:
            at = next(a for a in typing.get_args(at) if a is not type(None))
        else:
            return at
