"""`gateway replay`: makes the decisions of a log again under another policy, and sums up what would have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from gateway.decisions.counterfactual import Counterfactual, Verdict
from gateway.decisions.row import read_row
from gateway.policy.schema import Policy
from gateway.routing.state import RoutingState
from gateway.types import Outcome


@dataclass(slots=True)
class Move:
    """All requests that go from one pool to another."""

    requests: int = 0
    gain: float = 0.0
    """Seconds, in sum."""


@dataclass(slots=True)
class Report:
    """Sums over the log."""

    rows: int = 0
    unreadable: int = 0
    """Lines that are not decisions."""
    unrouted: int = 0
    """Requests without a decision: refused before it, or routed by model only."""
    unknown_model: int = 0
    refused: int = 0
    """Requests that the other policy turns away."""
    missing_pools: Counter[str] = field(default_factory=Counter)
    """Pools that took requests and that the other policy does not have, with the number of these requests."""
    compared: int = 0
    seconds: float = 0.0
    """What the compared requests took."""
    saved: float = 0.0
    lost: float = 0.0
    regret_before: float = 0.0
    regret_after: float = 0.0
    flips: list[Verdict] = field(default_factory=list)
    moves: dict[tuple[str, str, str], Move] = field(default_factory=dict)
    """By model, from, to."""

    @property
    def gain(self) -> float:
        return self.saved - self.lost

    def add(self, verdict: Verdict) -> None:
        self.compared += 1
        self.seconds += verdict.seconds
        self.regret_before += verdict.regret_before
        self.regret_after += verdict.regret
        if verdict.after is None:
            self.refused += 1
            return
        if not verdict.flips:
            return
        gain = verdict.gain or 0.0
        self.flips.append(verdict)
        self.saved += max(gain, 0.0)
        self.lost += max(-gain, 0.0)
        move = self.moves.setdefault((verdict.model, verdict.before, verdict.after), Move())
        move.requests += 1
        move.gain += gain

    def object(self) -> dict[str, Any]:
        """For `--json`. Times are seconds."""
        counts = ("rows", "unreadable", "unrouted", "unknown_model", "refused", "compared")
        times = ("seconds", "gain", "saved", "lost", "regret_before", "regret_after")
        return {
            **{name: getattr(self, name) for name in counts},
            **{name: round(getattr(self, name), 6) for name in times},
            "flipped": len(self.flips),
            "missing_pools": dict(sorted(self.missing_pools.items())),
            "reasons": dict(Counter(flip.reason.value for flip in self.flips if flip.reason)),
            "moves": [
                {"model": model, "from": before, "to": after, "requests": move.requests, "gain": round(move.gain, 6)}
                for (model, before, after), move in sorted(self.moves.items())
            ],
            "flips": [_flip(verdict) for verdict in self.flips],
        }


def _flip(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": verdict.request_id,
        "model": verdict.model,
        "task": verdict.task.value,
        "from": verdict.before,
        "to": verdict.after,
        "was": verdict.reason_before.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "gain": None if verdict.gain is None else round(verdict.gain, 6),
    }


class _Clock:
    """Shows the time at which the current request ended."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def replay(policy: Policy, lines: Iterable[bytes]) -> Report:
    """Every line of the log, oldest first, under `policy`."""
    clock, report = _Clock(), Report()
    other: Counterfactual | None = None
    for outcome in _outcomes(lines, report):
        clock.now = max(clock.now, outcome.ended)
        # Made only once the clock shows the log's time, so that rates are not averaged over the years before.
        other = other or Counterfactual(policy, RoutingState(clock, Random(0)))
        if outcome.features is None or outcome.decision is None or outcome.estimate is None:
            report.unrouted += 1
        elif verdict := other.judge(outcome):
            report.add(verdict)
            if outcome.decision.pool not in policy.pools:
                report.missing_pools[outcome.decision.pool] += 1
        else:
            report.unknown_model += 1
    return report


def _outcomes(lines: Iterable[bytes], report: Report) -> Iterator[Outcome]:
    for line in lines:
        if not line.strip():
            continue
        report.rows += 1
        try:
            row = orjson.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            outcome = read_row(row)
        except ValueError:
            report.unreadable += 1
        else:
            yield outcome
