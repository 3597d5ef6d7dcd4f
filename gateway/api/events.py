"""What is learned from the streams and answers of the Responses and the Messages format, which name their events.

Their end is an event of its own (`response.completed`, `message_stop`) and no `[DONE]`. The mark is looked for as
pieces pass and not in the tail, because the closing event of a Responses stream repeats the whole answer.
"""

from __future__ import annotations

import re

from gateway.api.stream import BLANK, GAP, StreamTail
from gateway.types import Usage

_MARK = re.compile(
    rb'(?:^|[\r\n])(?:event: ?|data:GAP\{GAP"type"GAP:GAP")'.replace(b"GAP", GAP)
    + rb'(response\.(?:completed|incomplete|cancelled|failed)|message_stop|error)(?=[\r\n"])'
)
"""By the event's name, or by its data's type: some servers leave the name out, and SDKs read the type."""
_CARRY = 64
"""Bytes of a piece that are looked at again with the next: longer than any mark."""
_INPUT = re.compile(rb'"input_tokens"\s*:\s*(\d{1,12})')
_OUTPUT = re.compile(rb'"output_tokens"\s*:\s*(\d{1,12})')
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*(\d{1,12})')
_STOP = re.compile(rb'"stop_reason"\s*:\s*"([a-z_]{1,32})"')
_INCOMPLETE = re.compile(rb'"incomplete_details"\s*:\s*\{\s*"reason"\s*:\s*"([a-z_]{1,32})"')
_STATUS = re.compile(rb'"status"\s*:\s*"completed"')
_CHAT_WORDS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "tool_use": "tool_calls",
}
_USAGE_BYTES = 2048


class EventTail(StreamTail):
    """A stream of named events. It is over once its end mark's event has come whole."""

    __slots__ = ("_carry", "_marked")
    named = True

    def __init__(self) -> None:
        super().__init__()
        self._carry = b"\n"
        self._marked = False

    def feed(self, lines: bytes) -> None:
        super().feed(lines)
        seen = self._carry + lines
        for mark in _MARK.findall(seen):
            if mark in (b"error", b"response.failed"):
                self.error_seen = self.ending = True
            else:
                self._marked = True
        self._carry = seen[-_CARRY:]
        if self._marked and self.done():
            self.ending = True

    def done(self) -> bool:
        return self._marked and self.bytes().endswith(BLANK)


def find_usage(body: bytes) -> Usage | None:
    """The last `usage` of an answer or of a stream's tail that names both counts, or None."""
    at = len(body)
    while (at := body.rfind(b'"usage":', 0, at)) >= 0:
        part = body[at : at + _USAGE_BYTES]
        given, made = _INPUT.search(part), _OUTPUT.search(part)
        if given and made:
            cached = _CACHED.search(part)
            return Usage(
                prompt_tokens=int(given[1]),
                completion_tokens=int(made[1]),
                cached_tokens=int(cached[1]) if cached else 0,
            )
    return None


def find_finish_reason(body: bytes) -> str | None:
    """How the answer ended, in chat's words (`stop`, `length`, `tool_calls`), or None."""
    if found := [*_STOP.findall(body), *_INCOMPLETE.findall(body)]:
        word: str = found[-1].decode()
        return _CHAT_WORDS.get(word, word)
    return "stop" if _STATUS.search(body) else None
