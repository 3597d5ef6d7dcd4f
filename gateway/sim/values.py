"""Made-up values for constrained answers: instances of a JSON schema, strings of simple patterns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

_WORDS = {
    "en": ("river", "market", "blue", "seven days", "north", "paper", "open"),
    "ja": ("川", "市場", "青色", "七日間", "北側", "紙", "公開"),
    "zh": ("河流", "市场", "蓝色", "七天", "北方", "纸张", "公开"),
    "ko": ("강", "시장", "파란색", "칠 일", "북쪽", "종이", "공개"),
}
_DEEPEST = 8

_ALTERNATIVES = re.compile(r"\^?\(?(?:\?:)?([^\\()\[\]{}*+?.^$|]+(?:\|[^\\()\[\]{}*+?.^$|]+)+)\)?\$?")
_DIGITS = re.compile(r"\^?(?:\\d|\[0-9\])(?:\+|\*|\{(\d+)(?:,\d*)?\})?\$?")


def from_schema(schema: object, rng: Random, language: str) -> object:
    """An instance of a simple JSON schema: types, enum, const, required, items, bounds, anyOf, local `$ref`."""
    root = schema if isinstance(schema, Mapping) else {}
    return _instance(root, root, rng, language, 0)


def from_pattern(pattern: str, rng: Random) -> str | None:
    """A string of a pattern that is a list of words or a run of digits; None for any other."""
    if match := _ALTERNATIVES.fullmatch(pattern):
        return rng.choice(str(match[1]).split("|"))
    if match := _DIGITS.fullmatch(pattern):
        return "".join(rng.choice("123456789") for _ in range(int(match[1] or 1)))
    return None


def _instance(schema: Mapping[str, Any], root: Mapping[str, Any], rng: Random, language: str, depth: int) -> object:
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return rng.choice(schema["enum"])
    for union in ("anyOf", "oneOf", "allOf"):
        options = [option for option in schema.get(union) or [] if isinstance(option, Mapping)]
        if options:
            return _instance(options[0], root, rng, language, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    if kind == "object":
        return _object(schema, root, rng, language, depth)
    if kind == "array":
        return _array(schema, root, rng, language, depth)
    return _scalar(str(kind), schema, rng, language)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(_DEEPEST):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        target: Any = root
        for part in reference.lstrip("#/").split("/"):
            target = target.get(part) if part and isinstance(target, Mapping) else target
        schema = target if isinstance(target, Mapping) else {}
    return {}


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], rng: Random, language: str, depth: int) -> object:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    required = schema.get("required")
    names = list(properties)
    if depth >= _DEEPEST:
        # A recursive schema has to end somewhere; its optional parts are the place.
        names = [name for name in names if isinstance(required, list) and name in required]
        if depth >= 2 * _DEEPEST:
            names = []
    return {
        name: _instance(properties[name], root, rng, language, depth + 1)
        for name in names
        if isinstance(properties[name], Mapping)
    }


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], rng: Random, language: str, depth: int) -> object:
    items = schema.get("items")
    least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
    count = rng.randint(1, 3)
    if isinstance(most, int):
        count = min(count, most)
    if isinstance(least, int):
        count = max(count, min(least, 100))
    if depth >= _DEEPEST:
        count = least if isinstance(least, int) and depth < 2 * _DEEPEST else 0
    item = items if isinstance(items, Mapping) else {"type": "string"}
    return [_instance(item, root, rng, language, depth + 1) for _ in range(count)]


def _scalar(kind: str, schema: Mapping[str, Any], rng: Random, language: str) -> object:
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        high = schema.get("maximum", low + 100)
        value = rng.randint(int(low), max(int(low), int(high)))
        return value if kind == "integer" else float(value)
    word = rng.choice(_WORDS[language])
    if isinstance(schema.get("pattern"), str):
        word = from_pattern(schema["pattern"], rng) or word
    elif schema.get("format") in ("date", "date-time"):
        word = "2026-04-01" if schema["format"] == "date" else "2026-04-01T09:00:00Z"
    most, least = schema.get("maxLength"), schema.get("minLength")
    if isinstance(least, int) and least > len(word):
        word = (word * least)[:least]
    return word[:most] if isinstance(most, int) else word
