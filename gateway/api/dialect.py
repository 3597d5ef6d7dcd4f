"""How each API formats the gateway's errors, and how the end of its streams is recognised.

An SDK picks its exception by status and reads the message where its own API puts it, so an error must have the format
of the API that was called. Errors of a back end pass through unchanged and have that format already.

  OPENAI     `{"error": {message, type, param, code}}`; a stream ends with `[DONE]`
  RESPONSES  the same object; in a stream an `error` event whose data also contains the object, as the SDKs raise on it
  MESSAGES   `{"type": "error", "error": {type, message}}`, Anthropic's
  PASSED     OpenAI's; a stream of an unknown format is complete when it ends in good order
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.api import events, stream
from gateway.api.stream import StreamTail
from gateway.errors import GatewayError
from gateway.types import Usage

_SEQUENCE = re.compile(rb'"sequence_number"\s*:\s*(\d{1,9})')
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API's formats."""

    body: Callable[[GatewayError], bytes]
    """Makes the body of an error answer."""
    event: Callable[[GatewayError, bytes], bytes]
    """Makes an error event, given the stream's tail. It begins with a line end, which closes an unfinished event."""
    tail: Callable[[], StreamTail]
    usage: Callable[[bytes], Usage | None]
    finish_reason: Callable[[bytes], str | None]
    clean_end: bool = False
    """Whether a stream that ends in good order is complete, whatever its last event."""


def _openai_body(error: GatewayError) -> bytes:
    return error.body()


def _openai_event(error: GatewayError, seen: bytes) -> bytes:
    return b"\ndata: " + error.body() + b"\n\n"


def _responses_event(error: GatewayError, seen: bytes) -> bytes:
    numbers = _SEQUENCE.findall(seen)
    data = {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
        **error.object(),
    }
    return b"\nevent: error\ndata: " + json.dumps(data).encode() + b"\n\n"


def _anthropic_body(error: GatewayError) -> bytes:
    inner = {"type": _ANTHROPIC_TYPES.get(error.status, "api_error"), "message": error.message}
    return json.dumps({"type": "error", "error": inner}).encode()


def _anthropic_event(error: GatewayError, seen: bytes) -> bytes:
    return b"\nevent: error\ndata: " + _anthropic_body(error) + b"\n\n"


OPENAI = Dialect(_openai_body, _openai_event, StreamTail, stream.find_usage, stream.find_finish_reason)
PASSED = Dialect(_openai_body, _openai_event, StreamTail, stream.find_usage, stream.find_finish_reason, clean_end=True)
RESPONSES = Dialect(_openai_body, _responses_event, events.EventTail, events.find_usage, events.find_finish_reason)
MESSAGES = Dialect(_anthropic_body, _anthropic_event, events.EventTail, events.find_usage, events.find_finish_reason)
