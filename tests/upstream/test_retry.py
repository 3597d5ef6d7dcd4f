"""Classes of failure, the budget, and what `Retry-After` asks for."""

from __future__ import annotations

import pytest

from gateway.errors import (
    BadUpstreamResponse,
    ConnectFailed,
    ConnectionLost,
    GatewayError,
    NothingAvailable,
    UpstreamTimeout,
)
from gateway.upstream.client import Headers
from gateway.upstream.retry import (
    BUDGET_FLOOR,
    FREE,
    Hung,
    Late,
    Moved,
    Overdue,
    RetryBudget,
    class_of,
    class_of_answer,
    error_code,
    first_event_ended,
    rest_seconds,
)
from tests.stuck import not_stuck


class TestClasses:
    @pytest.mark.parametrize(
        ("error", "found"),
        [
            (ConnectFailed("x"), "connect"),
            (UpstreamTimeout("x", phase="connect"), "connect"),
            (NothingAvailable("x"), "connections"),
            (ConnectionLost("x"), "lost"),
            (BadUpstreamResponse("x"), "lost"),
            (Moved("x"), "moved"),
            (Hung("x", phase="first_byte"), "hung"),
            (Overdue("x", phase="first_byte"), "overdue"),
            (Late("x", phase="first_byte"), "late"),
            (UpstreamTimeout("x", phase="first_byte"), None),
            (UpstreamTimeout("x", phase="idle"), None),
            (UpstreamTimeout("x", phase="total"), None),
        ],
    )
    def test_errors(self, error: GatewayError, found: str | None) -> None:
        """TIMEOUT-04: what never connected is repeated; an engine that may be at work is not asked twice."""
        assert class_of(error) == found

    @pytest.mark.parametrize("status", [200, 400, 401, 404, 408, 422, 429, 500, 501, 504])
    def test_other_statuses_are_relayed(self, status: int) -> None:
        """RETRY-02: a 4xx is the request's own, a 500 may have done half the work."""
        assert class_of_answer(status, b"{}") is None

    @pytest.mark.parametrize("status", [502, 503])
    def test_a_back_end_that_cannot_now_is_left(self, status: int) -> None:
        """vLLM refuses admission with 503 and no Retry-After."""
        assert class_of_answer(status, None) == f"status_{status}"

    def test_what_was_not_sent_is_free(self) -> None:
        """A refused connection costs neither an attempt nor the budget."""
        assert {"connect", "connections"} == FREE


class TestFirstEvent:
    @pytest.mark.parametrize(
        ("first", "code"),
        [
            (b'data: {"error": {"message": "boom", "code": 500}}\n\n', 500),
            (b'data:{"error":{"message":"x","code":"503"}}\n\n', 503),
            (b': keep-alive\n\n: keep-alive\n\ndata: {"error":{"code":400}}\n\n', 400),
            (b'\r\n\r\nevent: error\r\ndata: {"type":"error","error":{"type":"overloaded_error"}}\r\n\r\n', 0),
            (b'data: {"object": "error", "message": "old", "code": 404}\n\n', 404),
            (b'data: { "error" : "scaling" }\n\n', 0),
            (b'data: {"error":{"message":"x","code":200}}\n\n', 0),
            (b'data: {\ndata:   "error": {\ndata:     "code": 500\ndata:   }\ndata: }\n\n', 500),
            (b'data:\r\ndata: {"error":\r\ndata: {"code": 429}}\r\n\r\n', 429),
            (b'event: error\ndata: {"message": "boom", "code": 503}\n\n', 503),
            (b'event: response.failed\ndata: {"response": {"status": "failed"}}\n\n', 0),
            (b'data: {"type": "response.failed", "response": {"error": {"code": "server_error"}}}\n\n', 0),
            (b'event: ping\ndata: {\ndata: "error": null}\n\n', None),
            (b'event: error\n\ndata: {"choices": []}\n\n', None),
            (b'data: {"choices": []}\n\nevent: error\ndata: {"error": {}}\n\n', None),
            (b'data: {"choices":[{"delta":{"content":"{\\"error\\": 1}"}}]}\n\n', None),
            (b'data: {"id":"error"}\n\n', None),
            (b"data: [DONE]\n\n", None),
            (b": comment\n\n", None),
            (b"", None),
        ],
    )
    def test_an_error_object_is_known_by_its_form(self, first: bytes, code: int | None) -> None:
        """SSE-08, ERROR-07: either place of the error object counts; the word alone does not."""
        assert error_code(first) == code

    def test_an_error_that_is_the_requests_own_is_relayed(self) -> None:
        """A 400 that comes in band after 200 would come from every other endpoint too."""
        assert class_of_answer(200, b'data: {"error":{"code":400}}\n\n', 400) is None
        assert class_of_answer(200, b'data: {"error":{"code":500}}\n\n', 500) == "error_event"
        assert class_of_answer(200, b'data: {"error":{}}\n\n', 0) == "error_event"

    def test_an_empty_stream_delivered_nothing(self) -> None:
        """RETRY-08: 200 and then nothing at all is a failure."""
        assert class_of_answer(200, b"") == "lost"

    @pytest.mark.parametrize(
        ("buffer", "ended"),
        [
            (b": keep-alive\n\n", False),
            (b'data: {"er', False),
            (b"data: {}\n", True),
            (b": x\n\ndata: {}\r\n", True),
            (b"event: a\rdata: {}\r", True),
            (b"metadata: x\n\n", False),
            (b'data: {\ndata:  "error": {}\n', False),
            (b'data: {\ndata:  "error": {}\ndata: }\n\n', True),
            (b"data: {\r\rdata: {}\r", True),
            (b"data: [DONE]\n", True),
            (b"\xef\xbb\xbfdata: {}\n", True),
        ],
    )
    def test_it_is_read_whole(self, buffer: bytes, ended: bool) -> None:
        """A cut in the middle of the event, or a comment before it, cannot hide an error."""
        assert first_event_ended(buffer) is ended

    def test_an_event_of_blanks_does_not_hold_the_gateway_up(self) -> None:
        """It is looked at in a time that grows with its length and not with its square."""
        blanks = b"data:" + b" " * 200_000
        with not_stuck():
            assert not first_event_ended(blanks)
            assert first_event_ended(blanks + b"\n\n")


class TestBudget:
    def test_retries_are_a_share_of_recent_requests(self) -> None:
        """RETRY-05: 100 requests allow 20 repeats besides the floor, in any window of ten seconds."""
        budget = RetryBudget(0.2)
        for number in range(100):
            budget.deposit(number / 20)

        assert sum(budget.withdraw(5.0) for _ in range(1000)) == BUDGET_FLOOR + 20
        assert sum(budget.withdraw(30.0) for _ in range(1000)) == BUDGET_FLOOR

    def test_no_share_is_no_retry(self) -> None:
        """`budget: 0` switches repeats off, the floor included."""
        assert not RetryBudget(0.0).withdraw(0.0)


class TestRest:
    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ([(b"retry-after", b"3")], 3.0),
            ([(b"retry-after", b" 0 ")], 0.0),
            ([(b"retry-after", b"86400")], 60.0),
            ([(b"retry-after", b"9" * 400)], 60.0),
            ([(b"retry-after", b"soon")], None),
            ([(b"retry-after", b"-1")], None),
            ([(b"retry-after", "３".encode())], None),
            ([(b"retry-after", b"Wed, 21 Oct 2015 07:28:07 GMT")], None),
            (
                [
                    (b"date", b"Wed, 21 Oct 2015 07:28:00 GMT"),
                    (b"retry-after", b"Wed, 21 Oct 2015 07:28:07 GMT"),
                ],
                7.0,
            ),
            ([], None),
        ],
    )
    def test_retry_after_is_read_and_bounded(self, headers: Headers, seconds: float | None) -> None:
        """A back end cannot switch itself off for a day, and what cannot be read asks for nothing."""
        assert rest_seconds(headers) == seconds
