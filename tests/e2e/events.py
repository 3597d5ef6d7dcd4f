"""Chunks of a chat stream as vLLM writes them."""

from __future__ import annotations

import json


def delta(text: str, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": counts}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"engine died","type":"InternalServerError","param":null,"code":500}}\n\n'


def data_lines(body: bytes) -> list[bytes]:
    """The `data:` lines of a stream."""
    return [line[5:].strip() for line in body.replace(b"\r", b"\n").split(b"\n") if line.startswith(b"data:")]
