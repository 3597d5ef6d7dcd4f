"""The report as one HTML page that needs nothing else: tables, inline SVG, light or dark by the reader's setting."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gateway.figures.report import Report, Table
from gateway.figures.svg import draw

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c2430; --dim: #5d6b7a; --rule: #dde3ea; --warn: #9a3412;
  --c0: #2563eb; --c1: #d9480f; --c2: #2b8a3e; --c3: #9c36b5; --c4: #c2255c; --c5: #0b7285; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161c; --ink: #e4e9ef; --dim: #98a6b5; --rule: #2c3540;
  --warn: #ffb38a; --c0: #74a8ff; --c1: #ffa066; --c2: #69db7c; --c3: #da9cf0; --c4: #faa2c1; --c5: #66d9e8; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } .dim, .note { color: var(--dim); }
.warn { color: var(--warn); font-weight: 600; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { border-bottom: 1px solid var(--rule); padding: .3rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; white-space: normal; }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 12px; }
.grid { stroke: var(--rule); } .level { stroke: var(--ink); stroke-dasharray: 2 4; }
polyline { fill: none; stroke: currentColor; stroke-width: 2; } circle, rect { fill: currentColor; }
polyline.published { stroke-dasharray: 6 4; } rect.published { opacity: .45; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 0 2rem; }
figure { margin: 0; } .plots h2 { margin-top: 1rem; }
.legend span { margin-right: 1.2rem; white-space: nowrap; } .legend span::before { content: "\\25A0\\00A0"; }
"""


def page(report: Report, *, stopped: str = "", quick: bool = False) -> str:
    """One report as a whole page. Everything that comes from outside is escaped."""
    return _document(report.title, _parts(report, report.warnings(stopped, quick)))


def book(title: str, intro: str, chapters: Sequence[Report]) -> str:
    """Several reports as one page, with a list of them on top."""
    listed = "".join(f'<li><a href="#{escape(c.name)}">{escape(c.title)}</a></li>' for c in chapters)
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(intro)}</p>", f"<ol>{listed}</ol>"]
    for chapter in chapters:
        parts += [f'<section id="{escape(chapter.name)}">', *_parts(chapter, chapter.warnings("", False)), "</section>"]
    return _document(title, parts)


def _parts(report: Report, warnings: Sequence[str]) -> list[str]:
    parts = [f"<h1>{escape(report.title)}</h1>", f"<p>{escape(report.intro)}</p>"]
    parts += [f'<p class="warn">{escape(warning)}</p>' for warning in warnings]
    if report.findings:
        parts.append("<ul>" + "".join(f"<li>{escape(finding)}</li>" for finding in report.findings) + "</ul>")
    drawn = [(plot.title, svg) for plot in report.plots if (svg := draw(plot))]
    if drawn:
        figures = "".join(f"<div><h2>{escape(title)}</h2><figure>{svg}</figure></div>" for title, svg in drawn)
        parts.append(f'<div class="plots">{figures}</div>')
    return parts + [_table(table) for table in report.tables]


def _document(title: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n"
        "</body></html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )
