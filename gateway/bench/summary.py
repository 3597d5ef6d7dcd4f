"""Summary statistics of rows: medians, quartiles, percentiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.bench.rows import Row
from gateway.telemetry.spec_decode import Acceptance


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and its quartiles."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None if there is no value."""
        known = sorted(value for value in values if value is not None)
        if not known:
            return None
        return cls(quantile(known, 0.5), quantile(known, 0.25), quantile(known, 0.75), len(known))

    def text(self, digits: int = 1, scale: float = 1.0) -> str:
        """As `39.1 [38.7, 39.4]`; a `scale` of 1000 turns seconds into milliseconds."""
        median, low, high = (f"{value * scale:.{digits}f}" for value in (self.median, self.low, self.high))
        return f"{median} [{low}, {high}]" if self.n > 1 else median

    def as_dict(self, scale: float = 1.0) -> dict[str, Any]:
        return {
            "median": round(self.median * scale, 4),
            "q1": round(self.low * scale, 4),
            "q3": round(self.high * scale, 4),
            "n": self.n,
        }


def quantile(ordered: Sequence[float], q: float) -> float:
    """The quantile of sorted values, 0..1, linearly interpolated."""
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def percentile(values: Iterable[float | None], q: float) -> float | None:
    """The quantile of values in any order; None if there is none."""
    known = sorted(value for value in values if value is not None)
    return quantile(known, q) if known else None


@dataclass(frozen=True, slots=True)
class Side:
    """Statistics of one endpoint's rows, in seconds. Failed rows count only as errors."""

    rows: int
    errors: int
    first_error: str | None
    ttft: Spread | None
    tpot: Spread | None
    total: Spread | None
    speed: Spread | None
    """Output tokens per second of each request."""
    tokens: Spread | None
    characters_per_token: float | None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Side:
        good = [row for row in rows if not row.error]
        tokens = sum(row.tokens for row in good)
        return cls(
            rows=len(rows),
            errors=len(rows) - len(good),
            first_error=next((row.error for row in rows if row.error), None),
            ttft=Spread.of(row.first for row in good),
            tpot=Spread.of(row.tpot for row in good),
            total=Spread.of(row.total for row in good),
            speed=Spread.of(row.speed for row in good),
            tokens=Spread.of(float(row.tokens) for row in good),
            characters_per_token=sum(len(row.text) for row in good) / tokens if tokens else None,
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": self.rows,
            "errors": self.errors,
            "first_error": self.first_error,
            "tok_s": self.speed.as_dict() if self.speed else None,
            "ttft_ms": self.ttft.as_dict(1000) if self.ttft else None,
            "tpot_ms": self.tpot.as_dict(1000) if self.tpot else None,
            "e2e_ms": self.total.as_dict(1000) if self.total else None,
            "tokens": self.tokens.as_dict() if self.tokens else None,
            "characters_per_token": round(self.characters_per_token, 3) if self.characters_per_token else None,
        }


def latencies(rows: Iterable[Row], quantiles: Sequence[int]) -> dict[str, float | None]:
    """`ttft_p50_ms`, ..., `tpot_p99_ms`, ..., `e2e_p99_ms` of the rows without errors."""
    good = [row for row in rows if not row.error]
    kinds: dict[str, list[float | None]] = {
        "ttft": [row.first for row in good],
        "tpot": [row.tpot for row in good],
        "e2e": [row.total for row in good],
    }
    return {
        f"{name}_p{q}_ms": None if (value := percentile(values, q / 100)) is None else round(value * 1000, 3)
        for name, values in kinds.items()
        for q in quantiles
    }


def ratio(over: Spread | None, under: Spread | None) -> float | None:
    """Ratio of two medians; None if one is missing."""
    return over.median / under.median if over and under and under.median else None


def acceptance_dict(found: Acceptance | None) -> dict[str, object] | None:
    return found.as_dict() if found else None


def positions_text(found: Acceptance | None) -> str:
    """Acceptance by position, as `47 % / 24 %`."""
    return " / ".join(f"{rate:.0%}" for rate in found.positions).replace("%", " %") if found else "-"


def change(ratio: float | None) -> str:
    """A ratio as a relative change, as `-14 %`."""
    return f"{ratio - 1:+.0%}".replace("%", " %") if ratio is not None else "-"


def times(ratio: float | None) -> str:
    """A ratio as `2.10x`."""
    return f"{ratio:.2f}x" if ratio is not None else "-"
