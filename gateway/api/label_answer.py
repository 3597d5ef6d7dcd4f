"""The two ends of an answer without decoding: the body for vLLM's `/v1/decisions`, and its answer as a chat completion.

The question is of the type `choice`; its input is the request's messages, each a user message, for the API knows no
other role. What comes back names the likeliest option; `usage` counts what the engine did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from gateway.request.labels import LabelQuestion
from gateway.types import Usage

TARGET = b"/v1/decisions"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a completion says besides its label."""

    request_id: str
    created: int
    """Seconds since the epoch."""
    model: str


def decision_body(question: LabelQuestion, served: str) -> bytes:
    """The body that asks; JSON, in ASCII, since a label may hold what is no UTF-8."""
    turns = [turn if isinstance(turn, str) else [_part(text) for text in turn] for turn in question.turns]
    options = question.options
    body: dict[str, object] = {
        "model": served,
        "input": [{"role": "user", "content": content} for content in turns],
        "questions": [
            {
                "type": "choice",
                "instructions": options.instructions,
                "choices": [{"value": label} for label in options.labels],
            }
        ],
    }
    if question.cache_salt is not None:
        body["cache_salt"] = question.cache_salt
    return json.dumps(body).encode()


def read_decision(raw: bytes, question: LabelQuestion) -> tuple[str, Usage]:
    """The message's content and the token counts. Raises ValueError for what is no answer to the question."""
    try:
        data = orjson.loads(raw)
        (answer,) = data["answers"]
        label, used = answer["choice"], data["usage"]
        known = [option for option in question.options.labels if type(option) is type(label) and option == label]
        usage = Usage(
            prompt_tokens=int(used["input_tokens"]),
            completion_tokens=int(used["output_tokens"]),
            cached_tokens=int((used.get("input_tokens_details") or {}).get("cached_tokens") or 0),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no decision: {error!r}") from None
    if not known:
        raise ValueError("the decision is none of the labels")
    return question.options.content(known[0]), usage


def completion(frame: Frame, content: str, usage: Usage) -> bytes:
    """A whole chat completion."""
    message = {"role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return _json({**_head(frame, "chat.completion"), "choices": [choice], "usage": _usage(usage)})


def event_stream(frame: Frame, content: str, usage: Usage | None) -> bytes:
    """The same as a stream of events; with `usage`, its counts come in a chunk of their own, as ever."""
    head = _head(frame, "chat.completion.chunk")
    deltas: tuple[dict[str, str], ...] = ({"role": "assistant", "content": ""}, {"content": content}, {})
    reasons = (None, None, "stop")
    chunks: list[Mapping[str, object]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
        for delta, reason in zip(deltas, reasons, strict=True)
    ]
    if usage is not None:
        chunks.append({**head, "choices": [], "usage": _usage(usage)})
    return b"".join(b"data: " + _json(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def _part(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


def _head(frame: Frame, kind: str) -> dict[str, object]:
    return {"id": f"chatcmpl-{frame.request_id}", "object": kind, "created": frame.created, "model": frame.model}


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
