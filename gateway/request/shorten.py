"""Makes a short, still valid JSON copy of a large body, so that parsing never blocks the event loop for long.

Parsing 10 MB takes 10 ms or more and holds the interpreter lock, in a thread too. Routing needs only little of it
(names, caps, the start and the end of each text). Therefore:

1. Walk from quote to quote (memchr, about 1 ms for 10 MB) and cut the middle out of every long stretch without a
   quote: base64 images, long documents, lists of token ids. Everything else stays, so the keys are exact.
2. If there are too many quotes (thousands of small messages), keep the first and last 24 KB, joined inside a string
   or between numbers. Several joints are tried; the first copy that parses is used.

The copy is only read. The back end always receives the client's own bytes; each `Cut` maps copy offsets to the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

WHOLE_BYTES = 512 * 1024
"""Bodies up to this size are parsed whole."""
_KEEPS = (8192, 512)
_MAX_STRETCHES = 2500
_WINDOW = 24 * 1024
_MAX_JOINTS = 12
_BACKSLASH, _COMMA, _CLOSE = 92, 44, 93
_LOW_SURROGATES = (b"dc", b"dd", b"de", b"df")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_\\"
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cut:
    """`removed` bytes of the body are missing at offset `at` of the copy."""

    at: int
    removed: int


@dataclass(frozen=True, slots=True)
class Short:
    """A shortened copy and its cuts."""

    view: bytes
    cuts: tuple[Cut, ...]
    hidden_text: int
    """Removed bytes that look like prompt text rather than base64."""


def shorten(raw: bytes, parses: Callable[[bytes], bool]) -> Short | None:
    """The first shortened copy that `parses`; None if none does, and the whole body has to be parsed."""
    for keep in _KEEPS:
        short = _cut_stretches(raw, keep)
        if short is None:
            break
        if len(short.view) <= WHOLE_BYTES:
            return short if parses(short.view) else None
    for short in _joints(raw):
        if parses(short.view):
            return short
    return None


def place_in_body(cuts: tuple[Cut, ...], at: int) -> int:
    """Converts an offset in the copy to the offset in the whole body."""
    return at + sum(cut.removed for cut in cuts if cut.at <= at)


def _cut_stretches(raw: bytes, keep: int) -> Short | None:
    """Cuts the middle out of every long stretch without a quote; None if there are too many quotes."""
    pieces: list[bytes] = []
    cuts: list[Cut] = []
    done = at = made = hidden = 0
    find, size, least = raw.find, len(raw), 2 * keep + 1024
    for _ in range(_MAX_STRETCHES):
        quote = find(b'"', at)
        end = quote if quote >= 0 else size
        if end - at > least:
            a, b = _seam(raw, at + keep), _seam(raw, end - keep)
            if a is not None and b is not None:
                pieces.append(raw[done:a])
                made += a - done
                cuts.append(Cut(made, b - a))
                hidden += 0 if _is_base64(raw[a : a + 256]) else b - a
                done = b
        if quote < 0:
            pieces.append(raw[done:])
            return Short(b"".join(pieces), tuple(cuts), hidden)
        at = quote + 1
    return None


def _seam(raw: bytes, at: int) -> int | None:
    """The next offset from `at` that splits no UTF-8 character, escape or number; None if there is none near."""
    for i in range(at, at + 512):
        byte = raw[i]
        if byte & 0xC0 == 0x80:
            continue
        if byte == _BACKSLASH:
            # An escape that begins here stays whole, unless it is the second half of a surrogate pair.
            if raw[i - 1] != _BACKSLASH and raw[i + 2 : i + 4].lower() not in _LOW_SURROGATES:
                return i
            continue
        if b"\\" in raw[i - 5 : i]:
            continue
        # In a list of numbers only the offset after a comma is safe; in a text any offset is.
        if (raw[i - 1] != _COMMA or raw[i - 2] == _CLOSE) and _is_numbers(raw[i - 24 : i + 24]):
            continue
        return i
    return None


def _is_numbers(sample: bytes) -> bool:
    return not sample.translate(None, b"0123456789, \n\r\t-.[]")


def _is_base64(sample: bytes) -> bool:
    return not sample.translate(None, _BASE64) and b"\\u" not in sample


def _joints(raw: bytes) -> Iterator[Short]:
    """Candidates: the body's first and last 24 KB joined inside a string, at several joints."""
    opens = _open_strings(raw[:_WINDOW])
    tail_start = len(raw) - _WINDOW
    ends: list[int] = []
    at = tail_start
    for _ in range(_MAX_JOINTS):
        seam = _seam(raw, at)
        if seam is not None:
            ends.append(seam)
        quote = raw.find(b'"', at)
        if quote < 0:
            break
        at = quote + 1
    for a in opens:
        for b in ends:
            yield Short(raw[:a] + raw[b:], (Cut(a, b - a),), b - a)


def _open_strings(head: bytes) -> list[int]:
    """Offsets in the last string value at each nesting depth of `head`, at most three, latest first."""
    depth = 0
    found: dict[int, int] = {}
    for match in _TOKEN.finditer(head):
        token = match.group()
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        elif head[match.start() - 2 : match.start()].rstrip()[-1:] == b":":
            found[depth] = match.start() + 1
    order = sorted(found.items(), key=lambda item: -item[1])
    return [at for _, at in order[:3]]
