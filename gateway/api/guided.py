"""The old `guided_*` fields, translated to the name that vLLM still reads.

vLLM 0.12 removed `guided_choice`, `guided_json`, `guided_regex` and `guided_grammar` and ignores them silently: status
200 and an unconstrained answer. Depending on the policy's `server.guided`, such a request is

  translate   sent with an equivalent `structured_outputs`, inserted after the client's own fields (of a key that the
              client sent too, as null, parsers take the last one); every other byte stays, the old field included.
              The answer names the field in `x-gateway-translated`.
  refuse      answered with 400
  pass        sent as it is

and counted in each case. A request that already has the new field, or a `response_format`, is left alone: there the old
field has no effect. Every vLLM that serves Gemma 4 reads `structured_outputs`, so versions need not be checked.
"""

from __future__ import annotations

import json
from typing import Literal, Protocol

from gateway.errors import BadRequest
from gateway.request.parse import Body, in_utf8, parse_body

Mode = Literal["translate", "refuse", "pass"]

KINDS = ("choice", "json", "regex", "grammar")
_PREFIX = "guided_"
_NAMES = tuple(_PREFIX + kind for kind in KINDS)
_OLD = frozenset(_NAMES)
_WHITESPACE = "guided_whitespace_pattern"


class Counts(Protocol):
    def __call__(self, action: str) -> None: ...


def renewed(raw: bytes, body: Body, mode: Mode, count: Counts) -> tuple[bytes, Body, tuple[str, ...]]:
    """The body to send, its view, and the fields that were translated. Raises BadRequest in the mode `refuse`."""
    found = _old_field(body.data)
    if found is None:
        return raw, body, ()
    count(mode)
    if mode == "refuse":
        instead = f"`structured_outputs: {{{found.removeprefix(_PREFIX)}: ...}}`"
        raise BadRequest(f"`{found}` has no effect in current vLLM; send {instead}", param=found)
    if mode == "pass":
        return raw, body, ()
    # The view of a large body is shortened, so the values come from the whole one.
    data = json.loads(raw) if body.cuts else body.data
    value = data[found]
    if found == "guided_json" and isinstance(value, str):
        value = _parsed(value)
    outputs = {found.removeprefix(_PREFIX): value}
    if data.get(_WHITESPACE):
        outputs["whitespace_pattern"] = data[_WHITESPACE]
    raw = in_utf8(raw)
    at = raw.rindex(b"}")
    raw = raw[:at] + b',"structured_outputs":' + json.dumps(outputs).encode() + raw[at:]
    return raw, parse_body(raw), (found,)


def _old_field(data: dict[str, object]) -> str | None:
    """The field that constrains the answer, if no new one does."""
    if _OLD.isdisjoint(data):
        return None
    if data.get("structured_outputs"):
        return None
    form = data.get("response_format")
    if isinstance(form, dict) and form.get("type") not in (None, "text"):
        return None
    for name in _NAMES:
        if data.get(name):
            return name
    return None


def _parsed(text: str) -> object:
    """A schema that was sent as text; what is no JSON is for the back end to refuse."""
    try:
        return json.loads(text)
    except ValueError:
        return text
