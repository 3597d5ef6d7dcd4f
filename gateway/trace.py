"""What one request records for its trace: times, and ids, which are made up front for the `traceparent` sent upstream.

It exists only while tracing is on (see `gateway.tracing`). Spans are made from it and the `Outcome` at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RawHeaders = list[tuple[bytes, bytes]]

_CONTEXT = (b"traceparent", b"tracestate")


@dataclass(slots=True)
class Attempt:
    """One try upstream. Times are seconds of the gateway's clock."""

    span_id: int
    endpoint: str
    began: float
    ended: float | None = None
    """None for the last one, which lasts as long as the request."""
    error: str | None = None
    """Class of the failure that was followed by another attempt."""


@dataclass(slots=True, kw_only=True)
class Trace:
    """Mutable on purpose: each hop writes when it was done."""

    trace_id: int
    """128 bits: the client's, or a new one."""
    span_id: int
    """64 bits: of the span of the whole request."""
    sampled: bool
    method: str
    path: str
    wall: int
    """Nanoseconds since the epoch at the request's arrival."""
    clock: Callable[[], float]
    new_id: Callable[[], int]
    parent_id: int | None = None
    """The client's span, where it sent one."""
    state: str = ""
    """`tracestate`, passed on."""
    server: tuple[str, int | None] | None = None
    """The gateway's own address."""
    read: float | None = None
    """When the body was read."""
    estimated: float | None = None
    admitted: float | None = None
    decided: float | None = None
    attempts: list[Attempt] | None = None

    @property
    def id(self) -> str:
        """The trace's id as people and headers write it."""
        return f"{self.trace_id:032x}"

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Labels of an exemplar; None for a trace that nobody can look up."""
        return {"trace_id": self.id, "span_id": f"{self.span_id:016x}"} if self.sampled else None

    def onward(self, headers: RawHeaders, endpoint: str) -> RawHeaders:
        """Begins an attempt. Returns the headers with its context (W3C) in place of the client's."""
        attempt = Attempt(self.new_id(), endpoint, self.clock())
        if self.attempts and self.attempts[-1].ended is None:
            # Asked in turn, and this one had no answer to give.
            self.attempts[-1].ended = attempt.began
        self.attempts = [*(self.attempts or ()), attempt]
        onward = [header for header in headers if header[0] not in _CONTEXT]
        onward.append((b"traceparent", b"00-%032x-%016x-%02x" % (self.trace_id, attempt.span_id, self.sampled)))
        if self.state:
            onward.append((b"tracestate", self.state.encode("latin-1")))
        return onward

    def retried(self, error: str) -> None:
        """The last attempt failed, and another will follow."""
        if self.attempts:
            self.attempts[-1].ended, self.attempts[-1].error = self.clock(), error
