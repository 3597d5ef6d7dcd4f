"""The simulated tokenizer: text cut into word-sized pieces, about as long as a real vocabulary's.

Pieces join back to the text exactly. Ids are given in order of first sight, above the 256 that stand for single bytes,
so any text and any id survives the way there and back within one server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

VOCABULARY = 262144
"""Size that is announced; Gemma's."""

_PIECE = re.compile(
    r" ?[A-Za-z\u00c0-\u024f\u0370-\u052f]{1,8}"
    r"|[\u3040-\u30ff\uac00-\ud7af]{1,2}"
    r"|[\u3400-\u9fff]{1,2}"
    r"|\d"
    r"|\n+"
    r"| {2,8}"
    r"|\s"
    r"|[^\w\s]{1,2}"
    r"|.",
    re.DOTALL,
)
_BYTES = 256


def pieces(text: str) -> list[str]:
    """The text's tokens; joined they give the text."""
    return _PIECE.findall(text)


class Vocabulary:
    """Ids for pieces. Bounded: once full, unknown pieces are spelt as bytes."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in pieces(text):
            known = self._ids.get(piece)
            if known is not None:
                ids.append(known)
            elif len(self._pieces) < VOCABULARY - _BYTES:
                self._ids[piece] = _BYTES + len(self._pieces)
                ids.append(self._ids[piece])
                self._pieces.append(piece)
            else:
                ids.extend(piece.encode("utf-8", "surrogatepass"))
        return ids

    def strings(self, ids: Iterable[int]) -> list[str]:
        """The pieces of ids; an id never given out reads as the replacement character."""
        return [self._string(token) for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, runs of byte ids decoded together."""
        out: list[str] = []
        run = bytearray()
        for token in ids:
            if 0 <= token < _BYTES:
                run.append(token)
                continue
            if run:
                out.append(run.decode("utf-8", "replace"))
                run.clear()
            out.append(self._string(token))
        if run:
            out.append(run.decode("utf-8", "replace"))
        return "".join(out)

    def _string(self, token: int) -> str:
        if 0 <= token < _BYTES:
            return chr(token) if token < 128 else "\ufffd"
        index = token - _BYTES
        return self._pieces[index] if 0 <= index < len(self._pieces) else "\ufffd"
