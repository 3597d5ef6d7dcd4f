"""What rows of `gpu_arms` come to: times by class, where requests went, and the rounds put together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gateway.bench.rows import Row
from gateway.bench.summary import percentile

TIMES: dict[str, Callable[[Row], float | None]] = {
    "e2e_ms": lambda row: row.total,
    "ttft_ms": lambda row: row.first,
    "tpot_ms": lambda row: row.tpot,
}

_KEPT = ("tag", "sent", "first", "last", "total", "tokens", "prompt_tokens", "pool", "simulated", "error")


def tell(found: object, file: Path | None) -> None:
    """Writes figures as JSON, to the file or to stdout."""
    text = json.dumps(found, indent=1)
    if file is None:
        print(text)
    else:
        file.write_text(text + "\n", "utf-8")


def figures(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """By class, and of all; a class is the part of the tag before the slash."""
    classes = sorted({_class(row) for row in rows})
    split = {name: [row for row in rows if _class(row) == name] for name in classes}
    return {name: _figures(found) for name, found in {**split, "all": list(rows)}.items()}


def pooled(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rounds of one arm at one rate as one: requests pooled, and each round's mean for the spread."""
    rows = [row for one in rounds for row in one["rows"]]
    return {
        "tokens_per_s": round(fmean(one["tokens_per_s"] for one in rounds), 1),
        "gateway_cpu": round(fmean(one["gateway_cpu"] for one in rounds), 3),
        "regret_s": {name: round(sum(one["regret_s"][name] for one in rounds), 3) for name in rounds[0]["regret_s"]},
        "classes": figures(rows),
        "rounds": [
            {name: row["e2e_ms"]["mean"] if row["e2e_ms"] else None for name, row in one["classes"].items()}
            for one in rounds
        ],
    }


def line(row: Row, counted: bool) -> dict[str, Any]:
    """One request for a file of them, without its text; `parsed` reads it."""
    return {"counted": counted, **{name: getattr(row, name) for name in _KEPT}}


def parsed(found: Mapping[str, Any]) -> Row:
    """The row of a line."""
    return Row(label=str(found["arm"]), **{name: found[name] for name in _KEPT})


def _figures(rows: Sequence[Row]) -> dict[str, Any]:
    good = [row for row in rows if not row.error]
    pools = sorted({row.pool for row in good if row.pool})
    return {
        "requests": len(rows),
        "errors": len(rows) - len(good),
        "first_error": next((row.error for row in rows if row.error), None),
        "ended_early": sum(row.tokens < int(row.tag.partition("/")[2]) for row in good),
        "prompt_tokens": round(fmean(row.prompt_tokens for row in good), 1) if good else None,
        "share": {pool: round(sum(row.pool == pool for row in good) / len(good), 3) for pool in pools},
        **{name: _spread(map(value, good)) for name, value in TIMES.items()},
    }


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Mean, median and 95th percentile in milliseconds; None where there is no value."""
    known = [value * 1000 for value in values if value is not None]
    if not known:
        return None
    made = {"mean": fmean(known), "p50": percentile(known, 0.5), "p95": percentile(known, 0.95)}
    return {name: round(value or 0.0, 2) for name, value in made.items()}


def _class(row: Row) -> str:
    return row.tag.partition("/")[0]
