"""Counts the tokens of texts with tiktoken's o200k_base, offline and in bounded time.

The encoding is built from the table in the `bpe-openai` package, so that it needs no network. Texts are encoded in
pieces of 2,000 characters, because tiktoken takes quadratic time or panics on long runs of one character.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
import logging
import math
from collections.abc import Iterable
from pathlib import Path

import tiktoken

from gateway.request.tokens import rough_tokens

_log = logging.getLogger(__name__)

_PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])  # fmt: skip
"""Split pattern of o200k_base, as published in tiktoken's `openai_public.py`."""
_PIECE = 2000
_MAX_PIECES = 16


class TokenCounter:
    """Counts o200k_base tokens of texts of any length in bounded time; exact up to 32,000 characters."""

    def __init__(self, encoding: tiktoken.Encoding | None) -> None:
        self._encoding = encoding

    @classmethod
    def load(cls) -> TokenCounter:
        """Loads the table in about 0.5 s: call it in a thread at start. If the table cannot be read, logs a warning and
        counts roughly."""
        try:
            return cls(_load_encoding())
        except (OSError, ValueError, LookupError) as exc:
            _log.warning("token counts are rough: the o200k_base table cannot be read (%s)", exc)
            return cls(None)

    def count(self, text: str) -> int:
        """Tokens of a text, with special tokens as plain text. Encodes at most 32,000 characters and scales up."""
        pieces = list(_pieces(text))
        read = sum(map(len, pieces))
        if not read:
            return 0
        if self._encoding is None:
            tokens = sum(rough_tokens(piece) for piece in pieces)
        else:
            tokens = sum(len(self._encoding.encode_ordinary(piece)) for piece in pieces)
        return math.ceil(tokens * len(text) / read)


def _pieces(text: str) -> Iterable[str]:
    """The text in pieces of 2,000 characters; of a long text, 16 pieces spread over it."""
    count = -(-len(text) // _PIECE)
    if count <= _MAX_PIECES:
        return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    stride = (len(text) - _PIECE) / (_MAX_PIECES - 1)
    return (text[round(i * stride) : round(i * stride) + _PIECE] for i in range(_MAX_PIECES))


def _load_encoding() -> tiktoken.Encoding:
    # Importing the package would load its 74 MB library; only its table is needed.
    spec = importlib.util.find_spec("bpe_openai")
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise LookupError("the package bpe-openai is not installed")
    lines = gzip.decompress((Path(places[0]) / "data" / "o200k_base.tiktoken.gz").read_bytes()).splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    return tiktoken.Encoding("o200k_base", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})
