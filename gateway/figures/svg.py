"""Plots as inline SVG: lines over a linear or logarithmic axis, grouped bars. The page styles their classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gateway.figures.report import Plot, Series

WIDTH, HEIGHT = 680, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 52
COLOURS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self._of(self.low), self._of(self.high)
        share = (self._of(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.log else value

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 3 else (1,)
            marks = [m * 10.0**e for e in range(first, last + 1) for m in steps]
            return [mark for mark in marks if self.low <= mark * 1.0001 and mark <= self.high * 1.0001]
        step = _nice((self.high - self.low) / 5 or 1.0)
        count = math.floor(self.high / step + 1e-9)
        return [step * n for n in range(math.ceil(self.low / step - 1e-9), count + 1)]


def draw(plot: Plot) -> str:
    """The plot as one `<svg>` with a legend; empty where no series has a point."""
    points = [p for series in plot.series for p in series.points]
    if not points:
        return ""
    ys = [y for _, y in points] + ([plot.level] if plot.level is not None else [])
    low = min(ys) / 1.2 if plot.log_y else min(0.0, *ys)
    y = Axis(low, max(ys) * 1.08 or 1.0, HEIGHT - BOTTOM, TOP, plot.log_y)
    xs = [x for x, _ in points]
    if plot.categories:
        x = Axis(-0.5, len(plot.categories) - 0.5, LEFT, WIDTH - RIGHT)
    else:
        x = Axis(min(xs), max(xs), LEFT + 8, WIDTH - RIGHT - 8, plot.log_x)
    marks = _bars(plot, x, y) if plot.categories else [m for i, s in enumerate(plot.series) for m in _line(i, s, x, y)]
    level = []
    if plot.level is not None:
        at = y.at(plot.level)
        level = [f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>']
    body = "".join([*_frame(plot, x, y), *level, *marks])
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}">'
        f"<title>{escape(plot.title)}</title>{body}</svg>{_legend(plot.series)}"
    )


def _frame(plot: Plot, x: Axis, y: Axis) -> list[str]:
    parts = []
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    named: list[tuple[float, str]] = [(float(i), name) for i, name in enumerate(plot.categories)]
    named = named or [(value, f"{value:g}") for value in x.ticks()]
    for place, name in named:
        at = x.at(place)
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="axis" x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">')
    parts.append(f"{escape(plot.x)}</text>")
    parts.append(f'<text class="axis" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">')
    parts.append(f"{escape(plot.y)}</text>")
    return parts


def _line(index: int, series: Series, x: Axis, y: Axis) -> list[str]:
    colour = f"c{index % COLOURS}" + (" published" if series.published else "")
    placed = [(x.at(a), y.at(b)) for a, b in series.points]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
    dots = [f'<circle class="{colour}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in placed]
    return [f'<polyline class="{colour}" points="{path}"/>', *dots]


def _bars(plot: Plot, x: Axis, y: Axis) -> list[str]:
    slot = (x.at(1) - x.at(0)) * 0.8
    width = slot / len(plot.series)
    floor = y.at(max(y.low, 0.0))
    parts = []
    for index, series in enumerate(plot.series):
        colour = f"c{index % COLOURS}" + (" published" if series.published else "")
        for place, value in series.points:
            left, top = x.at(place) - slot / 2 + index * width, y.at(value)
            parts.append(
                f'<rect class="{colour}" x="{left:.1f}" y="{min(top, floor):.1f}" width="{width * 0.9:.1f}" '
                f'height="{abs(floor - top):.1f}"><title>{escape(series.name)}: {value:g}</title></rect>'
            )
    return parts


def _legend(series: Sequence[Series]) -> str:
    keys = " ".join(
        f'<span class="c{i % COLOURS}{" published" if s.published else ""}">{escape(s.name)}</span>'
        for i, s in enumerate(series)
    )
    return f'<p class="legend">{keys}</p>'


def _nice(step: float) -> float:
    base = 10.0 ** math.floor(math.log10(step))
    return next(base * m for m in (1.0, 2.0, 5.0, 10.0) if step <= base * m * 1.0001)
