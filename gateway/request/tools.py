"""Measures the tools of a request: their share of the prompt and their required parameters. Bounded; never raises."""

from __future__ import annotations

from functools import lru_cache

import orjson

_MAX_TOOLS = 32
_DEPTH = 6
_KEPT = 64 * 1024
"""Largest serialised size, in bytes, whose result is cached."""


def read_tools(tools: object) -> tuple[int, int]:
    """(number of tools, approximate bytes in the prompt). An empty list counts as no tools."""
    if not isinstance(tools, list) or not tools:
        return 0, 0
    first = tools[:_MAX_TOOLS]
    try:
        raw = orjson.dumps(first)
    except orjson.JSONEncodeError:
        # Values that only Python's parser accepts; too rare to cache.
        size = _bulk(first, _DEPTH)
    else:
        size = _kept_bulk(raw) if len(raw) <= _KEPT else _bulk(first, _DEPTH)
    return len(tools), (size - 2) * len(tools) // len(first)


@lru_cache(64)
def _kept_bulk(raw: bytes) -> int:
    """Cached `_bulk`: agents send the same tools with every request, and this walk dominates the cost."""
    return _bulk(orjson.loads(raw), _DEPTH)


def required_fields(tools: object) -> int:
    """Number of required parameters of the first 32 tools."""
    count = 0
    for tool in tools[:_MAX_TOOLS] if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        parameters = function.get("parameters") if isinstance(function, dict) else None
        required = parameters.get("required") if isinstance(parameters, dict) else None
        count += len(required) if isinstance(required, list) else 0
    return count


def _bulk(node: object, depth: int) -> int:
    """Approximate characters of a JSON value when serialised, down to `depth` levels."""
    if isinstance(node, str):
        return len(node) + 2
    if depth == 0:
        return 8
    if isinstance(node, dict):
        return 2 + sum(len(key) + 5 + _bulk(value, depth - 1) for key, value in node.items())
    if isinstance(node, list):
        return 2 + sum(_bulk(value, depth - 1) for value in node)
    return 4
