"""The end of a stream: what counts as its end mark."""

from __future__ import annotations

import pytest

from gateway.api.events import EventTail
from gateway.api.stream import StreamTail
from tests.stuck import not_stuck


@pytest.mark.parametrize(
    ("stream", "whole"),
    [
        (b'data: {"a": 1}\n\ndata: [DONE]\n\n', True),
        (b'data: {"a": 1}\r\n\r\ndata: [DONE]\r\n\r\n', True),
        (b'data: {"a": 1}\r\rdata:[DONE]\r\r', True),
        (b"data: [DONE]\n\n", True),
        (b'data: [DONE]\n\n: said "[DONE]" before\n\n', True),
        (b'data: {"content": "write data: [DONE] at the end"}\n\n', False),
        (b'data: {"content": "[DONE]"}\n\n', False),
        (b"xdata: [DONE]\n\n", False),
        (b"data:\n[DONE]\n\n", False),
        (b'data: {"a": 1}\n\n', False),
        (b"", False),
    ],
)
def test_only_a_line_of_its_own_is_the_end_mark(stream: bytes, whole: bool) -> None:
    """SSE-06: the mark counts as a line, with any line end, and never inside the answer's text."""
    tail = StreamTail()
    tail.feed(stream)
    assert tail.done() is whole


@pytest.mark.parametrize("kind", [StreamTail, EventTail])
@pytest.mark.parametrize("start", [b"data:", b"data: {"])
def test_lines_of_data_without_end_do_not_hold_the_gateway_up(kind: type[StreamTail], start: bytes) -> None:
    """The search for an error takes as long as a piece is long; its square would be a quarter of an hour here."""
    tail = kind()
    with not_stuck():
        tail.feed(start + b"\ndata:" * 200_000 + b'\nid: "error"\n\n')

    assert not tail.error_seen
    assert not tail.done()
