"""Asking for a stream's token counts if the client did not, and hiding exactly what that adds.

Learning needs the counts of every finished answer. For a stream the OpenAI API reports them only on request
(`stream_options.include_usage`), in one more chunk without choices, and marks every other chunk with `"usage":null`.
The field is inserted into the client's bytes without touching the others; the chunk and the marks are removed again.
If the client sets `stream_options` itself, nothing is added. Nor is it for back ends that report usage unasked (vLLM's
`--enable-force-include-usage`): their clients get what they would get without a gateway. Which back ends do so is
learned from the first streams of a pool, for which usage is not requested.
"""

from __future__ import annotations

import re

from gateway.request.parse import Body, in_utf8

SILENT_STREAMS = 3
"""Streams of a pool that must end without usage before it is requested."""
_QUESTION = b'"stream_options":{"include_usage":true},'
_MARK = b',"usage":null'
_MARK_WIDE = re.compile(rb',[ \t]*"usage"[ \t]*:[ \t]*null')
_CHUNK = re.compile(rb'data:(?=[^\r\n]*"choices"[ \t]*:[ \t]*\[[ \t]*\])(?=[^\r\n]*"usage"[ \t]*:[ \t]*\{)[^\r\n]*')
_ENDS = (b"\r\n", b"\n", b"\r")


def leaves_usage_open(body: Body) -> bool:
    """Whether the request is a stream that says nothing about `stream_options`."""
    return body.stream and "stream_options" not in body.data


def asking_for_usage(raw: bytes) -> bytes:
    """A JSON object's bytes that also ask for usage."""
    raw = in_utf8(raw)
    start = raw.index(b"{") + 1
    return raw[:start] + _QUESTION + raw[start:]


class UsageHabits:
    """Which pools report usage only on request."""

    def __init__(self) -> None:
        self._silent: dict[str, int] = {}
        """Consecutive streams that ended without usage; negative for a pool that has reported it unasked."""

    def asks(self, pool: str) -> bool:
        """Whether usage is to be requested from the pool's streams."""
        return self._silent.get(pool, 0) >= SILENT_STREAMS

    def learn(self, pool: str, told: bool) -> None:
        """Takes a finished stream for which usage was not requested; `told` says whether it came all the same."""
        seen = self._silent.get(pool, 0)
        self._silent[pool] = -1 if told or seen < 0 else seen + 1


class UsageHider:
    """Removes the usage chunk, and the marks of the other chunks, from whole lines of a stream. One per stream."""

    __slots__ = ("_ends", "_half")

    def __init__(self) -> None:
        self._ends = 0
        """Line ends still to be dropped: the chunk's own and the blank line's."""
        self._half = False
        """Whether the last one dropped was a CR at the end of a piece; an LF that follows belongs to it."""

    def __call__(self, lines: bytes) -> bytes:
        if self._half and lines:
            lines = lines.removeprefix(b"\n")
            self._half = False
        if self._ends:
            lines = self._drop_ends(lines)
        lines = lines.replace(_MARK, b"")
        if b'"usage"' not in lines:
            return lines
        lines = _MARK_WIDE.sub(b"", lines)
        if (found := _CHUNK.search(lines)) is None:
            return lines
        self._ends = 2
        return lines[: found.start()] + self._drop_ends(lines[found.end() :])

    def _drop_ends(self, lines: bytes) -> bytes:
        while self._ends and lines:
            self._ends -= 1
            end = next((end for end in _ENDS if lines.startswith(end)), None)
            if end is None:
                self._ends = 0
                break
            lines = lines[len(end) :]
            self._half = end == b"\r" and not lines
        return lines
