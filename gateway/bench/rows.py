"""Reads one streamed answer into a `Row`: TTFT, token times, token counts, error.

Tokens are counted by the answer's `usage`, not by chunks: with drafting a chunk may hold several tokens. TTFT is the
time of the first chunk with content, since servers differ in when they send the role.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.telemetry.spec_decode import find_spec_metrics
from gateway.types import PoolKind, Reason, SpecSample
from gateway.upstream.client import Response

_KINDS = (PoolKind.PLAIN, PoolKind.MTP)
_MAX_PAGE = 16_000_000
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request. Times are seconds since it was sent or, in an open loop, since it was due."""

    label: str
    tag: str
    """For grouping by the caller: a task, a language, a cell."""
    sent: float
    """Time of the client's clock."""
    first: float | None = None
    last: float | None = None
    """Time of the last token; the answer may end later."""
    total: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    text: str = ""
    pool: str | None = None
    """The gateway's `x-gateway-pool`."""
    spec: SpecSample | None = None
    simulated: bool = False
    """Whether the answer's `system_fingerprint` is a simulated engine's."""
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """TPOT: seconds per output token after the first."""
        if self.error or self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def speed(self) -> float | None:
        """Output tokens per second over the whole request."""
        return self.tokens / self.total if not self.error and self.total > 0 else None


class Reading:
    """Parses one answer while it arrives."""

    def __init__(self, clock: Callable[[], float], seen: Callable[[float], None] | None = None) -> None:
        """`seen` is called with the arrival time of each chunk that has a choice."""
        self._clock = clock
        self._seen = seen
        self._rest = b""
        self._texts: list[str] = []
        self._first: float | None = None
        self._opened: float | None = None
        self._last: float | None = None
        self._usage: Mapping[str, Any] = {}
        self._pool: str | None = None
        self._reason: str | None = None
        self._spec: SpecSample | None = None
        self._failed: str | None = None
        self._simulated = False

    async def read(self, answer: Response) -> str | None:
        """Reads the whole answer; returns its error, or None."""
        try:
            self._pool, self._reason = (_header(answer, name) for name in (b"x-gateway-pool", b"x-gateway-reason"))
            if answer.status != 200:
                return f"HTTP {answer.status}: {message(await whole(answer))}"
            while piece := await answer.read():
                self._feed(piece, self._clock())
        finally:
            answer.close()
        return self._failed or (None if self._opened is not None else "an answer without tokens")

    def elsewhere(self, pool: str) -> str | None:
        """An error if a gateway was asked for `pool` and chose another one, whose times must not be reported as its."""
        if not pool or (self._reason == Reason.CLIENT and (pool in _KINDS or pool == self._pool)):
            return None
        if self._reason is None:
            return "no x-gateway-reason: not a gateway, or one that keeps its answer headers to itself"
        return f"asked for {pool}, the gateway chose {self._pool} ({self._reason}); are hints of clients allowed?"

    def _feed(self, piece: bytes, now: float) -> None:
        *events, self._rest = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:") and event != b"data: [DONE]":
                self._event(event[5:].strip(), now)

    def _event(self, data: bytes, now: float) -> None:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._failed = "an event that is not JSON"
            return
        if not isinstance(event, dict) or event.get("error"):
            self._failed = message(data)
            return
        if isinstance(used := event.get("usage"), dict):
            self._usage = used
            self._spec = find_spec_metrics(data) or self._spec
        self._simulated = self._simulated or "simulated" in str(event.get("system_fingerprint"))
        for choice in event.get("choices") or ():
            self._opened = self._opened or now
            delta = choice.get("delta") or {}
            text = delta.get("content") or ""
            if text or delta.get("reasoning") or delta.get("reasoning_content") or delta.get("tool_calls"):
                self._first = self._first or now
            # An end-of-turn token has no text but is a token.
            self._last = now
            if self._seen:
                self._seen(now)
            if text:
                self._texts.append(text)

    def row(self, label: str, tag: str, start: float, error: str | None) -> Row:
        first = self._first or self._opened
        return Row(
            label=label,
            tag=tag,
            sent=start,
            first=None if first is None else first - start,
            last=None if self._last is None else self._last - start,
            total=self._clock() - start,
            tokens=int(self._usage.get("completion_tokens") or 0),
            prompt_tokens=int(self._usage.get("prompt_tokens") or 0),
            text="".join(self._texts),
            pool=self._pool,
            spec=self._spec,
            simulated=self._simulated,
            error=error,
        )


def _header(answer: Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in answer.headers if key == name), None)


async def whole(answer: Response) -> bytes:
    """The body, up to a size limit that no relevant page reaches."""
    kept, size = [], 0
    while size < _MAX_PAGE and (piece := await answer.read()):
        kept.append(piece)
        size += len(piece)
    return b"".join(kept)


def message(body: bytes) -> str:
    """The message of an error body, shortened."""
    try:
        inner = json.loads(body).get("error")
        text = inner if isinstance(inner, str) else inner["message"]
    except (ValueError, AttributeError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return " ".join(str(text).split())[:_SHOWN] or "no message"
