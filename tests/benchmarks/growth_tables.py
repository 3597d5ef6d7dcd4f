"""The growth benchmark's figures as Markdown tables and as one SVG with its three curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gateway.figures.report import Plot, Series, Table
from gateway.figures.svg import HEIGHT, WIDTH, draw

Found = Mapping[str, Any]
"""One part's figures."""
_TITLE, _LEGEND = 34, 26
_STYLE = (
    "text{fill:#5d6b7a;font:12px sans-serif}.head{fill:#1c2430;font-size:15px;font-weight:600}.grid{stroke:#dde3ea}"
    "polyline{fill:none;stroke:currentColor;stroke-width:2}circle{fill:currentColor}"
    ".c0{color:#2563eb}.c1{color:#d9480f}.key{fill:currentColor}"
)


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.{digits}g}"


def _rows(rows: Sequence[Found], keys: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(number(row.get(key)) for key in keys) for row in rows)


def _table(title: str, found: Found, columns: Mapping[str, str], note: str) -> Table:
    """`columns`: heads by the key of the rows."""
    parameters = ", ".join(f"{key} {value}" for key, value in found["parameters"].items())
    return Table(
        title, tuple(columns.values()), _rows(found["rows"], list(columns)), f"{note}\nParameters: {parameters}."
    )


def _growth(found: Found, key: str) -> str:
    first, last = found["rows"][0][key], found["rows"][-1][key]
    return f"{last / first:.2f} times" if first else "unknown"


def endpoints(found: Found) -> Table:
    columns = {
        "endpoints": "endpoints in each pool", "cpu_us": "CPU us per request", "spread": "its spread",
        "whole_cpu_us": "with background", "background_cpu_ms_per_s": "background, CPU ms per s",
        "requests_per_s": "requests per s",
    }  # fmt: skip
    note = (
        f"From the first row to the last a request costs {_growth(found, 'cpu_us')} as much. Background is probing and "
        "reading the endpoints' metrics; it goes on without requests."
    )
    return _table("CPU per request against endpoints", found, columns, note)


def streams(found: Found) -> Table:
    columns = {
        "streams": "open streams", "cpu_us": "CPU us per request beside them", "spread": "its spread",
        "streams_cpu_ms_per_s": "the streams alone, CPU ms per s", "request_p50_ms": "request p50 ms",
        "request_p99_ms": "request p99 ms", "tokens_share": "share of tokens due",
        "delay_p99_ms": "token delay p99 ms alone", "gap_p99_ms": "gap over pace p99 ms alone",
        "beside_delay_p99_ms": "delay beside requests", "beside_gap_p99_ms": "gap beside requests",
    }  # fmt: skip
    direct, top = found["direct"], found["rows"][-1]["streams"]
    note = (
        f"From the first row to the last a request costs {_growth(found, 'cpu_us')} as much. With {top:,} streams: "
        f"{number(found['kb_per_stream'])} KB of resident memory a stream, {sum(found['errors'].values())} errors; "
        f"straight at the server token delay p99 {number(direct['delay_p99_ms'])} ms, gap over pace p99 "
        f"{number(direct['gap_p99_ms'])} ms."
    )
    if found["left_out"]:
        note += f" Left out, as too few files may be open: {found['left_out']}."
    return _table("CPU per request beside open streams", found, columns, note)


def keys(found: Found) -> Table:
    columns = {
        "templates": "templates seen", "one_us": "one template, us", "any_us": "any template, us",
        "entries": "keys held", "estimated_mb": "MB by its own account", "rss_growth_mb": "resident MB more",
    }  # fmt: skip
    full = found["full_at_templates"]
    note = (
        "CPU microseconds of one estimate and of learning its outcome. Of a template whose answers are known well, the "
        "shipped model is asked once in eight times, which makes one template cheaper than any. "
    )
    if full is None:
        note += "The history was not full."
    else:
        note += (
            f"The history is bounded: after about {full:,} templates ({full * 7:,} keys) it is full and forgets the "
            f"oldest half; the most it held were {found['most_entries']:,} keys."
        )
    return _table("CPU of estimate and learning against learned keys", found, columns, note)


def workers(found: Found) -> Table:
    columns = {
        "workers": "workers", "requests_per_s": "requests per s", "gateway_cpu_us": "gateway CPU us per request",
        "load_cpu_us": "load generator", "server_cpu_us": "static server", "gateway_cores_used": "cores used: gateway",
        "load_cores_used": "load", "server_cores_used": "server", "busiest_share": "busiest process's share",
    }  # fmt: skip
    shared = found["parameters"]["shared_with_load"]
    where = "take part of the same two cores, which allows" if shared else "have cores of their own, which allows"
    note = (
        f"Two workers over one: {number(found['ratio'])} times the requests. Load generator and server {where} "
        f"{number(found['ratio_allowed'])} at most. Requests per CPU second of two over one: "
        f"{number(found['ratio_of_requests_per_cpu_s'])}."
    )
    return _table("Two workers and one on two cores", found, columns, note)


def start(found: Found) -> Table:
    columns = {"median_s": "median s", "least_s": "least", "most_s": "most", "cpu_s": "CPU s"}
    return _table("Start to ready", {**found, "rows": [found]}, columns, "From the command to the first 200 of /ready.")


def memory(found: Found) -> Table:
    more = number(found["growth_after_warmup_mb"])
    note = (
        f"{number(found['rss_before_mb'])} MB before; after the first fifth {more} MB more, "
        f"{number(found['kb_per_1000_requests'])} KB in 1,000 requests: {'' if found['flat'] else 'not '}flat."
    )
    return _table("Memory over requests", found, {"requests": "requests", "rss_mb": "resident MB"}, note)


TABLES = {
    "endpoints": endpoints, "streams": streams, "keys": keys, "workers": workers, "start": start, "memory": memory,
}  # fmt: skip


def tables(outcome: Mapping[str, Any]) -> str:
    """Markdown: where and with what first, a table for each part, then what went wrong."""
    machine = outcome["machine"]
    parts = [
        f"{machine['cores']} cores, {machine['processor']}, Python {machine['python']}. Gateway on one core, load and "
        "static server on another, where not said otherwise; medians of interleaved rounds.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in outcome["versions"].items()) + ".",
    ]
    if outcome["quick"]:
        parts.append("**Quick: a check, not figures to quote.**")
    for name, found in outcome["parts"].items():
        parts.append(TABLES[name](found).markdown())
        parts.append(f"Took {found['took_s']:.0f} s; load average before it {found['load_average_before']:.1f}.")
    errors = {name: found["errors"] for name, found in outcome["parts"].items() if found["errors"]}
    errors |= {name: {why: 1} for name, why in outcome["absent"].items()}
    told = [f"- {name}: {kinds}" for name, kinds in errors.items()]
    parts.append("\n".join(["**Not to be used, as there were errors:**", *told]) if told else "No errors.")
    return "\n\n".join(parts)


def curves(parts: Mapping[str, Found]) -> list[Plot]:
    """The curves of the parts that were measured."""

    def points(name: str, x: str, y: str) -> tuple[tuple[float, float], ...]:
        return tuple((float(row[x]), float(row[y])) for row in parts[name]["rows"])

    made = []
    if "endpoints" in parts:
        line = Series("this gateway", points("endpoints", "endpoints", "cpu_us"))
        made.append(Plot("Endpoints", "endpoints in each of two pools", "CPU us per request", (line,), log_x=True))
    if "streams" in parts:
        line = Series("this gateway", points("streams", "streams", "cpu_us"))
        made.append(Plot("Open streams", "streams held open", "CPU us per request beside them", (line,), log_x=True))
    if "keys" in parts:
        lines = tuple(
            Series(name, points("keys", "templates", key))
            for name, key in (("one template", "one_us"), ("any template seen", "any_us"))
        )
        made.append(Plot("Learned keys", "templates seen", "CPU us per estimate and learning", lines, log_x=True))
    return made


def picture(plots: Sequence[Plot]) -> str:
    """One SVG that needs nothing else, the plots below each other."""
    block = _TITLE + HEIGHT + _LEGEND
    height = block * len(plots)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>What a request costs as things grow</title><style>{_STYLE}</style>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for place, plot in enumerate(plots):
        top = place * block
        parts.append(f'<text class="head" x="16" y="{top + 24}">{escape(plot.title)}</text>')
        # What follows the drawing is a legend in HTML, which has no place here.
        drawn = draw(plot).partition("</svg>")[0] + "</svg>"
        at = f'<svg y="{top + _TITLE}" width="{WIDTH}" height="{HEIGHT}" '
        parts.append(drawn.replace("<svg ", at, 1))
        parts += _legend(plot, top + _TITLE + HEIGHT + 10)
    return "\n".join([*parts, "</svg>", ""])


def _legend(plot: Plot, y: int) -> list[str]:
    return [
        f'<g class="c{i}"><rect class="key" x="{64 + i * 180}" y="{y - 9}" width="10" height="10"/>'
        f'<text x="{80 + i * 180}" y="{y}">{escape(series.name)}</text></g>'
        for i, series in enumerate(plot.series)
    ]
