"""Draws predicted against actual lengths as an SVG density plot, one panel per protocol.

Both axes are logarithmic. Rows are binned in a grid and a cell's shade shows its count, so that the file stays small
for any amount of data. The diagonal is a correct prediction, the dashed lines a factor of two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from gateway.bench.scores import Judged

_CELLS = 36
_TOP = 4096.0
_SIDE = 288
_LEFT, _ABOVE, _BELOW, _GAP = 54, 34, 46, 40
_TICKS = (1, 4, 16, 64, 256, 1024, 4096)
_SHADES = 5


def scatter(panels: Mapping[str, Sequence[Judged]], threshold: int = 64) -> str:
    """The SVG; `panels` maps each panel's title to its rows."""
    width = len(panels) * (_LEFT + _SIDE) + (len(panels) - 1) * _GAP + 20
    height = _ABOVE + _SIDE + _BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="sans-serif" font-size="11">',
        "<title>Predicted (p50) against actual answer length, tokens</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for i, (title, judged) in enumerate(panels.items()):
        left = _LEFT + i * (_LEFT + _SIDE + _GAP)
        parts.append(f'<g transform="translate({left} {_ABOVE})">{_panel(title, judged, threshold)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, judged: Sequence[Judged], threshold: int) -> str:
    cells = Counter((_cell(j.estimate.p50), _cell(j.tokens)) for j in judged)
    most = max(cells.values(), default=1)
    size = _SIDE / _CELLS
    parts = [f'<text x="0" y="-14" font-size="13" font-weight="bold">{title} ({len(judged):,} rows)</text>']
    parts.append(f'<rect width="{_SIDE}" height="{_SIDE}" fill="#f6f7f9" stroke="#9aa3ad"/>')
    for shade in range(1, _SHADES + 1):
        # One path per shade, so that a cell costs only a few bytes.
        path = "".join(
            f"M{_short(x * size)} {_short(_SIDE - (y + 1) * size)}h{_short(size)}v{_short(size)}h-{_short(size)}z"
            for (x, y), count in sorted(cells.items())
            if _shade(count, most) == shade
        )
        if path:
            parts.append(f'<path d="{path}" fill="#1a5fb4" fill-opacity="{_short(shade / _SHADES)}"/>')
    parts.append(f'<path d="M0 {_SIDE}L{_SIDE} 0" stroke="#333" fill="none"/>')
    off = _short(_place(1.0))
    doubled = f"M0 {_short(_SIDE - _place(1.0))}L{_short(_SIDE - _place(1.0))} 0M{off} {_SIDE}L{_SIDE} {off}"
    parts.append(f'<path d="{doubled}" stroke="#333" stroke-dasharray="3 4" fill="none" opacity=".6"/>')
    line = _short(_place(threshold))
    cross = f"M{line} 0V{_SIDE}M0 {_short(_SIDE - _place(threshold))}H{_SIDE}"
    parts.append(f'<path d="{cross}" stroke="#c01c28" fill="none" opacity=".7"/>')
    for tick in _TICKS:
        at = _place(tick)
        parts.append(f'<text x="{_short(at)}" y="{_SIDE + 15}" text-anchor="middle">{tick}</text>')
        parts.append(f'<text x="-6" y="{_short(_SIDE - at + 4)}" text-anchor="end">{tick}</text>')
    parts.append(f'<text x="{_SIDE // 2}" y="{_SIDE + 34}" text-anchor="middle">predicted tokens (p50)</text>')
    parts.append(f'<text transform="translate(-40 {_SIDE // 2}) rotate(-90)" text-anchor="middle">actual tokens</text>')
    return "\n".join(parts)


def _place(tokens: float) -> float:
    """Pixels from the origin, on the scale log(1 + tokens)."""
    return _SIDE * min(1.0, math.log2(1.0 + max(0.0, tokens)) / math.log2(1.0 + _TOP))


def _cell(tokens: float) -> int:
    return min(_CELLS - 1, int(_place(tokens) / _SIDE * _CELLS))


def _shade(count: int, most: int) -> int:
    """1 for a single row, `_SHADES` for the fullest cell, logarithmic in between."""
    return 1 + round((_SHADES - 1) * math.log(count) / math.log(most)) if most > 1 else 1


def _short(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
