"""Log lines, as text or JSON, and the one line per request. No credential ever reaches a log, and no prompt's
text unless the policy says `logging: {prompts: true}` (`api/routed.py`).

The request line is made from the `Outcome`, which holds neither. Everything else logs through the standard library;
`configure` is called once, by the process's entry point.

Lines of requests that went well are written together, a few times a second, and before any other line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import TextIO

import orjson

from gateway.types import Outcome, Result

log = logging.getLogger("gateway.access")

FLUSH_SECONDS = 0.25
MOST_PENDING = 1000
"""Lines that may wait to be written."""
BLOCK = 4096
"""Characters per write: what a pipe takes in one piece, and fewer than a text stream splits."""

_HEAD = {"level": "info", "logger": log.name, "message": "request"}
_FAILED = frozenset({Result.BACKEND_ERROR, Result.TRUNCATED, Result.TIMEOUT})


class JsonFormatter(logging.Formatter):
    """One JSON object per line; fields given as `extra={"fields": {...}}` are put at top level."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line.update(fields)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:
            # Half a surrogate pair, as in a file's name that is not UTF-8.
            return json.dumps(line, default=str)

    def request(self, at: float, outcome: Outcome) -> str:
        """The line of a request that ended well at `at` (seconds since the epoch), line feed included."""
        line = {"time": _timestamp(at), **_HEAD, **request_fields(outcome)}
        try:
            return orjson.dumps(line, None, orjson.OPT_APPEND_NEWLINE).decode()
        except TypeError:
            return json.dumps(line, default=str) + "\n"


class TextFormatter(logging.Formatter):
    """`time level message key=value ...`, for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        line = _text_line(record.created, record.levelname.lower(), record.getMessage(), fields)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line

    def request(self, at: float, outcome: Outcome) -> str:
        """As in JSON."""
        return _text_line(at, "info", "request", request_fields(outcome)) + "\n"


def _text_line(at: float, level: str, message: str, fields: object) -> str:
    """One line; a value with spaces, or an empty one, is quoted as in JSON. In one loop: every request has a line."""
    line = f"{_timestamp(at)} {level:7} {message}"
    if isinstance(fields, dict):
        for name, value in fields.items():
            if value is not None:
                text = value if isinstance(value, str) else str(value)
                line += f" {name}={json.dumps(text, ensure_ascii=False) if ' ' in text or not text else text}"
    return line


def _timestamp(seconds: float) -> str:
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class _KnownNoise(logging.Filter):
    """Drops uvicorn's complaints about answers that were cut on purpose, which is how ASGI closes a connection, and
    about each request that it ends itself when the gateway stops; it has logged their number already."""

    def filter(self, record: logging.LogRecord) -> bool:
        ended = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
        return not ended and "returned without completing response" not in str(record.msg)


class RequestLines:
    """The lines of requests that went well, written together."""

    def __init__(
        self, stream: TextIO, formatter: JsonFormatter | TextFormatter, wall: Callable[[], float] = time.time
    ) -> None:
        self._stream = stream
        self._formatter = formatter
        self._wall = wall
        self._writing = threading.Lock()
        self._pending: list[str] = []

    def add(self, outcome: Outcome) -> None:
        # Formatted now, while its data is in the processor's cache; later it would cost half as much again.
        self._pending.append(self._formatter.request(self._wall(), outcome))
        if len(self._pending) >= MOST_PENDING:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        with self._writing, suppress(OSError, ValueError):
            # As with any handler: where the log cannot be written, its lines are lost and nothing else is.
            for block in _blocks(pending):
                self._stream.write(block)
                self._stream.flush()

    async def run(self) -> None:
        """Flushes until cancelled, and then once more."""
        try:
            while True:
                await asyncio.sleep(FLUSH_SECONDS)
                self.flush()
        finally:
            self.flush()


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """The lines, joined up to one write's size: between two writes other workers may write to the same place."""
    block = ""
    for line in lines:
        if block and len(block) + len(line) > BLOCK:
            yield block
            block = ""
        block += line
    yield block


class _InOrder(logging.StreamHandler[TextIO]):
    """A handler that writes the pending request lines before its own."""

    def __init__(self, stream: TextIO, requests: RequestLines) -> None:
        super().__init__(stream)
        self._requests = requests

    def emit(self, record: logging.LogRecord) -> None:
        self._requests.flush()
        super().emit(record)


def configure(format: str, level: str) -> RequestLines:
    """Sets up the process's logging: everything to stderr, in one format. Returns the writer of the requests' lines."""
    formatter = JsonFormatter() if format == "json" else TextFormatter()
    requests = RequestLines(sys.stderr, formatter)
    handler = _InOrder(sys.stderr, requests)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # No line shows the caller's place, thread or process, so they are not collected (logging's "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # httpx logs each probe's URL at info; ours say what matters of a probe.
    logging.getLogger("httpx").setLevel("WARNING")
    # OpenTelemetry warns of a client's malformed `tracestate`, in the client's words.
    logging.getLogger("opentelemetry.trace.span").setLevel("ERROR")
    logging.getLogger("uvicorn.error").addFilter(_KnownNoise())
    return requests


class RequestLog:
    """Writes one line for a share of the requests; failures of a back end are always written, and at once."""

    def __init__(self, share: Callable[[], float], rng: Random, lines: RequestLines | None) -> None:
        """Without `lines`, every line goes through the standard library, to handlers that the host program set up."""
        self._share = share
        self._rng = rng
        self._lines = lines

    def observe(self, outcome: Outcome) -> None:
        failed = outcome.result in _FAILED
        if not failed:
            share = self._share()
            if share <= 0.0 or (share < 1.0 and self._rng.random() >= share):
                return
        level = logging.WARNING if failed else logging.INFO
        if not log.isEnabledFor(level):
            return
        if self._lines and not failed:
            self._lines.add(outcome)
        else:
            log.log(level, "request", extra={"fields": request_fields(outcome)})


def request_fields(outcome: Outcome) -> dict[str, object]:
    """The request's line, field by field. Times are milliseconds.

    `_value_` is what `.value` gives, which on an enum's member is a call of Python.
    """
    decision, estimate, usage, features = outcome.decision, outcome.estimate, outcome.usage, outcome.features
    start, first = outcome.sent_upstream, outcome.first_byte
    fields: dict[str, object] = {
        "id": outcome.request_id,
        "result": outcome.result._value_,
        "status": outcome.status,
        "model": decision.model if decision else outcome.model,
        "pool": decision.pool if decision else None,
        "reason": decision.reason._value_ if decision else None,
        "endpoint": outcome.endpoint,
        "task": estimate.task._value_ if estimate else None,
        "predicted": round(estimate.output_tokens) if estimate else None,
        "input": usage.prompt_tokens if usage else features.input_tokens if features else None,
        "output": usage.completion_tokens if usage else None,
        "finish": outcome.finish_reason,
        "first_ms": _ms(first - start) if first and start else None,
        "total_ms": _ms(outcome.ended - outcome.started),
        "attempts": outcome.attempts,
        "key": outcome.key,
        "error": outcome.error,
    }
    if outcome.trace is not None:
        fields["trace_id"] = outcome.trace.id
    return fields


def _ms(seconds: float) -> float:
    """To a tenth. Rounding to whole numbers costs a fifth of rounding to decimals."""
    return round(seconds * 10_000) / 10
