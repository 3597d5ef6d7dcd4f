"""Asking a stream for its token counts where the client did not, and hiding the answer to that question exactly.

Learning needs the counts of every finished answer. For a stream the OpenAI API tells them only when asked
(`stream_options.include_usage`), in one more chunk with no choices, and marks every other chunk with `"usage":null`.
The question is put into the client's bytes without touching any other; the chunk and the marks are taken out again.
A client that says anything about `stream_options` itself has settled the matter. So has a back end that tells usage
unasked (vLLM's `--enable-force-include-usage`): its clients get what they would get without a gateway. Which back
ends do is seen on the first streams of a pool, which are not asked.
"""

from __future__ import annotations

import re

from gateway.request.parse import Body

SILENT_STREAMS = 3
"""Streams of a pool that have to end without usage before it is asked for."""
_QUESTION = b'"stream_options":{"include_usage":true},'
_MARK = b',"usage":null'
_CHUNK = re.compile(rb'data:[^\r\n]*"choices"\s*:\s*\[\s*\][^\r\n]*"usage"\s*:\s*\{[^\r\n]*')
_ENDS = (b"\r\n", b"\n", b"\r")


def leaves_usage_open(body: Body) -> bool:
    """Whether the request is a stream that says nothing about `stream_options`."""
    return body.stream and "stream_options" not in body.data


def asking_for_usage(raw: bytes) -> bytes:
    """A JSON object's bytes that also ask for usage."""
    start = raw.index(b"{") + 1
    return raw[:start] + _QUESTION + raw[start:]


class UsageHabits:
    """Which pools keep usage to themselves unless asked."""

    def __init__(self) -> None:
        self._silent: dict[str, int] = {}
        """Finished streams in a row that told nothing unasked; below zero for a pool that once told."""

    def asks(self, pool: str) -> bool:
        """Whether streams of the pool are to be asked."""
        return self._silent.get(pool, 0) >= SILENT_STREAMS

    def learn(self, pool: str, told: bool) -> None:
        """Takes a finished stream that nobody asked for usage."""
        seen = self._silent.get(pool, 0)
        self._silent[pool] = -1 if told or seen < 0 else seen + 1


class UsageHider:
    """Takes the usage chunk, and the marks of the others, out of whole lines of a stream. One per stream."""

    __slots__ = ("_ends", "_half")

    def __init__(self) -> None:
        self._ends = 0
        """Line ends still to be dropped: the chunk's own and the blank line's."""
        self._half = False
        """The last one dropped was a CR at the edge of a piece; an LF that follows belongs to it."""

    def __call__(self, lines: bytes) -> bytes:
        if self._half and lines:
            lines = lines.removeprefix(b"\n")
            self._half = False
        if self._ends:
            lines = self._drop_ends(lines)
        if b'"usage"' not in lines:
            return lines
        lines = lines.replace(_MARK, b"")
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
