"""Stable 64-bit keys for history: of the system prompt, the prompt template, the line labels, the parameters.

Texts are hashed with blake2b, not `hash()`, so that processes and replicas agree. Prompt texts lose their digits first,
so that a date or a counter in a template does not change its key.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from gateway.records import record

_DIGITS = b"0123456789"
_EDGE = 2000
_FORM_HEAD = 320
_FORM_TAIL = 240
_HEAD = 24
_TAIL = 16
_LABEL = 25
_MAX_LABELS = 12
_NOT_FORM = frozenset(
    {"messages", "prompt", "model", "stream", "stream_options", "user", "seed", "request_id", "metadata"}
)
_MAX_TOOLS = 64
_MASK = (1 << 64) - 1


@record
class TextKeys:
    """Keys of the texts; 0 where the text is empty."""

    system: int
    template: int
    head: int
    tail: int
    form: int


def key_of(text: str) -> int:
    """64-bit key of a short text without its digits; 0 for the empty text."""
    if not text:
        return 0
    raw = text.encode("utf-8", "surrogatepass").translate(None, _DIGITS)
    return int.from_bytes(blake2b(raw, digest_size=8).digest())


_kept_key_of = lru_cache(256)(key_of)
"""`key_of` with a cache, for system prompts: most requests use one of a few."""
_kept_edge_key = lru_cache(1024)(key_of)
"""The same for a turn's first and last words, which the requests of a template have in common."""


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def text_keys(system: str, user: str) -> TextKeys:
    """Keys of the system prompt (of its ends if it is long) and of the last user turn's edges and line labels."""
    if len(system) > 2 * _EDGE:
        system = f"{system[:_EDGE]}\n{len(system) // 1000}\n{system[-_EDGE:]}"
    system_key = _kept_key_of(system)
    head_key, tail_key = _kept_edge_key(user[:_HEAD]), _kept_edge_key(user[-_TAIL:])
    edges = user if len(user) <= _FORM_HEAD + _FORM_TAIL else user[:_FORM_HEAD] + "\n" + user[-_FORM_TAIL:]
    labels = line_labels(edges) if ":" in edges or "：" in edges else []
    # `hash` of a tuple of integers is the same in every process.
    template = hash((system_key, head_key, tail_key)) & _MASK if user else 0
    form = key_of("\x00".join(labels[:_MAX_LABELS])) if labels else 0
    return TextKeys(system_key, template, head_key, tail_key, form)


def thread_key(data: dict[str, object], system_key: int, first: str) -> int:
    """Key of a conversation: from the client's name for it (`session_id`, `user`), else from how it began; 0 if neither
    exists."""
    for name in ("session_id", "user"):
        value = data.get(name)
        if isinstance(value, str) and value:
            return _hash(f"{name}\x00{value[:_EDGE]}")
    return _hash(f"{system_key:x}\x00{first}") if first else 0


def line_labels(text: str) -> list[str]:
    """The labels that begin lines of `text` ("Text:", 「質問：」), in order, without the colon."""
    labels: list[str] = []
    for line in text.split("\n"):
        label = line_label(line)
        if label:
            labels.append(label)
    return labels


def line_label(line: str) -> str:
    """The text before a colon in the first 25 characters of a line; empty if there is none."""
    at = line.find(":", 0, _LABEL)
    if not line.isascii():
        wide = line.find("：", 0, _LABEL)
        at = wide if wide >= 0 and (at < 0 or wide < at) else at
    return line[:at].strip(" \t#>*-") if at > 0 else ""


def shape_key(data: dict[str, object]) -> int:
    """Key of the parameter names, tool names, structure and token limit; not of texts or sampling values."""
    names = sorted(name for name in data if name not in _NOT_FORM)
    tools = data.get("tools")
    if isinstance(tools, list):
        names += [tool_name(tool) for tool in tools[:_MAX_TOOLS]]
    form = data.get("response_format")
    if isinstance(form, dict):
        schema = form.get("json_schema")
        names += [_scalar(form.get("type")), _scalar(schema.get("name")) if isinstance(schema, dict) else ""]
    names.append(_scalar(data.get("max_tokens") or data.get("max_completion_tokens")))
    return _hash("\x00".join(names))


def tool_name(tool: object) -> str:
    """A tool's name; empty if it has none."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return _scalar(name)


def _scalar(value: object) -> str:
    return str(value)[:200] if isinstance(value, str | int | float) else ""
