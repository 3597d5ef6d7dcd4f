"""Reports engines that slow each other, with the advice to declare them as one `slice` and to cap it.

The gateway changes nothing by itself. In the policy, endpoints with the same `slice` share a GPU, and the slice's
`in_flight` caps them together. MIG slices are isolated and should not show up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.telemetry.advice import Advice, Code, Severity
from gateway.telemetry.neighbours import Slowing


@dataclass(frozen=True, slots=True)
class Seat:
    """An engine as the policy names it."""

    pool: str
    slice: str | None
    """As declared in the policy, or None."""
    cap: int
    """`in_flight` limit of its slice; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class SliceReport:
    """One pair of engines that slow each other."""

    slowing: Slowing
    seats: tuple[Seat, Seat]
    seconds: float
    """Since the pair was found."""
    advice: Advice | None
    """None where they are declared as one slice with a cap."""

    def as_dict(self) -> dict[str, object]:
        return {
            "engines": [
                {"pool": seat.pool, "endpoint": url, "slice": seat.slice, "slowed": round(factor, 3)}
                for url, seat, factor in self.rows()
            ],
            "samples": round(self.slowing.samples),
            "seconds": round(self.seconds, 1),
            "advice": self.advice.as_dict() if self.advice else None,
        }

    def rows(self) -> tuple[tuple[str, Seat, float], tuple[str, Seat, float]]:
        """(URL, seat, factor) of each; factor = step time while the other engine is busy / while it is idle."""
        found, (first, second) = self.slowing, self.seats
        return (found.first, first, found.first_factor), (found.second, second, found.second_factor)


def slice_report(found: Slowing, seats: Mapping[str, Seat], now: float) -> SliceReport | None:
    """None if one of the two is no longer in any pool."""
    first, second = seats.get(found.first), seats.get(found.second)
    if first is None or second is None:
        return None
    return SliceReport(found, (first, second), now - found.since, _advice(found, first, second))


def _advice(found: Slowing, first: Seat, second: Seat) -> Advice | None:
    who = f"{found.first} in {first.pool} and {found.second} in {second.pool}"
    figures = {"first_slowed": found.first_factor, "second_slowed": found.second_factor}
    seen = (
        f"slow each other: a step takes {found.first_factor:.2f} and {found.second_factor:.2f} times as long while the "
        "other one is busy"
    )
    if first.slice is None or first.slice != second.slice:
        said = (
            f"although the policy puts them in slices of their own ({first.slice}, {second.slice})"
            if first.slice and second.slice
            else "so they share a GPU"
        )
        text = f"{who} {seen}, {said}: declare them as one `slice`, and cap it under `slices`"
        return Advice(Code.SHARED, Severity.WARNING, text, figures)
    if not first.cap:
        text = f"{who} {seen}, and their slice has no cap: set `slices: {{{first.slice}: {{in_flight: N}}}}`"
        return Advice(Code.SHARED, Severity.INFO, text, figures)
    return None
