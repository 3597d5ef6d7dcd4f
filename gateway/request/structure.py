"""Bounds the length of answers that must match a choice list, a JSON schema or a regular expression.

A walk over the schema, limited in nodes and depth, sums up a typical length and, if there is no free text and no open
list, an upper bound. Keys, quotes and separators are included, because the engine writes them too.
"""

from __future__ import annotations

import re

from gateway.records import record
from gateway.request.caps import whole
from gateway.types import Structure

_MAX_NODES = 400
_MAX_DEPTH = 8
_MAX_LABELS = 4096
_FREE_TEXT = 12
_LONG_TEXT = 60
_LIST_ITEMS = 4
_FORMATS = {"date": 8, "time": 8, "date-time": 16, "uuid": 26, "email": 12, "uri": 20, "ipv4": 10}
_LONG_NAMES = re.compile(
    r"reason|rationale|explan|thought|summar|descri|detail|content|text|body|answer|message|comment|analysis|理由|説明|要約",
    re.IGNORECASE,
)


@record
class Size:
    """Tokens of an answer: the typical number, and the upper bound or None."""

    typical: float
    bound: int | None


@record
class Shape:
    """The structure that the request prescribes for its answer."""

    kind: Structure = Structure.NONE
    labels: int = 0
    size: Size | None = None
    legacy: bool = False


PLAIN = Shape()
_GUIDED = ("guided_choice", "guided_json", "guided_regex", "guided_grammar")
FIELDS = frozenset(("response_format", "structured_outputs", *_GUIDED))


def read_structure(data: dict[str, object]) -> Shape:
    """Reads the structure: `response_format` first, as in vLLM, then `structured_outputs`, then the old `guided_*`
    fields."""
    if data.keys().isdisjoint(FIELDS):
        return PLAIN
    form = data.get("response_format")
    if isinstance(form, dict):
        shape = _response_format(form)
        if shape is not None:
            return shape
    outputs = data.get("structured_outputs")
    if isinstance(outputs, dict):
        for name in ("choice", "json", "regex", "grammar", "structural_tag", "json_object"):
            if outputs.get(name):
                return _shape(name, outputs[name], legacy=False)
    for name in _GUIDED:
        if data.get(name):
            return _shape(name.removeprefix("guided_"), data[name], legacy=True)
    return PLAIN


def label_tokens(label: str) -> int:
    """Practical upper bound on a label's tokens: one per three ASCII characters; one per character if not ASCII."""
    return max(1, -(-len(label) // 3)) if label.isascii() else max(1, len(label))


def _response_format(form: dict[str, object]) -> Shape | None:
    kind = form.get("type")
    if kind == "json_schema":
        wrapped = form.get("json_schema")
        schema = wrapped.get("schema") if isinstance(wrapped, dict) else None
        return _shape("json", schema, legacy=False)
    if kind == "json_object":
        return Shape(kind=Structure.JSON_OBJECT)
    if kind == "structural_tag":
        return Shape(kind=Structure.GRAMMAR)
    return None


def _shape(name: str, value: object, *, legacy: bool) -> Shape:
    if name == "choice" and isinstance(value, list):
        labels = [_label(label) for label in value[:_MAX_LABELS]]
        return Shape(kind=Structure.CHOICE, labels=len(labels), size=_labels_size(labels), legacy=legacy)
    if name == "json":
        walk = _Walk(value)
        size = walk.size(value, "", 0) if isinstance(value, dict) else None
        return Shape(kind=Structure.JSON_SCHEMA, labels=walk.labels, size=size, legacy=legacy)
    if name == "regex":
        longest = regex_length(value) if isinstance(value, str) else None
        size = Size(max(1.0, longest / 3), longest) if longest is not None else None
        return Shape(kind=Structure.REGEX, size=size, legacy=legacy)
    kind = Structure.JSON_OBJECT if name == "json_object" else Structure.GRAMMAR
    return Shape(kind=kind, legacy=legacy)


def _labels_size(labels: list[str]) -> Size | None:
    if not labels:
        return None
    sizes = [label_tokens(label) for label in labels]
    return Size(sum(sizes) / len(sizes), max(sizes) + 1)


def _label(value: object) -> str:
    """A label as text. Nested values are legal but rare, and get a guess: writing them out could recurse deeply."""
    return str(value) if value is None or isinstance(value, str | int | float) else "nested-value" * 2


class _Walk:
    """One walk over a schema. Counts visited nodes and the labels of the largest enum."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._nodes = 0
        self.labels = 0

    def size(self, schema: object, name: str, depth: int) -> Size:
        """The size of a value by `schema`; `name` is the property that holds it. Free text beyond the limits."""
        self._nodes += 1
        if not isinstance(schema, dict) or self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            return Size(_FREE_TEXT, None)
        if "const" in schema:
            size = label_tokens(_label(schema["const"]))
            return Size(size, size + 2)
        options = schema.get("enum")
        if isinstance(options, list) and options:
            self.labels = max(self.labels, len(options))
            sizes = [label_tokens(_label(option)) for option in options[:_MAX_LABELS]]
            return Size(sum(sizes) / len(sizes) + 1, max(sizes) + 3)
        ref = schema.get("$ref")
        if isinstance(ref, str):
            return self.size(self._resolve(ref), name, depth + 1)
        for key in ("anyOf", "oneOf"):
            variants = schema.get(key)
            if isinstance(variants, list) and variants:
                inner = [self.size(variant, name, depth + 1) for variant in variants[:16]]
                bounds = [each.bound for each in inner]
                bound = None if None in bounds else max(bound for bound in bounds if bound is not None)
                return Size(sum(each.typical for each in inner) / len(inner), bound)
        return self._typed(schema, name, depth)

    def _typed(self, schema: dict[str, object], name: str, depth: int) -> Size:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "null")
        if kind == "boolean" or kind == "null":
            return Size(1, 2)
        if kind == "integer" or kind == "number":
            return Size(2 if kind == "integer" else 4, 24)
        if kind == "string":
            return _string_size(schema, name)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind == "object" or "properties" in schema:
            return self._object(schema, depth)
        return Size(_FREE_TEXT, None)

    def _array(self, schema: dict[str, object], name: str, depth: int) -> Size:
        item = self.size(schema.get("items"), name, depth + 1)
        most, least = whole(schema.get("maxItems")), whole(schema.get("minItems")) or 0
        typical = max(least, min(_LIST_ITEMS, most if most is not None else _LIST_ITEMS))
        bound = None if most is None or item.bound is None else 2 + min(most, 10_000) * (item.bound + 2)
        return Size(2 + min(typical, 10_000) * (item.typical + 1), bound)

    def _object(self, schema: dict[str, object], depth: int) -> Size:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return Size(20, None)
        typical, bound = 2.0, 4
        bounded = True
        for key, value in properties.items():
            size = self.size(value, key, depth + 1)
            typical += label_tokens(key) * 0.8 + 3 + size.typical
            if size.bound is None:
                bounded = False
            else:
                bound += label_tokens(key) + 6 + size.bound
        return Size(typical, bound if bounded else None)

    def _resolve(self, ref: str) -> object:
        node = self._root
        for step in ref.removeprefix("#").strip("/").split("/")[:_MAX_DEPTH]:
            node = node.get(step) if isinstance(node, dict) else None
        return node


def _string_size(schema: dict[str, object], name: str) -> Size:
    most = whole(schema.get("maxLength"))
    form = schema.get("format")
    typical = _FORMATS.get(form, _FREE_TEXT) if isinstance(form, str) else _FREE_TEXT
    if typical == _FREE_TEXT and _LONG_NAMES.search(name[:80]):
        typical = _LONG_TEXT
    if most is not None:
        return Size(min(typical, 2 + most / 3), most + 3)
    return Size(typical, None)


_REPEAT = re.compile(r"\{(?:\d{1,6},)?(\d{1,6})\}")
_CLASS = re.compile(r"\^?\]?(?:[^\]\\]|\\.)*\]")
_OPEN_ENDED = re.compile(r"(?<!\\)[*+]|\{\d*,\}|\\[1-9]|\(\?[^:]")


def regex_length(pattern: str) -> int | None:
    """Upper bound on the characters that `pattern` matches; None if it is open-ended or too complex.

    Alternatives are summed instead of compared. The bound stays valid and the walk simple.
    """
    if len(pattern) > 2000 or _OPEN_ENDED.search(pattern):
        return None
    stack: list[int] = []
    total = last = 0
    at = 0
    while at < len(pattern):
        char = pattern[at]
        repeat = _REPEAT.match(pattern, at) if char == "{" else None
        if repeat:
            total += last * (int(repeat.group(1)) - 1) if int(repeat.group(1)) else 0
            at = repeat.end()
            continue
        at += 1
        if char == "(":
            stack.append(total)
            total = last = 0
            at += 2 if pattern.startswith("?:", at) else 0
        elif char == ")":
            last = total
            total += stack.pop() if stack else 0
        elif char == "[":
            close = _CLASS.match(pattern, at)
            at = close.end() if close else len(pattern)
            last, total = 1, total + 1
        elif char not in "|^$?":
            at += char == "\\"
            last, total = 1, total + 1
    return min(total, 10**6)
