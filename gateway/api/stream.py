"""What the gateway reads from an answer's bytes as they pass: almost nothing per piece, the rest from the tail.

Per piece: append a reference, and hold back the last line if it is incomplete. Holding costs the client nothing (no
SSE reader acts on half a line) and keeps three promises: an in-band error after a cut starts on a new line, a rewritten
model name is never cut, and neither an error nor the end mark is missed where it is cut. At the end: look for finish
reason and usage in the last few kilobytes.
JSON strings escape their quotes, so an unescaped `"usage":` is always a key and never text of the answer.
"""

from __future__ import annotations

import re
from collections import deque

from gateway.telemetry.spec_decode import find_spec_metrics
from gateway.types import Usage

TAIL_BYTES = 16_384
HOLD_BYTES = 262_144
"""Longer lines are passed on in parts, so that memory stays bounded."""

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"([a-z_]{1,32})"')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,12})')
_COMPLETION = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,12})')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,12})')
BLANK = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""How an event ends."""
GAP = rb"[ \t]*(?:(?:\r\n|\r|\n)data:[ \t]*){0,4}"
"""What may stand between the tokens of an event's JSON, which may go on in another line of data. A few lines, so that a
search takes no longer than its text is long."""
_BEFORE_DONE = re.compile(rb"(?:^|[\r\n])data: ?\Z")
_ERROR = re.compile(
    rb"(?:^(?:\xef\xbb\xbf)?|[\r\n])data:GAP\{GAP"
    rb'"(?:error"(?!GAP:GAPnull)|(?:object|type)"GAP:GAP"error")'.replace(b"GAP", GAP)
)
"""An error event, also as older vLLM and Anthropic's API put it."""


class StreamTail:
    """The end of an event stream, kept by reference; nothing is copied until the stream is over."""

    __slots__ = ("_pieces", "_size", "ending", "error_seen")
    named = False
    """Whether the format has an end event, without which a stream is never complete."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self.error_seen = False
        self.ending = False
        """Whether nothing more is due: the end mark or an error event has come."""

    def feed(self, lines: bytes) -> None:
        """Takes whole lines, as far as they are no longer than `HOLD_BYTES`."""
        pieces = self._pieces
        pieces.append(lines)
        self._size += len(lines)
        while self._size - len(pieces[0]) > TAIL_BYTES:
            self._size -= len(pieces.popleft())
        if b'"error"' in lines and (_ERROR.search(lines) or self._goes_on_with_an_error()):
            self.error_seen = self.ending = True
        elif lines[-3:-2] != b"}" and b"[DONE]" in lines and self.done():
            # Nearly all pieces end with an object and LF, and are not searched.
            self.ending = True

    def _goes_on_with_an_error(self) -> bool:
        """Whether the last piece makes an error of an event that has begun before it."""
        begun = len(self._pieces) > 1 and not self._pieces[-2].endswith(BLANK)
        return begun and _ERROR.search(self.bytes()) is not None

    def bytes(self) -> bytes:
        return b"".join(self._pieces)[-2 * TAIL_BYTES :]

    def done(self) -> bool:
        """Whether `data: [DONE]` has passed. It is the last thing in a whole stream, so the search goes backwards."""
        tail = self.bytes()
        at = len(tail)
        while (at := tail.rfind(b"[DONE]", 0, at)) >= 0:
            if _BEFORE_DONE.search(tail[max(at - 7, 0) : at]):
                return True
        return False


class LineHold:
    """Cuts pieces at line ends: `take` returns whole lines and keeps an incomplete one for the next call."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def take(self, piece: bytes) -> bytes:
        if self._held:
            piece = self._held + piece
            self._held = b""
        if piece[-1:] in (b"\n", b"\r") or len(piece) > HOLD_BYTES:
            return piece
        cut = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        self._held = piece[cut:]
        return piece[:cut]

    def rest(self) -> bytes:
        """What is still held, to be sent at a proper end and dropped after a cut."""
        held, self._held = self._held, b""
        return held


def find_usage(body: bytes) -> Usage | None:
    """The last `usage` object of an answer or of a stream's tail, or None."""
    start = body.rfind(b'"usage":')
    if start < 0:
        return None
    part = body[start : start + 2048]
    prompt, completion = _PROMPT.search(part), _COMPLETION.search(part)
    if not prompt or not completion:
        return None
    cached = _CACHED.search(part)
    return Usage(
        prompt_tokens=int(prompt[1]),
        completion_tokens=int(completion[1]),
        cached_tokens=int(cached[1]) if cached else 0,
        spec=find_spec_metrics(body),
    )


def find_finish_reason(body: bytes) -> str | None:
    """The last finish reason that is not null, or None."""
    start = body.rfind(b'"finish_reason":"')
    if start >= 0 and (exact := _FINISH.match(body, start)):
        return exact[1].decode()
    every = _FINISH.findall(body[-2 * TAIL_BYTES :])
    return every[-1].decode() if every else None
