"""Sends finished spans as OTLP over HTTP (http/protobuf), by the standard `OTEL_EXPORTER_OTLP_*` variables.

The few messages of OTLP's traces are written here, field by field (opentelemetry/proto/trace/v1/trace.proto), because
the usual package for them cannot be installed beside Envoy's messages: both bring `opentelemetry/proto`, in versions
that exclude each other. Runs in the thread of the SDK's batches.

What the collector refuses temporarily is tried again within the time limit, as OTLP says; then the batch is lost. The
first loss and the recovery are logged.
"""

from __future__ import annotations

import gzip
import logging
import ssl
from collections.abc import Iterable, Mapping, Sequence
from struct import pack
from threading import Event
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger("gateway.tracing")

DEFAULT_ENDPOINT = "http://localhost:4318"
PATH = "/v1/traces"
RETRIED = frozenset({429, 502, 503, 504})
FIRST_PAUSE = 0.5
KNOWN_REMOTE, REMOTE = 0x100, 0x200
"""SpanFlags: whether it is told that the parent is another process's, and that it is; the low bits are W3C's flags."""


class OtlpExporter(SpanExporter):
    """Sends to one collector. Raises ValueError or OSError for unusable variables."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._url = _endpoint(env)
        parts = urlsplit(self._url)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        """The URL without what may be secret: user, password and query."""
        self._seconds = float(_variable(env, "TIMEOUT") or 10_000) / 1000.0
        self._packed = _variable(env, "COMPRESSION") == "gzip"
        self._stopped = Event()
        self._failing = False
        headers = {"content-type": "application/x-protobuf"} | _headers(_variable(env, "HEADERS"))
        if self._packed:
            headers["content-encoding"] = "gzip"
        self._client = httpx.Client(headers=headers, verify=_tls(env), timeout=self._seconds, trust_env=False)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        body = request_of(spans)
        problem = self._send(gzip.compress(body) if self._packed else body)
        if problem and not self._failing:
            log.error("traces are not sent", extra={"fields": {"to": self._shown, "why": problem}})
        elif self._failing and not problem:
            log.info("traces are sent again", extra={"fields": {"to": self._shown}})
        self._failing = problem is not None
        return SpanExportResult.FAILURE if problem else SpanExportResult.SUCCESS

    def _send(self, body: bytes) -> str | None:
        """Posts until it is taken or time is up. Returns why it was not."""
        until, pause = monotonic() + self._seconds, FIRST_PAUSE
        while True:
            try:
                answer = self._client.post(self._url, content=body)
            except httpx.HTTPError as error:
                problem = type(error).__name__
            else:
                if answer.is_success:
                    return None
                problem = f"status {answer.status_code}"
                if answer.status_code not in RETRIED:
                    return problem
                after = answer.headers.get("retry-after", "")
                pause = max(pause, float(after)) if after.isdigit() else pause
            if monotonic() + pause > until or self._stopped.wait(pause):
                return problem
            pause *= 2.0

    def hurry(self) -> None:
        """From now on a batch has one try: the gateway stops."""
        self._stopped.set()

    def shutdown(self) -> None:
        self.hurry()
        self._client.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True


def _variable(env: Mapping[str, str], name: str) -> str:
    """What is said for traces, else for everything."""
    return env.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or env.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _endpoint(env: Mapping[str, str]) -> str:
    if own := env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return own
    return (env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/") + PATH


def _headers(text: str) -> dict[str, str]:
    """`name=value,name=value`, percent-encoded."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name.strip()).lower(): unquote(value.strip()) for name, _, value in pairs}


def _tls(env: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=_variable(env, "CERTIFICATE") or None)
    if certificate := _variable(env, "CLIENT_CERTIFICATE"):
        context.load_cert_chain(certificate, _variable(env, "CLIENT_KEY") or None)
    return context


def request_of(spans: Sequence[ReadableSpan]) -> bytes:
    """ExportTraceServiceRequest for spans of one resource and scope, as a gateway makes them."""
    if not spans:
        return b""
    resource, scope = spans[0].resource, spans[0].instrumentation_scope
    named = _text(1, scope.name) + _text(2, scope.version or "") if scope else b""
    scoped = _message(1, named) + b"".join(_message(2, _span(span)) for span in spans)
    return _message(1, _message(1, _attributes(1, resource.attributes)) + _message(2, scoped))


def _span(span: ReadableSpan) -> bytes:
    context, parent = span.context, span.parent
    status = span.status.status_code.value
    return b"".join(
        (
            _bytes(1, context.trace_id.to_bytes(16)),
            _bytes(2, context.span_id.to_bytes(8)),
            _text(3, context.trace_state.to_header()),
            _bytes(4, parent.span_id.to_bytes(8)) if parent else b"",
            _text(5, span.name),
            # OTLP counts kinds from 1, the SDK from 0.
            _number(6, span.kind.value + 1),
            _fixed(7, span.start_time or 0),
            _fixed(8, span.end_time or 0),
            _attributes(9, span.attributes or {}),
            _message(15, _number(3, status)) if status else b"",
            _fixed32(16, context.trace_flags | KNOWN_REMOTE | (REMOTE if parent and parent.is_remote else 0)),
        )
    )


def _attributes(field: int, attributes: Mapping[str, Any]) -> bytes:
    return b"".join(_message(field, _text(1, name) + _message(2, _value(value))) for name, value in attributes.items())


def _value(value: Any) -> bytes:
    """AnyValue; sequences hold values of one kind."""
    if isinstance(value, str):
        return _bytes(1, _utf8(value))
    if isinstance(value, bool):
        return _tag(2, 0) + _varint(value)
    if isinstance(value, int):
        return _tag(3, 0) + _varint(value)
    if isinstance(value, float):
        return _tag(4, 1) + pack("<d", value)
    if isinstance(value, Iterable):
        return _message(5, b"".join(_message(1, _value(one)) for one in value))
    raise TypeError(f"no attribute: {type(value).__name__}")


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _bytes(field: int, value: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(value)) + value


_message = _bytes


def _utf8(value: str) -> bytes:
    return value.encode("utf-8", "replace")


def _text(field: int, value: str) -> bytes:
    return _bytes(field, _utf8(value)) if value else b""


def _number(field: int, value: int) -> bytes:
    return _tag(field, 0) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _tag(field, 1) + pack("<Q", value)


def _fixed32(field: int, value: int) -> bytes:
    return _tag(field, 5) + pack("<I", value)
