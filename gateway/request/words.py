"""The Latin words of a text, by C-speed passes over its bytes: the first thing that every look at an ask needs."""

from __future__ import annotations

_KEPT = {*range(0x61, 0x7B), *range(0xE0, 0xF7), *range(0xF8, 0x100), ord("+"), ord("#")}
_WORD_BYTES = bytes(byte if byte in _KEPT else 0x20 for byte in range(256))
"""Keeps what a word may hold (a-z, à-ö, ø-ÿ, + and #), and makes spaces of the rest."""


def word_list(lower: str) -> list[str]:
    """The words of a lower-case text, in order; other scripts hold none."""
    return lower.encode("latin-1", "replace").translate(_WORD_BYTES).decode("latin-1").split()
