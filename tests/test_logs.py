"""The log: one line a request, together with the others' but never after a later line of another kind."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from dataclasses import replace
from random import Random

import pytest

from gateway.logs import JsonFormatter, RequestLines, RequestLog, TextFormatter, _InOrder, _KnownNoise, request_fields
from gateway.types import Api, Decision, Estimate, Features, Outcome, Reason, Result, Task, Usage

OUTCOME = Outcome(request_id="r1", result=Result.OK, status=200, started=1.0, ended=1.25, endpoint="http://vllm-0:8000")

FULL = replace(
    OUTCOME,
    features=Features(api=Api.CHAT, model="m"),
    estimate=Estimate(task=Task.CHAT, output_tokens=10.6, p50=10.0, p90=20.0, confidence=0.5, source="x"),
    decision=Decision(model="m", pool="p", reason=Reason.FASTER),
    usage=Usage(prompt_tokens=3, completion_tokens=11),
    finish_reason="stop",
    sent_upstream=1.0,
    first_byte=1.12346,
)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def made(stream: io.StringIO, formatter: JsonFormatter | TextFormatter) -> RequestLines:
    return RequestLines(stream, formatter, wall=lambda: 86_400.5)


def test_lines_are_written_together(stream: io.StringIO) -> None:
    """Nothing is written before the flush, and then every line is, in order, with the time of its request's end."""
    lines = made(stream, JsonFormatter())
    lines.add(OUTCOME)
    lines.add(replace(OUTCOME, request_id="r2"))
    assert stream.getvalue() == ""
    lines.flush()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["id"], second["id"]) == ("r1", "r2")
    assert first["time"] == "1970-01-02T00:00:00.500Z"
    assert (first["level"], first["logger"], first["message"]) == ("info", "gateway.access", "request")
    assert first["total_ms"] == 250.0
    lines.flush()
    assert len(stream.getvalue().splitlines()) == 2


def test_a_request_s_line_is_as_any_other(stream: io.StringIO) -> None:
    """The short way gives letter for letter what the formatter makes of the same fields."""
    formatter = JsonFormatter()
    for outcome in (OUTCOME, FULL, replace(FULL, request_id='a"b\udc80', error="日本語")):
        record = logging.makeLogRecord({"name": "gateway.access", "levelname": "INFO", "msg": "request"})
        record.created, record.fields = 86_400.5, request_fields(outcome)
        assert formatter.request(86_400.5, outcome) == formatter.format(record) + "\n"
    assert request_fields(FULL)["first_ms"] == 123.5


def test_lines_for_people(stream: io.StringIO) -> None:
    """The text format has the same fields, without those that say nothing."""
    lines = made(stream, TextFormatter())
    lines.add(OUTCOME)
    lines.flush()
    assert stream.getvalue().startswith("1970-01-02T00:00:00.500Z info    request id=r1 result=ok status=200")
    assert "key=" not in stream.getvalue()


def test_other_lines_come_after_those_of_earlier_requests(stream: io.StringIO) -> None:
    """Who reads the log sees what happened in the order in which it happened."""
    lines = made(stream, TextFormatter())
    handler = _InOrder(stream, lines)
    lines.add(OUTCOME)
    handler.emit(logging.makeLogRecord({"msg": "policy reloaded", "levelname": "INFO"}))
    first, second = stream.getvalue().splitlines()
    assert "id=r1" in first
    assert "policy reloaded" in second


def test_many_requests_do_not_wait_for_the_time(stream: io.StringIO) -> None:
    """Memory is bounded: a full list is written at once."""
    lines = made(stream, JsonFormatter())
    for _ in range(1000):
        lines.add(OUTCOME)
    assert len(stream.getvalue().splitlines()) == 1000


def test_failures_are_written_at_once(stream: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    """A back end's failure does not wait, and needs no share."""
    log = RequestLog(lambda: 0.0, Random(1), made(stream, JsonFormatter()))
    with caplog.at_level("INFO", "gateway.access"):
        log.observe(OUTCOME)
        log.observe(replace(OUTCOME, result=Result.BACKEND_ERROR, status=502))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_without_lines_the_standard_library_has_all(caplog: pytest.LogCaptureFixture) -> None:
    """A host program that sets up logging itself gets the requests' lines as records."""
    log = RequestLog(lambda: 1.0, Random(1), None)
    with caplog.at_level("INFO", "gateway.access"):
        log.observe(OUTCOME)
    assert [record.__dict__["fields"]["id"] for record in caplog.records] == ["r1"]


def test_a_line_that_is_no_unicode_is_still_a_line() -> None:
    """Half a surrogate pair, as in a file's name that is not UTF-8, does not stop the log."""
    line = JsonFormatter().format(logging.makeLogRecord({"msg": "no file \udcff", "levelname": "ERROR"}))
    assert json.loads(line)["message"] == "no file \udcff"


class Raw(io.RawIOBase):
    """Keeps what each call of the system would get."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: object) -> int:
        self.writes.append(bytes(memoryview(piece)))  # type: ignore[arg-type]
        return len(self.writes[-1])


def test_workers_do_not_write_into_each_others_lines() -> None:
    """Processes share the log, so that whatever one writes at once is whole lines, and no more than a pipe takes."""
    raw = Raw()
    lines = RequestLines(io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True), JsonFormatter())
    for number in range(200):
        lines.add(replace(OUTCOME, request_id=f"r{number}"))
    lines.flush()
    assert all(write.endswith(b"\n") and len(write) <= 4096 for write in raw.writes)
    assert len(b"".join(raw.writes).splitlines()) == 200
    assert len(raw.writes) < 50


async def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    """A full disk or a closed pipe costs lines: neither the task that writes them nor whoever logs something fails."""

    class Full(io.StringIO):
        broken = True

        def write(self, text: str) -> int:
            if self.broken:
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Full()
    lines = RequestLines(stream, JsonFormatter())
    lines.add(OUTCOME)
    lines.flush()
    stream.broken = False
    lines.add(replace(OUTCOME, request_id="r2"))
    lines.flush()
    assert [json.loads(line)["id"] for line in stream.getvalue().splitlines()] == ["r2"]


def test_requests_that_a_stop_ends_leave_no_traceback() -> None:
    """The server has said how many they are; a real fault is still told."""
    noise = _KnownNoise()

    def complaint(fault: BaseException) -> logging.LogRecord:
        return logging.makeLogRecord({"msg": "Exception in ASGI application\n", "exc_info": (type(fault), fault, None)})

    assert not noise.filter(complaint(asyncio.CancelledError("Task cancelled")))
    assert noise.filter(complaint(KeyError("a fault")))
    assert noise.filter(logging.makeLogRecord({"msg": "Cancel 5 running task(s)"}))
