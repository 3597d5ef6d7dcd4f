"""An OTLP/HTTP receiver for tests: keeps the spans that a gateway sends, decoded by the field numbers of OTLP.

The numbers are those of opentelemetry/proto: resource.proto, common.proto, trace.proto, trace_service.proto.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from struct import unpack
from typing import Any

import pytest

from tests.answers import text
from tests.stub import Answer, Stub

PACKED = b"\x1f\x8b"
ERROR = 2
SERVER = 2


@dataclass(frozen=True)
class Span:
    """One span as it was sent. Times are nanoseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start: int
    end: int
    status: int
    attributes: dict[str, Any]
    state: str
    """The client's `tracestate`."""
    flags: int


class Collector:
    """What a gateway sent is whole once that gateway has stopped."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub

    @property
    def environment(self) -> dict[str, str]:
        """Points a gateway to it."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.stub.url}

    @property
    def bytes(self) -> bytes:
        return b"".join(self._bodies())

    def resource(self) -> dict[str, Any]:
        (found,) = {tuple(attributes(r).items()) for rows in self._rows() for f, r in fields(rows) if f == 1}
        return dict(found)

    def spans(self) -> list[Span]:
        scopes = (scope for rows in self._rows() for number, scope in fields(rows) if number == 2)
        return [span(row) for scope in scopes for number, row in fields(scope) if number == 2]

    def named(self, name: str) -> list[Span]:
        return sorted((one for one in self.spans() if one.name == name), key=lambda one: one.start)

    def one(self, name: str) -> Span:
        (found,) = self.named(name)
        return found

    def _rows(self) -> list[Any]:
        return [rows for body in self._bodies() for _, rows in fields(body)]

    def _bodies(self) -> Iterator[Any]:
        for request in self.stub.requests:
            yield gzip.decompress(request.body) if request.body.startswith(PACKED) else request.body


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a protobuf message: numbers, or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        assert kind in (1, 2, 5)
        size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
        piece = message[at : at + size]
        assert len(piece) == size
        at += size
        yield number, piece


def span(message: bytes) -> Span:
    found: dict[int, Any] = {3: b"", 4: b"", 15: b"", **dict(fields(message))}
    start, end = (int.from_bytes(found[number], "little") for number in (7, 8))
    assert len(found[1]) == 16
    assert len(found[2]) == 8
    return Span(
        trace_id=found[1].hex(),
        span_id=found[2].hex(),
        parent_id=found[4].hex(),
        name=found[5].decode(),
        kind=found[6],
        start=start,
        end=end,
        status=dict(fields(found[15])).get(3, 0),
        attributes=attributes(message, 9),
        state=found[3].decode(),
        flags=int.from_bytes(found.get(16, b""), "little"),
    )


def attributes(message: bytes, field: int = 1) -> dict[str, Any]:
    pairs = (dict(fields(row)) for number, row in fields(message) if number == field)
    return {pair[1].decode(): _value(pair[2]) for pair in pairs}


def _value(message: bytes) -> Any:
    ((kind, value),) = fields(message)
    if kind == 1:
        return value.decode()
    if kind == 2:
        return bool(value)
    if kind == 4:
        return unpack("<d", value)[0]
    return [_value(row) for _, row in fields(value)] if kind == 5 else value


def environment(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, str]) -> Mapping[str, str]:
    """Sets variables for the SDK, which reads the process's environment, and returns them for `build`."""
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


@asynccontextmanager
async def collector(*first: Answer) -> AsyncIterator[Collector]:
    """Takes everything, after `first` answers to the first requests."""
    async with Stub(text(b"", headers=[("content-type", "application/x-protobuf")])) as stub:
        stub.script.extend(first)
        yield Collector(stub)
