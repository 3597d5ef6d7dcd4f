"""The question for usage, and its traces taken out of the stream again."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.stream import LineHold
from gateway.api.usage import UsageHider, asking_for_usage, leaves_usage_open
from gateway.request.parse import parse_body
from tests.e2e.events import DONE, delta, usage


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"model": "m", "stream": True}, True),
        ({"stream": True, "messages": [{"content": '{"stream_options":1}'}]}, True),
        ({"model": "m"}, False),
        ({"model": "m", "stream": True, "stream_options": {"include_usage": False}}, False),
        ({"model": "m", "stream": True, "stream_options": None}, False),
    ],
)
def test_only_a_stream_that_says_nothing_is_asked(body: dict[str, object], asked: bool) -> None:
    """SSE-04: a client's own word about `stream_options` stands; every other byte is the client's."""
    raw = json.dumps(body, indent=1).encode()
    assert leaves_usage_open(parse_body(raw)) == asked
    if asked:
        sent = asking_for_usage(raw)
        assert json.loads(sent) == {**body, "stream_options": {"include_usage": True}}
        assert sent.replace(b'"stream_options":{"include_usage":true},', b"", 1) == raw


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_a_body_that_is_not_utf8_is_asked_whole(encoding: str) -> None:
    """A body in UTF-16 or UTF-32, which vLLM reads as well, is one body with the question."""
    raw = '{"stream": true, "prompt": "要約"}'.encode(encoding)

    asked = {"stream": True, "prompt": "要約", "stream_options": {"include_usage": True}}
    assert json.loads(asking_for_usage(raw)) == asked


def through(stream: bytes, cuts: list[int]) -> bytes:
    """What a client gets of a stream that arrives cut at these places."""
    hold, hide = LineHold(), UsageHider()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    passed = [hide(hold.take(piece)) for piece in pieces if piece]
    return b"".join(passed) + hide(hold.rest())


@settings(max_examples=400)
@given(st.lists(st.integers(0, 5000), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_nothing_of_the_usage_chunk_is_left_however_the_stream_is_cut(cuts: list[int], end: bytes) -> None:
    """SSE-04: the client gets the very bytes that it would have got without the question."""
    plain = delta("だ") + delta('say "usage":{"choices":[]}') + delta("", "stop") + DONE
    asked = plain.replace(DONE, usage(3, 5) + DONE).replace(b"}]}\n\n", b'}],"usage":null}\n\n')

    assert through(asked.replace(b"\n", end), cuts) == plain.replace(b"\n", end)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    "chunk",
    [
        b'data: {"id":"c","usage":{"prompt_tokens":3,"completion_tokens":5},"choices":[]}\n\n',
        b'data: {"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}\n\n',
    ],
)
def test_other_engines_spaces_and_order_are_hidden_as_well(chunk: bytes, end: bytes) -> None:
    """SSE-04: the chunk may name usage before choices, and JSON may have spaces."""
    plain = delta("だ").replace(b'":', b'": ') + delta("", "stop").replace(b'":', b'": ') + DONE
    asked = plain.replace(DONE, chunk + DONE).replace(b"}]}\n\n", b'}], "usage": null}\n\n')

    assert through(asked.replace(b"\n", end), [40]) == plain.replace(b"\n", end)
