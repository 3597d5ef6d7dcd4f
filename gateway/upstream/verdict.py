"""Whether what a back end sends with a good status is an answer at all.

A proxy in front of an engine answers with its own login or error page, in HTML and with status 200; an engine that dies
can leave half an object with the right length, or nothing; some wrap an error into a 200. The client gets such bytes as
they are if no other back end has better, but they are not what it asked for: they count as the back end's error.

An object that opens, closes and holds usage is taken for the answer, so that the usual one costs a few looks at its
ends. Only one without usage is parsed. What is packed (`content-encoding`) is not looked at.
"""

from __future__ import annotations

import re
from json import loads

from gateway.upstream.client import Headers, Response
from gateway.upstream.retry import error_code, status_named

PARSED_BYTES = 65_536
"""Longer objects without usage, such as lists of log-probabilities, are judged by their ends."""
_NO_ANSWER = 0
_SPACE = b" \t\r\n"
_EVENTS = (b"data:", b"event:", b":", b"id:", b"retry:")
_ENDED = re.compile(rb"(?:\s|:[^\r\n]*[\r\n])*data: ?\[DONE\]")
"""A stream whose first event is its end mark."""
_ERROR = re.compile(rb'\s*\{\s*(?:"error"\s*:\s*[{"]|"object"\s*:\s*"error"|"type"\s*:\s*"error")')


def fault_of(response: Response, body: bytes, *, streams: bool, json: bool) -> int | None:
    """None for an answer, as far as can be told, and for an error status; else the status that an error object names as
    its code, or 0. `body` is what has come of it: of a stream, the first event.

    With `json`, an answer that is no stream has the status 200 and is an object.
    """
    if response.status >= 400:
        return None
    if streams:
        if json and response.ended and b"data:" not in body:
            return _NO_ANSWER
        return _NO_ANSWER if b"[DONE]" in body[:64] and _ENDED.match(body) else error_code(body)
    if not json:
        return _NO_ANSWER if _is_page(response.headers) else None
    if response.status != 200:
        return _NO_ANSWER
    if body[:1] != b"{" and not (body := body.strip(_SPACE)).startswith(b"{"):
        return _unlike_an_object(response.headers, body)
    if b'"error"' in body[:64] and _ERROR.match(body):
        return status_named(body[:PARSED_BYTES])
    if not response.ended:
        return None
    if body[-1:] != b"}" and not body.rstrip(_SPACE).endswith(b"}"):
        return _NO_ANSWER
    return None if b'"usage"' in body[-2048:] or len(body) > PARSED_BYTES or _parses(body) else _NO_ANSWER


def _is_page(headers: Headers) -> bool:
    """Whether the content type is HTML, in which no engine answers on any path."""
    return any(name == b"content-type" and value[:9].lower() == b"text/html" for name, value in headers)


def _unlike_an_object(headers: Headers, body: bytes) -> int | None:
    packed = body and any(name == b"content-encoding" and value != b"identity" for name, value in headers)
    # Engines there are that send a stream's events under another type.
    return None if packed or body.startswith(_EVENTS) else _NO_ANSWER


def _parses(body: bytes) -> bool:
    try:
        loads(body.decode("utf-8", "replace"))
    except ValueError:
        return False
    except RecursionError:
        # Too deep for this parser, which is no fault of the back end's.
        pass
    return True
