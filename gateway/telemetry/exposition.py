"""Extracts selected samples from a Prometheus or OpenMetrics text page, at about the cost of splitting it into lines.

A line is selected by the bytes before its `{`, looked up in a set, so a 10 MB page of histogram buckets takes tens of
milliseconds. The part before the value (name and labels) does not change between scrapes: it is parsed once and
cached. TYPE and HELP lines are ignored, since some versions write them with another name (`x` for `x_total`).

No input raises: a line that is not a valid sample is skipped. If a series occurs twice, the later line wins, even if
one is written `x` and the other `x_total`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

OFF_LOOP_BYTES = 262_144
"""Parse larger pages in a thread: they would block the event loop for more than a millisecond."""

_MAX_KNOWN = 8192
_RESCAN = 16
_MAX_VALUE_BYTES = 64

# Possessive quantifiers: a malformed line of any length fails in one pass.
_LABELS = rb'\{(?:[^"\n{}]++|"(?:[^"\\\n]++|\\[^\n])*+")*+'
_HEAD = re.compile(rb"([a-zA-Z_:][\w:]*+)[ \t]*+(" + _LABELS + rb")?")
_LINE = re.compile(rb"([a-zA-Z_:][\w:]*+[ \t]*+(?:" + _LABELS + rb"(?=\}))?)\}?[ \t]*+([-+]?[\w.][-+\w.]*+)(?=\s|$)")
_LABEL = re.compile(rb'([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\\n]++|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Series(Generic[T]):
    """A metric name with its labels. There is one object per series, so identity is equality."""

    name: str
    """Without a counter's `_total`."""
    labels: Mapping[str, str]
    meaning: T
    """The value of `Selector`'s `meaning` for this name and these labels."""


Row = tuple[int, bytes, Series[T]]
"""(line number, the line up to its value, the series)."""


class Layout(Generic[T]):
    """The line numbers of the samples on one back end's page. Usually only the values change between scrapes.

    A page is scanned in full if its number of lines differs or a remembered line starts differently. Every
    `_RESCAN`th page is scanned too, which limits how long a sample that replaced an unwanted line stays unseen.
    """

    __slots__ = ("_lines", "_reads", "_rows")

    def __init__(self) -> None:
        self._lines = -1
        self._reads = 0
        self._rows: list[Row[T]] = []

    def read(self, lines: list[bytes]) -> dict[Series[T], float] | None:
        """The samples, or None if the page must be scanned."""
        self._reads += 1
        if len(lines) != self._lines or self._reads % _RESCAN == 0:
            return None
        found: dict[Series[T], float] = {}
        for index, head, series in self._rows:
            line = lines[index]
            value = _number(line[len(head) :]) if line.startswith(head) else None
            if value is None:
                return None
            found[series] = value
        return found

    def learn(self, lines: int, rows: list[Row[T]]) -> None:
        """Stores a scan's result. There is no layout of a page without samples, by which nothing could be recognised,
        nor of lines with a timestamp or an exemplar, which do not end with the value."""
        self._lines = lines if rows and all(head.endswith((b"} ", b" ")) for _, head, _ in rows) else -1
        self._rows = rows


class Selector(Generic[T]):
    """Reads the samples of given families. Build it once, use it for every page; thread-safe."""

    def __init__(self, names: Iterable[str], meaning: Callable[[str, Mapping[str, str]], T | None]) -> None:
        """`names` are sample names; a counter's is given without `_total` and matches with and without it.

        `meaning` is called once per series; None drops the series.
        """
        self._names = frozenset(names)
        written = {n.encode() + total for n in self._names for total in (b"", b"_total")}
        self._wanted = frozenset(written | {name + b" " for name in written})
        self._meaning = meaning
        self._by_head: dict[bytes, Series[T] | None] = {}
        self._by_labels: dict[tuple[str, frozenset[tuple[str, str]]], Series[T] | None] = {}

    def read(self, page: bytes, layout: Layout[T] | None = None) -> dict[Series[T], float]:
        """The selected samples in page order. Values may be NaN or infinite.

        `layout` belongs to one back end and must not be used by two threads at once.
        """
        lines = page.split(b"\n")
        if layout is None:
            return self._scan(lines, [])
        if (found := layout.read(lines)) is None:
            rows: list[Row[T]] = []
            found = self._scan(lines, rows)
            layout.learn(len(lines), rows)
        return found

    def _scan(self, lines: list[bytes], rows: list[Row[T]]) -> dict[Series[T], float]:
        """Reads every line. Appends the place of each sample to `rows`."""
        wanted, known = self._wanted, self._by_head
        found: dict[Series[T], float] = {}
        for index, line in enumerate(lines):
            name = line.partition(b"{")[0]
            if name not in wanted and (len(name) < len(line) or line[:1] == b"#" or not self._bare(line)):
                continue
            head, _, number = line.rpartition(b"} ")
            series = known.get(head) if head else None
            value = _number(number) if series else None
            if series is None or value is None:
                series, value = self._slowly(line)
            if series is not None and value is not None:
                found[series] = value
                rows.append((index, line[: len(line) - len(number)], series))
        if len(known) > _MAX_KNOWN:
            # Reached only if a page keeps adding new label values.
            known.clear()
            self._by_labels.clear()
        return found

    def _bare(self, line: bytes) -> bool:
        return line.split(None, 1)[:1][0] in self._wanted if line.strip() else False

    def _slowly(self, line: bytes) -> tuple[Series[T] | None, float | None]:
        """Parses any valid line: new series, no labels, timestamps, exemplars."""
        match = _LINE.match(line)
        if not match:
            return None, None
        head = match[1]
        if head not in self._by_head:
            self._by_head[head] = self._series(head)
        return self._by_head.get(head), _number(match[2])

    def _series(self, head: bytes) -> Series[T] | None:
        match = _HEAD.fullmatch(head)
        if not match:
            return None
        written = match[1].decode()
        name = written if written in self._names else written.removesuffix("_total")
        pairs = _LABEL.findall(match[2] or b"")
        labels = {n.decode(): _unescaped(value.decode(errors="replace")) for n, value in pairs}
        key = name, frozenset(labels.items())
        if key not in self._by_labels:
            meaning = self._meaning(name, labels)
            self._by_labels[key] = None if meaning is None else Series(name, labels, meaning)
        return self._by_labels.get(key)


def _number(text: bytes) -> float | None:
    try:
        return float(text) if len(text) <= _MAX_VALUE_BYTES else None
    except ValueError:
        return None


def _unescaped(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
