"""An upload on its way through: a multipart form of which only the `model` field is looked at, and never held whole.

The field may stand before or after the file; the SDKs differ in that. What has to be read to find it is kept, up to
`HELD_IN_MEMORY` in memory and beyond that in a temporary file. Once it is found the form goes upstream: first what was
kept, with the model's served name in its place, then the rest as the client sends it. So a form with the model in
front is never stored, and one with the model at the end costs disk and no memory. The size limit holds throughout.

Once bytes beyond the kept ones have gone upstream, the request cannot be sent a second time.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Iterator

from gateway.errors import BadRequest, ConnectionLost

HELD_IN_MEMORY = 262_144
_PIECE = 65_536
_HEADERS = 4_096
"""Bytes of one part's header section; also the longest value that a model's name may have."""
_BOUNDARY = re.compile(rb'boundary=(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_NAMED_MODEL = re.compile(
    rb'^content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|$|\r)', re.IGNORECASE | re.MULTILINE
)


class ModelField:
    """Finds the value of the `model` field in the pieces of a form, wherever they are cut."""

    def __init__(self, content_type: bytes) -> None:
        """Raises BadRequest where the content type names no boundary."""
        found = _BOUNDARY.search(content_type)
        if found is None:
            raise BadRequest("the multipart form names no boundary in its Content-Type")
        self._delimiter = b"--" + (found[1] or found[2])
        self._buffer = b""
        self._offset = 0
        """Where in the form the buffer begins."""
        self.value: bytes | None = None
        self.start = 0
        """Where in the form the value begins."""

    def feed(self, piece: bytes) -> bool:
        """Whether the value is known, with the pieces so far."""
        self._buffer += piece
        while self.value is None and self._step():
            pass
        return self.value is not None

    def _step(self) -> bool:
        """Passes one part's head, or finds the value; False where more bytes are needed."""
        buffer = self._buffer
        at = buffer.find(self._delimiter)
        if at < 0:
            self._drop(max(0, len(buffer) - len(self._delimiter)))
            return False
        end = buffer.find(b"\r\n\r\n", at)
        if end < 0:
            self._drop(at if len(buffer) - at <= _HEADERS else at + len(self._delimiter))
            return len(buffer) - at > _HEADERS
        if not _NAMED_MODEL.search(buffer[at + len(self._delimiter) : end + 2].lstrip(b"\r\n")):
            self._drop(at + len(self._delimiter))
            return True
        close = buffer.find(b"\r\n" + self._delimiter, end + 4)
        if close < 0:
            self._drop(at if len(buffer) - end <= _HEADERS else end)
            return len(buffer) - end > _HEADERS
        self.start, self.value = self._offset + end + 4, buffer[end + 4 : close]
        return True

    def _drop(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._offset += count


class Upload:
    """One form, from the client's pieces to the pieces that go upstream."""

    def __init__(self, pieces: AsyncIterator[bytes], content_type: bytes, declared: int | None = None) -> None:
        """`declared` is the form's length where it is known. Raises BadRequest for a content type without boundary."""
        self._pieces = pieces
        self._declared = declared
        self._field = ModelField(content_type)
        self._held = tempfile.SpooledTemporaryFile(max_size=HELD_IN_MEMORY)  # noqa: SIM115 - closed by `close`
        self._under_way = False
        self.size = 0
        """Bytes that have come so far."""
        self.whole = False
        """Whether the client has sent everything."""

    async def model(self) -> str | None:
        """The form's model, or None where it has none. Raises what the client's pieces raise."""
        async for piece in self._pieces:
            self.size += len(piece)
            self._held.write(piece)
            if self._field.feed(piece) and self.size != self._declared:
                break
        else:
            self.whole = True
        value = self._field.value
        return None if value is None else value.decode("utf-8", "replace")

    def again(self) -> bool:
        """Whether `stream` can be called once more."""
        return not self._under_way

    def stream(self, served: str | None) -> AsyncIterator[bytes]:
        """The form for one attempt, under the model's served name; None leaves it as it is.

        Raises ConnectionLost where an earlier attempt has gone too far.
        """
        if self._under_way:
            raise ConnectionLost("the back end was lost while the upload was under way; it cannot be sent again")
        return self._stream(None if served is None else served.encode())

    async def _stream(self, served: bytes | None) -> AsyncIterator[bytes]:
        field = self._field
        if served is None or field.value is None or served == field.value:
            for piece in self._kept(0):
                yield piece
        else:
            for piece in self._kept(0, field.start):
                yield piece
            yield served
            for piece in self._kept(field.start + len(field.value)):
                yield piece
        if self.whole:
            return
        kept, self._under_way = self.size, True
        async for piece in self._pieces:
            self.size += len(piece)
            yield piece
        self.whole, self._under_way = True, self.size > kept

    def _kept(self, start: int, stop: int | None = None) -> Iterator[bytes]:
        self._held.seek(start)
        left = self.size - start if stop is None else stop - start
        while left > 0 and (piece := self._held.read(min(_PIECE, left))):
            left -= len(piece)
            yield piece

    def close(self) -> None:
        """Frees what was kept. Idempotent."""
        self._held.close()
