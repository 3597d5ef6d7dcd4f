"""Faults that a simulated server shows on demand, set on the command line or by `POST /sim/faults`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Every switch; the defaults are a healthy server. The comments are the help texts."""

    hang: bool = False
    """Accept the request and never answer, not even with headers."""
    freeze: bool = False
    """Stop the engine: health and lists stay fine, completions hang."""
    health_down: bool = False
    """Answer /health and /ping with 503, as while loading."""
    metrics_down: bool = False
    """Answer /metrics with 500."""
    status: int | None = None
    """Answer completions with this error status."""
    error_first: bool = False
    """Start a stream with status 200, then send an error as its first event."""
    wrong_json: bool = False
    """Break the JSON of the answer: cut short, or in a stream one event that does not parse."""
    slow_first_token: float = 0.0
    """Hold the first output back for this many seconds."""
    cut: int | None = None
    """Cut the connection after this many chunks; 0 is right after the headers of a stream."""
    cut_reset: bool = False
    """Cut with a TCP reset instead of an orderly close."""
    stall: int | None = None
    """Fall silent after this many chunks, with the connection open."""
    drift: float = 1.0
    """Scale the acceptance of drafts: 0.3 is a drafter beside a target that was fine-tuned away from it."""
    slowdown: float = 1.0
    """Scale the time of every step."""
    rate: float = 1.0
    """Share of requests that the request faults strike."""
    times: int | None = None
    """Strike this many requests, then be healthy; absent: no end."""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Faults:
        """From JSON or command-line text. Raises ValueError that names the switch and what it takes."""
        known = {field.name: field for field in fields(cls)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(f"no fault {', '.join(unknown)}; there are: {', '.join(known)}")
        checked: dict[str, Any] = {name: _value(name, known[name].default, value) for name, value in values.items()}
        return cls(**checked)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


HEALTHY = Faults()


def _value(name: str, default: object, value: object) -> object:
    if isinstance(default, bool):
        if value in (True, False):
            return bool(value)
        if value in ("true", "on", "", "false", "off"):
            return value in ("true", "on", "")
        raise ValueError(f"fault {name} is on or off, got {value!r}")
    if default is None and value is None:
        return None
    try:
        number = float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        number = None
    whole = default is None
    if number is None or isinstance(value, bool) or number < 0 or (whole and not number.is_integer()):
        raise ValueError(f"fault {name} takes a {'whole ' if whole else ''}number from 0 up, got {value!r}")
    if name == "status" and not 400 <= number <= 599:
        raise ValueError(f"fault status takes 400 to 599, got {value!r}")
    return int(number) if whole else number


class FaultSwitch:
    """The faults in force, and which request they strike."""

    def __init__(self, faults: Faults, rng: Random) -> None:
        self._rng = rng
        self.set(faults)

    def set(self, faults: Faults) -> None:
        """Replaces all switches."""
        self.current = faults
        self._left = faults.times

    def draw(self) -> Faults:
        """The faults for the next request: the ones in force, or none."""
        if self.current is HEALTHY or self._left == 0 or self._rng.random() >= self.current.rate:
            return HEALTHY
        if self._left is not None:
            self._left -= 1
        return self.current
