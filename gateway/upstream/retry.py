"""Which failures are worth retrying at another endpoint, and how many retries a pool may have.

    class         what happened                                         retried?
    connect       no connection: nothing was sent                       yes, costs neither an attempt nor the budget
    connections   the endpoint's own connection limit: nothing sent     likewise
    lost          cut, reset or not HTTP, before the answer was due     yes
    status_502/3  the back end says that it cannot now (vLLM refuses
                  admission with 503)                                   yes
    error_event   a 200 stream whose first event is an error            yes, unless its code is a 4xx
    no_answer     a 200 with a page, half an object or an error object  likewise
                  in its body; another status below 400
    moved         the endpoint was found dead while the request waited  yes, without the budget: the dead do no work
    hung          no first byte in time, for this request or any other
                  there: the endpoint counts as dead from then on       yes
    overdue       no first byte in time although others there had
                  theirs, and much later than expected: stuck           yes
    late          likewise, for a stream whatever was expected, and     yes, if another endpoint meanwhile answers
                  for a whole answer that had time for its tokens       others and lets none wait for long
    timeout       likewise, for a whole answer of unknown length        no: the engine may be working on it
    4xx           the request is at fault                               no, and never counted against the endpoint

A retry is safe as long as the client has not received a byte: inference has no side effect but its cost, and the first
connection is closed before the second request is sent, upon which vLLM aborts the first. After the first content byte
nothing is ever retried, because the client would read the beginning twice.

`retry.attempts` bounds the requests that are sent for one client request; the budget bounds them for a pool: if every
request fails for a reason that the next back end may share, back ends would get a multiple of the load (after tower's
`retry/budget`). An endpoint whose breaker is shut does no work, so all of its requests go elsewhere without the budget:
its load is moved, not repeated.
"""

from __future__ import annotations

import asyncio
import re
from email.utils import parsedate_to_datetime

from gateway.errors import BadUpstreamResponse, ConnectFailed, ConnectionLost, NothingAvailable, UpstreamTimeout
from gateway.upstream.client import Headers, Response
from gateway.upstream.window import Window

RETRY_STATUSES = frozenset({502, 503})
BUDGET_SECONDS = 10.0
BUDGET_FLOOR = 10
"""Retries per window that are always allowed, so that a quiet pool can fail over at all."""
LONGEST_REST = 60.0
"""Seconds; a back end whose `Retry-After` asks for more is tried again after this."""
FREE = frozenset({"connect", "connections"})
"""Classes in which nothing was sent."""
WITHOUT_BUDGET = FREE | {"moved"}

OVERDUE = 2.0
"""A request counts as stuck, and not as long, if its limit for the first byte is this many times the expected time."""

FIRST_EVENT_BYTES = 65_536
"""A first event longer than this is taken for content."""

_CODE = re.compile(rb'"code"\s*:\s*"?(\d{3})\b')
_ERROR = re.compile(
    rb'\s*\{\s*"(?:error"\s*:(?!\s*null)|object"\s*:\s*"error"|type"\s*:\s*"(?:error|response\.failed)")'
)
_ERROR_NAMES = frozenset({b"error", b"response.failed"})
"""Events that are errors whatever their data says: vLLM's Responses have the type at the end of it."""
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DATA_LINE = re.compile(rb"(?:^(?:\xef\xbb\xbf)?|[\r\n])data:([^\r\n]*)[\r\n]")
_BLANK_LINE = re.compile(rb"\n\n|\r\n\r\n|\r\r")


class Moved(ConnectionLost):
    """The endpoint was found dead before the first byte, and there is another."""


class Hung(UpstreamTimeout):
    """No first byte in time, by which the endpoint is found hung."""


class Overdue(UpstreamTimeout):
    """No first byte in `OVERDUE` times the time that the request was expected to take, or more."""


class Late(UpstreamTimeout):
    """No first token in time although others there had theirs: the engine's queue is too long for it."""


class RetryBudget:
    """Retries of one pool as a share of its recent requests."""

    __slots__ = ("_window", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self._window = Window(BUDGET_SECONDS)

    def deposit(self, now: float) -> None:
        """Counts a request that is not a retry."""
        self._window.add(now)

    def has(self, now: float) -> bool:
        window = self._window
        window.advance(now)
        return self.share > 0 and window.marked < window.total * self.share + BUDGET_FLOOR

    def withdraw(self, now: float) -> bool:
        """Takes one retry; False where the budget is used up."""
        if not self.has(now):
            return False
        self._window.add(now, count=0, marked=1)
        return True


def class_of(error: Exception | None) -> str | None:
    """The class of a failed attempt that is worth retrying elsewhere; None for one that is not."""
    if error is None:
        return None
    if isinstance(error, ConnectFailed):
        return "connect"
    if isinstance(error, NothingAvailable):
        return "connections"
    if isinstance(error, Moved):
        return "moved"
    if isinstance(error, ConnectionLost | BadUpstreamResponse):
        return "lost"
    if isinstance(error, Hung):
        return "hung"
    if isinstance(error, Overdue):
        return "overdue"
    if isinstance(error, Late):
        return "late"
    if isinstance(error, UpstreamTimeout) and error.phase == "connect":
        return "connect"
    return None


def class_of_answer(status: int, first: bytes | None, fault: int | None = None, *, streams: bool = True) -> str | None:
    """The class of an answer that is worth retrying elsewhere; None for one to relay. `first` is a stream's first
    event, else all of the answer; `fault` is what `error_code` or `verdict` says of it."""
    if status in RETRY_STATUSES:
        return f"status_{status}"
    if first is None or status >= 400:
        return None
    if not first and status == 200:
        return "lost"
    if fault is None or 400 <= fault < 500:
        return None
    return "error_event" if streams else "no_answer"


def error_code(first: bytes) -> int | None:
    """The HTTP status that a stream's first event names if it is an error object (0 where it names none); else None.

    vLLM's error objects carry the status as `code`; older ones at the top level.
    """
    if b"error" not in first and b"response.failed" not in first:
        return None
    data, is_error = b"", False
    for line in _LINE_END.split(first[:65536].removeprefix(b"\xef\xbb\xbf")):
        field, _, value = line.partition(b":")
        if field == b"data":
            data += value + b"\n"
        elif field == b"event":
            is_error = value.strip() in _ERROR_NAMES
        elif not line and data.strip():
            break
        elif not line:
            data, is_error = b"", False
    return status_named(data) if data.strip() and (is_error or _ERROR.match(data)) else None


def status_named(error: bytes) -> int:
    """The HTTP status that an error object names as its `code`; 0 where it names none, or that of a good answer."""
    found = _CODE.search(error)
    status = int(found[1]) if found else 0
    return status if status >= 400 else 0


async def first_event(response: Response, first: bytes, seconds: float | None) -> bytes:
    """Reads on until an event is whole, so that comments and cuts in the middle cannot hide an error.

    Raises UpstreamTimeout after that many seconds, for comments are no sign of a working engine.
    """
    try:
        async with asyncio.timeout(seconds):
            while first and len(first) < FIRST_EVENT_BYTES and not first_event_ended(first):
                piece = await response.read()
                if not piece:
                    break
                first += piece
    except TimeoutError:
        raise UpstreamTimeout("the back end sent no first event in time", phase="first_byte") from None
    return first


def first_event_ended(buffer: bytes) -> bool:
    """Whether the beginning of a stream holds an event's data as far as it tells an error; comments and other fields do
    not count. A line is enough, but for one that only begins an object: that goes on until a blank line."""
    found = _DATA_LINE.search(buffer)
    if found is None:
        return False
    line = found[1].strip()
    return line[:1] != b"{" or line[-1:] == b"}" or _BLANK_LINE.search(buffer, found.end(1)) is not None


def rest_seconds(headers: Headers) -> float | None:
    """Seconds that `Retry-After` asks for, bounded; None if there is none that can be read. A date is relative to the
    answer's own `Date`."""
    fields = dict(headers)
    text = fields.get(b"retry-after", b"").decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_REST)
    try:
        sent, until = (parsedate_to_datetime(value) for value in (fields.get(b"date", b"").decode("latin-1"), text))
        return min(max((until - sent).total_seconds(), 0.0), LONGEST_REST)
    except (ValueError, TypeError, OverflowError):
        return None
