"""What travels in a benchmark: request bytes that are never twice the same, canned answers, stamped tokens.

Every request carries its own number at the start and at the end of its text, so that no cache on the way can answer
from memory.
A streaming request says in its text how it wants its answer (`[[tokens=50 interval_us=10000 pad=0]]`), because the
text is the one field that every proxy forwards. Each token carries the time it was written, in nanoseconds of
CLOCK_MONOTONIC, which all processes of a Linux machine share: arrival minus stamp is the delay on the way.
The first token also carries the time at which its request was complete at the upstream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

MODEL = "bench"
SENTINEL = "The answer ends here."
"""Occurs once in the non-streaming answer: a proxy may write the JSON anew but has to keep the text."""
STAMP = re.compile(rb"@(\d{6,20})(?:,(\d{6,20}))?@")
DIRECTIVE = re.compile(rb"\[\[tokens=(\d+) interval_us=(\d+) pad=(\d+)\]\]")
_NONCE = "0" * 16
_IMAGE_FROM = 100_000
"""Bodies of this size and more carry an image, smaller ones text: nobody sends 10 MB of text."""
_WORDS = "the river keeps a slow account of every stone it has moved since the mountain first let it go "


@dataclass(frozen=True, slots=True)
class StreamShape:
    """How the static upstream is to stream."""

    tokens: int
    interval_us: int
    """Microseconds between tokens; 0 is as fast as the reader takes them."""
    pad: int = 0
    """Bytes of filling in each token."""

    def directive(self) -> str:
        return f"[[tokens={self.tokens} interval_us={self.interval_us} pad={self.pad}]]"


@dataclass(frozen=True, slots=True)
class RequestBytes:
    """A request in pieces; its number (16 bytes of decimal digits) goes between each two."""

    pieces: tuple[bytes, ...]

    def parts(self, number: int) -> list[bytes]:
        digits = b"%016d" % number
        parts = [self.pieces[0]]
        for piece in self.pieces[1:]:
            parts += (digits, piece)
        return parts


def chat_body(size: int, shape: StreamShape | None = None) -> bytes:
    """A chat completion's JSON body of `size` bytes (or the smallest possible); its two nonces are zeros."""
    text = f"{_NONCE} {shape.directive() if shape else 'Answer briefly.'} "
    payload: dict[str, object] = {"model": MODEL, "messages": [], "max_tokens": shape.tokens if shape else 64}
    if shape:
        payload["stream"] = True

    def encode(filling: str) -> bytes:
        content: object = f"{text}{filling} {_NONCE}"
        if size >= _IMAGE_FROM:
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + filling}}
            content = [{"type": "text", "text": f"{text}{_NONCE}"}, image]
        payload["messages"] = [{"role": "user", "content": content}]
        return json.dumps(payload).encode()

    missing = max(0, size - len(encode("")))
    pattern = "iVBORw0KGgoAAAANSUhEUgAA" if size >= _IMAGE_FROM else _WORDS
    return encode((pattern * (missing // len(pattern) + 1))[:missing])


def post(host: str, port: int, body: bytes, headers: Mapping[str, str]) -> RequestBytes:
    """A keep-alive POST of `body` to `/v1/chat/completions`, cut at its nonces."""
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"host: {host}:{port}",
        "content-type: application/json",
        "accept: */*",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    first, *others = body.split(_NONCE.encode())
    return RequestBytes(("\r\n".join(lines).encode() + b"\r\n\r\n" + first, *others))


def answer_body() -> bytes:
    """The canned non-streaming completion, about 1 KB as vLLM writes one."""
    text = _WORDS * 4 + SENTINEL
    message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    return json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 220, "completion_tokens": 88, "total_tokens": 308},
        },
        separators=(",", ":"),
    ).encode()


def models_body() -> bytes:
    """`/v1/models` as vLLM answers it, for one model."""
    model = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "vllm", "max_model_len": 131_072}
    return json.dumps({"object": "list", "data": [model]}).encode()


_EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
)
_LAST_EVENTS = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)
_USAGE_EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[],"usage":{"prompt_tokens":220,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)


def token_event(stamp_ns: int, arrived_ns: int | None, pad: bytes) -> bytes:
    """One SSE event with one stamped token; `arrived_ns` only with the first."""
    stamp = b"@%d@" % stamp_ns if arrived_ns is None else b"@%d,%d@" % (stamp_ns, arrived_ns)
    return _EVENT % (stamp + pad)


def closing_events(tokens: int, usage: bool) -> bytes:
    """What follows the last token: the finish reason, the usage if it was asked for, and `[DONE]`."""
    return _LAST_EVENTS + (_USAGE_EVENT % (tokens, 220 + tokens) if usage else b"") + b"data: [DONE]\n\n"


def metrics_page(finished: int, running: int, speculative: bool) -> bytes:
    """The part of vLLM's `/metrics` that routers read; spec_decode counters only where `speculative`."""
    label = f'{{engine="0",model_name="{MODEL}"}}'
    values = {
        "gauge vllm:num_requests_running": running,
        "gauge vllm:num_requests_waiting": 0,
        "gauge vllm:kv_cache_usage_perc": 0.05,
        "counter vllm:prompt_tokens_total": finished * 220,
        "counter vllm:generation_tokens_total": finished * 88,
        "counter vllm:prefix_cache_queries_total": finished * 220,
        "counter vllm:prefix_cache_hits_total": 0,
        "counter vllm:num_preemptions_total": 0,
    }
    if speculative:
        values |= {
            "counter vllm:spec_decode_num_drafts_total": finished * 40,
            "counter vllm:spec_decode_num_draft_tokens_total": finished * 80,
            "counter vllm:spec_decode_num_accepted_tokens_total": finished * 48,
        }
    lines = []
    for named, value in values.items():
        kind, name = named.split(" ")
        lines += [
            f"# TYPE {name.removesuffix('_total') if kind == 'counter' else name} {kind}",
            f"{name}{label} {value}",
        ]
    if speculative:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        lines.append(f"# TYPE {name} counter")
        for position, accepted in enumerate((30, 18)):
            labels = f'{{engine="0",model_name="{MODEL}",position="{position}"}}'
            lines.append(f"{name}_total{labels} {finished * accepted}")
    for name, seconds in (("time_to_first_token", 0.03), ("request_time_per_output_token", 0.01)):
        lines += [
            f"# TYPE vllm:{name}_seconds histogram",
            f'vllm:{name}_seconds_bucket{{engine="0",model_name="{MODEL}",le="+Inf"}} {finished}',
            f"vllm:{name}_seconds_sum{label} {finished * seconds}",
            f"vllm:{name}_seconds_count{label} {finished}",
        ]
    return ("\n".join(lines) + "\n").encode()
