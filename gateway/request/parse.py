"""Bytes of a request body -> a lenient view. Understands only what routing needs; the back end judges the rest.

`orjson` first; what it refuses and Python's own parser takes (NaN, lone surrogates) is taken too, because vLLM reads
bodies with Python's parser. Bodies over 512 KB are read through a shortened copy (`shorten`).
"""

from __future__ import annotations

import json
import re

import orjson

from gateway.errors import BadRequest
from gateway.records import record
from gateway.request.shorten import WHOLE_BYTES, Cut, place_in_body, shorten

_TRUE_WORDS = frozenset({"true", "t", "yes", "y", "on", "1"})
_MODEL_KEY = re.compile(rb'"model"[ \t\r\n]*:')
_VALUE = re.compile(rb'[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*"|[^\s,\[\]{}"]+)', re.DOTALL)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:")


@record
class Body:
    """What a body says, leniently. `data` may hold any JSON value under any key."""

    model: str | None
    """The `model` field; None where it is missing or null."""
    stream: bool
    data: dict[str, object]
    size: int
    """Bytes of the whole body."""
    hidden_text: int = 0
    """Bytes of prompt text that `data` lacks because the body is large."""
    view: bytes = b""
    """The bytes that `data` was read from: the body itself or a shortened copy."""
    cuts: tuple[Cut, ...] = ()
    surrogates: bool = True
    """Whether its texts may hold lone surrogates, which cannot be encoded; `orjson` refuses them."""


def parse_body(raw: bytes) -> Body:
    """Reads a JSON object. Raises `BadRequest` that says where the text breaks off or what it is instead."""
    if len(raw) > WHOLE_BYTES:
        short = shorten(raw, _is_object)
        if short is not None:
            return _body(orjson.loads(short.view), raw, short.view, short.cuts, short.hidden_text, surrogates=False)
    try:
        data, surrogates = orjson.loads(raw), False
    except orjson.JSONDecodeError as exc:
        data, surrogates = _load(raw, exc.msg), True
    return _body(data, raw, raw, (), 0, surrogates=surrogates)


def rewrite_model(raw: bytes, body: Body, new_name: str) -> bytes:
    """The body with the value of its top-level `model` exchanged and every other byte as it was.

    A repeated key is exchanged each time, as parsers differ in which they take. Without the key nothing changes.
    """
    if "model" not in body.data:
        return raw
    name = json.dumps(new_name).encode()
    view = body.view
    if (text := in_utf8(raw)) is not raw:
        raw = view = text
    pieces: list[bytes] = []
    done = 0
    for start, end in _model_values(view):
        begin = place_in_body(body.cuts, start)
        pieces += (raw[done:begin], name)
        done = begin + end - start
    pieces.append(raw[done:])
    return b"".join(pieces)


def in_utf8(raw: bytes) -> bytes:
    """The body for whoever searches its bytes: itself, unless it is UTF-16 or UTF-32.

    Python's parser, and so vLLM's server, reads these as well.
    """
    encoding = json.detect_encoding(raw)
    if not encoding.startswith(("utf-16", "utf-32")):
        return raw
    return raw.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")


def _body(data: object, raw: bytes, view: bytes, cuts: tuple[Cut, ...], hidden: int, *, surrogates: bool) -> Body:
    if not isinstance(data, dict):
        raise BadRequest(f"The body must be a JSON object, not {_kind(data)}.")
    model = data.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequest(f"`model` must be a string, not {_kind(model)}.", param="model")
    # By position: by keyword it costs twice as much.
    return Body(model, is_true(data.get("stream")), data, len(raw), hidden, view, cuts, surrogates)


def is_true(value: object) -> bool:
    """Whether pydantic, and so vLLM, reads a value as true."""
    if value is True or value is None:
        return value is True
    if isinstance(value, str):
        return value.lower() in _TRUE_WORDS
    return isinstance(value, int | float) and value == 1


def _load(raw: bytes, first: str) -> object:
    """Reads what `orjson` refused, with the message `first`, by Python's own parser."""
    if not raw.strip():
        raise BadRequest("The body is empty; a JSON object is needed.")
    try:
        return json.loads(raw)
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise BadRequest(f"The body is not valid JSON at {where}: {exc.msg}.") from None
    except UnicodeDecodeError as exc:
        raise BadRequest(f"The body is not valid UTF-8 at byte {exc.start}.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    except ValueError:
        # Integers of thousands of digits: Python refuses to convert them and gives no position.
        raise BadRequest(f"The body is not valid JSON: {first}.") from None


def _is_object(view: bytes) -> bool:
    try:
        return isinstance(orjson.loads(view), dict)
    except orjson.JSONDecodeError:
        return False


def _kind(data: object) -> str:
    if data is None:
        return "null"
    if isinstance(data, bool):
        return "a boolean"
    if isinstance(data, int | float):
        return "a number"
    if isinstance(data, dict):
        return "an object"
    return "an array" if isinstance(data, list) else "a string"


def _model_values(view: bytes) -> list[tuple[int, int]]:
    """Spans of the values of the top-level `model` keys, in order."""
    keys = [match.end() for match in _MODEL_KEY.finditer(view)]
    if len(keys) != 1 or rb"\u006" in view:
        # Nested or repeated keys, or one that may be spelled with escapes: only a walk over the whole text can tell.
        keys = _top_level_model_keys(view)
    spans = [_VALUE.match(view, after) for after in keys]
    return [span.span(1) for span in spans if span]


def _top_level_model_keys(view: bytes) -> list[int]:
    """Offsets after the colon of each `model` key of the outermost object."""
    depth = 0
    found: list[int] = []
    for match in _TOKEN.finditer(view):
        start = match.start()
        byte = view[start]
        if byte == 34:
            if depth == 1 and _names_model(match.group()):
                colon = _COLON.match(view, match.end())
                if colon:
                    found.append(colon.end())
        elif byte in b"{[":
            depth += 1
        else:
            depth -= 1
    return found


def _names_model(token: bytes) -> bool:
    if token == b'"model"':
        return True
    return rb"\u00" in token and len(token) <= 32 and json.loads(token) == "model"
