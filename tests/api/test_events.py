"""Streams of named events: their end, their counts, how they finished."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.events import EventTail, find_finish_reason, find_usage

DELTA = b'event: content_block_delta\ndata: {"text":"%b"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def tail_of(whole: bytes, size: int) -> EventTail:
    tail = EventTail()
    for at in range(0, len(whole), size):
        tail.feed(whole[at : at + size])
    return tail


@given(st.integers(1, 200), st.integers(0, 3), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_the_end_is_seen_in_any_pieces(size: int, deltas: int, line_end: bytes) -> None:
    """Cut anywhere, with any line end of SSE, and never before the last event is whole."""
    whole = (DELTA % b"x" * deltas + STOP).replace(b"\n", line_end)

    assert tail_of(whole, size).done()
    assert not tail_of(whole[: -len(line_end)], size).done()


def test_a_closing_event_longer_than_the_tail_is_seen() -> None:
    """A Responses stream repeats the whole answer in its last event."""
    last = b'event: response.completed\ndata: {"text":"' + b"x" * 100_000 + b'","usage":{"input_tokens":7,'
    last += b'"input_tokens_details":{"cached_tokens":3},"output_tokens":9}}\n\n'
    tail = tail_of(last, 4096)

    assert tail.done()
    usage = find_usage(tail.bytes())
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 9, 3)


@pytest.mark.parametrize("event", [b"error", b"response.failed"])
def test_an_error_event_is_no_end(event: bytes) -> None:
    """It is the back end's failure, and nothing is added to it."""
    tail = tail_of(b"event: " + event + b"\ndata: {}\n\n", 5)

    assert tail.error_seen
    assert not tail.done()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'"stop_reason":null,"stop_reason": "end_turn"', "stop"),
        (b'"stop_reason":"max_tokens"', "length"),
        (b'"stop_reason":"tool_use"', "tool_calls"),
        (b'"incomplete_details":{"reason":"max_output_tokens"},"status":"incomplete"', "length"),
        (b'"incomplete_details":null,"status":"completed"', "stop"),
        (b"{}", None),
    ],
)
def test_finish_reasons_are_told_in_chats_words(body: bytes, reason: str | None) -> None:
    """What learns from outcomes knows one set of words."""
    assert find_finish_reason(body) == reason


def test_a_usage_that_lacks_a_count_is_passed_over() -> None:
    """The last usage with both counts wins."""
    both = b'{"usage":{"input_tokens":5,"output_tokens":1}}' + b" " * 3000
    usage = find_usage(both + b'{"usage":{"output_tokens":8}}')

    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 1)
    assert find_usage(b'{"usage":null}') is None
