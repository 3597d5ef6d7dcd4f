"""Picks the few samples we need out of a Prometheus or OpenMetrics text page, at about the cost of splitting it.

Lines are told apart by the bytes before their `{`, looked up in a set, so a 10 MB page of histogram buckets takes tens
of milliseconds. What stands before the value (name and labels) is the same from scrape to scrape: it is parsed once
and remembered. TYPE and HELP lines are not read: they disagree with the samples on some versions (`x` for `x_total`).

Whatever the bytes are, nothing is raised: a line that is not a sample is not seen. Of two lines of one series the
later one holds, also where one is written `x` and the other `x_total`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

OFF_LOOP_BYTES = 262_144
"""A page above this is better read in a thread: it would hold the event loop for more than a millisecond."""

_MAX_KNOWN = 8192
_RESCAN = 16
_MAX_VALUE_BYTES = 64

# Possessive repeats: a broken line fails in one pass, however long it is.
_LABELS = rb'\{(?:[^"\n{}]++|"(?:[^"\\\n]++|\\[^\n])*+")*+'
_HEAD = re.compile(rb"([a-zA-Z_:][\w:]*+)[ \t]*+(" + _LABELS + rb")?")
_LINE = re.compile(rb"([a-zA-Z_:][\w:]*+[ \t]*+(?:" + _LABELS + rb"(?=\}))?)\}?[ \t]*+([-+]?[\w.][-+\w.]*+)(?=\s|$)")
_LABEL = re.compile(rb'([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\\n]++|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Series(Generic[T]):
    """A name with its labels. There is one object for each, so they compare by identity."""

    name: str
    """Without a counter's `_total`."""
    labels: Mapping[str, str]
    meaning: T
    """What the selector's caller made of name and labels."""


Row = tuple[int, bytes, Series[T]]
"""Number of a line, all of it that comes before its value, and what it is."""


class Layout(Generic[T]):
    """Where one back end's page has its samples. Most pages have every line in its old place, with another value.

    A page with another number of lines, or with anything else in a remembered place, is scanned; so is each
    `_RESCAN`th, which bounds how long a sample that took an unwanted line's place could be overlooked.
    """

    __slots__ = ("_lines", "_reads", "_rows")

    def __init__(self) -> None:
        self._lines = -1
        self._reads = 0
        self._rows: list[Row[T]] = []

    def read(self, lines: list[bytes]) -> dict[Series[T], float] | None:
        """The samples, or None where the page must be scanned."""
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
        """What a scan has found. Lines with a timestamp or an exemplar don't end with their value: no layout then."""
        self._lines = lines if all(head.endswith((b"} ", b" ")) for _, head, _ in rows) else -1
        self._rows = rows


class Selector(Generic[T]):
    """Reads the samples of some families. Compile it once, use it for every page; it may be used in threads."""

    def __init__(self, names: Iterable[str], meaning: Callable[[str, Mapping[str, str]], T | None]) -> None:
        """`names` of samples, a counter's without `_total`: it is found with and without it.

        `meaning` is asked once for each series; None drops it.
        """
        self._names = frozenset(names)
        written = {n.encode() + total for n in self._names for total in (b"", b"_total")}
        self._wanted = frozenset(written | {name + b" " for name in written})
        self._meaning = meaning
        self._by_head: dict[bytes, Series[T] | None] = {}
        self._by_labels: dict[tuple[str, frozenset[tuple[str, str]]], Series[T] | None] = {}

    def read(self, page: bytes, layout: Layout[T] | None = None) -> dict[Series[T], float]:
        """The wanted samples in the page's order. Values may be NaN or infinite, as the page said.

        `layout` remembers one back end's pages; use it for no other's, and for one page at a time.
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
        """Looks at every line. `rows` takes where the samples were."""
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
            # Only a page that makes up new labels all the time comes here.
            known.clear()
            self._by_labels.clear()
        return found

    def _bare(self, line: bytes) -> bool:
        return line.split(None, 1)[:1][0] in self._wanted if line.strip() else False

    def _slowly(self, line: bytes) -> tuple[Series[T] | None, float | None]:
        """Any valid line: unknown heads, no labels, timestamps, exemplars."""
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
