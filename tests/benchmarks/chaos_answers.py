"""What a client of the chaos run sent, what it got, and which of a few verdicts that is. No I/O here.

ok        the whole answer, equal to the one that a back end gives without the gateway
left      the client left on purpose before the end
told      bytes of the answer came, then an error event (or, for a whole answer, the connection was cut within the
          declared length, which every HTTP client reports)
cut       a stream broke off within its chunked framing and without an error event: clients notice, but are not told
passed    a back end's own error answer (a 500), relayed as it was
failed    no byte of an answer: an error status of the gateway, an error event before the first content, a closed
          connection, or nothing at all within the client's patience
short     less than the answer and no word of it: half an answer that looks whole
garbled   more than the answer, or another one: something was delivered twice or mixed up
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson


class Verdict(StrEnum):
    OK = "ok"
    LEFT = "left"
    TOLD = "told"
    CUT = "cut"
    PASSED = "passed"
    FAILED = "failed"
    SHORT = "short"
    GARBLED = "garbled"


@dataclass(frozen=True, slots=True)
class Kind:
    """One form of request. Bodies of a kind are equal, so that its answer is known beforehand."""

    name: str
    prompt: str
    tokens: int
    stream: bool

    def body(self, model: str) -> bytes:
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": self.stream,
        }
        return json.dumps(body, ensure_ascii=False).encode()


@dataclass(slots=True)
class Received:
    """What came back on the wire."""

    status: int | None = None
    """None: no head came."""
    body: bytes = b""
    """Without the transfer coding."""
    whole: bool = False
    """Whether the framing ended as it should."""
    left: bool = False
    first_byte: float | None = None
    ended: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    verdict: Verdict
    note: str = ""


def judge(kind: Kind, received: Received, expected: str) -> Judged:
    """The verdict on one request. `expected` is the text of its answer."""
    if received.left:
        return Judged(Verdict.LEFT)
    if received.status is None:
        return Judged(Verdict.FAILED, received.note or "connection closed without an answer")
    if received.status != 200:
        return _error_status(received)
    return _stream(received, expected) if kind.stream else _whole(received, expected)


def _error_status(received: Received) -> Judged:
    try:
        error = orjson.loads(received.body)["error"]
        note = f"{received.status} {error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return Judged(Verdict.FAILED, f"{received.status} without an error object")
    own = error.get("type") == "InternalServerError"
    return Judged(Verdict.PASSED if own and received.status == 500 else Verdict.FAILED, note)


def _whole(received: Received, expected: str) -> Judged:
    if not received.whole:
        return Judged(Verdict.TOLD if received.body else Verdict.FAILED, received.note or "cut within its length")
    try:
        text = orjson.loads(received.body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return Judged(Verdict.SHORT, "a 200 whose body is no answer")
    return _compared(text, expected)


def _compared(text: str, expected: str) -> Judged:
    if text == expected:
        return Judged(Verdict.OK)
    if expected.startswith(text):
        return Judged(Verdict.SHORT, f"{len(text)} of {len(expected)} characters")
    return Judged(Verdict.GARBLED, f"{len(text)} characters where {len(expected)} were due")


def _stream(received: Received, expected: str) -> Judged:
    text, finished, done, error, openings = _events(received.body)
    if error is not None:
        if not text:
            return Judged(Verdict.FAILED, f"error event before any content: {error}")
        return Judged(Verdict.TOLD if expected.startswith(text) else Verdict.GARBLED, error)
    if openings > 1:
        return Judged(Verdict.GARBLED, f"{openings} beginnings")
    if received.whole and done and finished:
        return _compared(text, expected)
    if received.whole:
        return Judged(Verdict.SHORT, f"a clean end without {'[DONE]' if finished else 'a finish reason'}")
    if not text:
        return Judged(Verdict.FAILED, received.note or "cut before any content")
    return Judged(Verdict.CUT if expected.startswith(text) else Verdict.GARBLED, received.note)


def _events(body: bytes) -> tuple[str, bool, bool, str | None, int]:
    """Text, whether a finish reason and [DONE] came, an error's code, and how often an answer began."""
    pieces: list[str] = []
    finished = done = False
    error: str | None = None
    openings = 0
    for line in body.split(b"\n"):
        if not line.startswith(b"data: "):
            continue
        if line == b"data: [DONE]":
            done = True
            continue
        try:
            event = orjson.loads(line[6:])
        except ValueError:
            # Only the last line of a stream that was cut can be half a line.
            continue
        if "error" in event:
            error = f"{event['error'].get('code')}: {event['error'].get('message')}"
            continue
        for choice in event["choices"]:
            openings += "role" in choice["delta"]
            pieces.append(choice["delta"].get("content") or "")
            finished = finished or choice.get("finish_reason") is not None
    return "".join(pieces), finished, done, error, openings
