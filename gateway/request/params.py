"""Reads the parameters of a request: everything but its texts.

Most requests carry only parameters that say nothing about the answer, apart from the token limit. Their result depends
only on the field names and the limit, and is cached by these.
"""

from __future__ import annotations

from functools import lru_cache
from types import NoneType

from gateway.records import record
from gateway.request import caps, structure
from gateway.request.caps import Caps, Thinking, read_caps, read_needs, read_thinking, read_tool_choice
from gateway.request.keys import shape_key
from gateway.request.structure import Shape, read_structure
from gateway.request.tools import read_tools, required_fields
from gateway.types import Api, Need, ToolChoice

_TELLING = caps.FIELDS | structure.FIELDS | {"tools", "functions", "tool_choice"}
"""Fields whose values matter, apart from the token limits."""
_LIMIT_TYPES = frozenset((int, NoneType))
_KEPT = 1024


@record
class Params:
    """The parameters as read from a body."""

    caps: Caps
    thinking: Thinking
    shape: Shape
    tools: int
    tool_bytes: int
    tool_fields: int
    choice: ToolChoice
    needs: frozenset[Need]
    cap: int | None
    """Minimum of the token limit and the structure's bound, in tokens."""
    floor: int
    """The least number of tokens, no more than `cap`."""
    structure_tokens: int | None
    """Typical length of an answer that has the structure; None without one."""
    labels: int
    """Labels of the structure, or else tokens that are allowed."""
    key: int
    """`shape_key`: hash of the names, the schema and the tools."""


def read_params(data: dict[str, object], api: Api) -> Params:
    """Reads the parameters of a chat-shaped body. Never raises."""
    if data.keys().isdisjoint(_TELLING):
        limits = data.get("max_tokens"), data.get("max_completion_tokens"), data.get("max_output_tokens")
        if _LIMIT_TYPES.issuperset(map(type, limits)):
            return _usual(api, limits, *data)
    return _read(data, api)


@lru_cache(_KEPT)
def _usual(api: Api, limits: tuple[object, ...], *names: str) -> Params:
    """Cached `_read` of a body with these field names, in which only the limits' values matter."""
    data: dict[str, object] = dict.fromkeys(names)
    for name, value in zip(("max_tokens", "max_completion_tokens", "max_output_tokens"), limits, strict=True):
        if name in data:
            data[name] = value
    return _read(data, api)


def _read(data: dict[str, object], api: Api) -> Params:
    own, thinking, shape = read_caps(data, api), read_thinking(data), read_structure(data)
    tools, tool_bytes = read_tools(data.get("tools") or data.get("functions"))
    cap = _cap(own, shape, thinking)
    return Params(
        caps=own,
        thinking=thinking,
        shape=shape,
        tools=tools,
        tool_bytes=tool_bytes,
        tool_fields=required_fields(data.get("tools")),
        choice=read_tool_choice(data, tools),
        needs=read_needs(data, shape.kind, thinking.on),
        cap=cap,
        floor=own.floor if cap is None or own.floor < cap else cap,
        structure_tokens=round(shape.size.typical) if shape.size else None,
        labels=shape.labels or own.allowed_ids,
        key=shape_key(data),
    )


def _cap(own: Caps, shape: Shape, thinking: Thinking) -> int | None:
    """Minimum of the token limit and the structure's bound. The bound does not cover thinking tokens."""
    bound = shape.size.bound if shape.size and not shape.legacy and thinking.on is not True else None
    if own.limit is None or bound is None:
        return bound if own.limit is None else own.limit
    return min(own.limit, bound)
