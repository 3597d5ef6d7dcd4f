"""Asking a stream for its token counts where the client did not, and hiding the answer to that question exactly.

Learning needs the counts of every finished answer. For a stream the OpenAI API tells them only when asked
(`stream_options.include_usage`), in one more chunk with no choices, and marks every other chunk with `"usage":null`.
The question is put into the client's bytes without touching any other; the chunk and the marks are taken out again.
A client that says anything about `stream_options` itself has settled the matter.
"""

from __future__ import annotations

import re

from gateway.request.parse import Body

_QUESTION = b'"stream_options":{"include_usage":true},'
_MARK = b',"usage":null'
_CHUNK = re.compile(rb'data:[^\r\n]*"choices"\s*:\s*\[\s*\][^\r\n]*"usage"\s*:\s*\{[^\r\n]*')
_ENDS = (b"\r\n", b"\n", b"\r")


def asking_for_usage(raw: bytes, body: Body) -> bytes | None:
    """The body that also asks for usage; None where there is nothing to ask or the client has settled it."""
    if not body.stream or "stream_options" in body.data:
        return None
    start = raw.index(b"{") + 1
    return raw[:start] + _QUESTION + raw[start:]


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
