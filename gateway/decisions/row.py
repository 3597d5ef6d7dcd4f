"""One row per finished request: what people, dashboards and `gateway replay` need of it, and never its text.

    {"at", "id", "key", "model", "asked", "features", "estimate", "pools", "decision", "outcome", "regret"}

A row holds those features that differ from their defaults, and hashes of text as hexadecimal digits. Only `keep` runs
for every request; rows are made from its result when they are read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

from gateway.types import (
    Api,
    CostTerms,
    Decision,
    Estimate,
    Features,
    Need,
    Outcome,
    Place,
    PoolCost,
    PoolKind,
    Reason,
    Result,
    Structure,
    Task,
    ToolChoice,
    Usage,
)

TEXTS = frozenset({"instruction", "system_text", "user_head", "user_tail"})
NAMES = tuple(field.name for field in fields(Features) if field.name not in TEXTS)
HASHES = frozenset(name for name in NAMES if name.endswith("_key"))
_numbers = attrgetter(*NAMES)
_DEFAULTS = _numbers(Features(api=Api.CHAT, model=""))
_BY_NAME = dict(zip(NAMES, _DEFAULTS, strict=True))
_ALWAYS = frozenset({"api", "model", "input_tokens", "language"})
_READ: Mapping[str, Any] = {
    "api": Api,
    "structure": Structure,
    "tool_choice": ToolChoice,
    "place": Place,
    "hint_task": Task,
    "modalities": frozenset,
    "needs": lambda listed: frozenset(map(Need, listed)),
    "profile": tuple,
    "groups": tuple,
    "task_scores": lambda rows: tuple((Task(task), float(score)) for task, score in rows),
}


class Kept(NamedTuple):
    """A finished request without its text; see `Outcome` for most of its fields."""

    at: float
    """Seconds since the epoch at its end."""
    regret: float | None
    """Seconds lost against the best pool not chosen; negative if this choice was right."""
    numbers: tuple[Any, ...] | None
    """The features, in the order of `NAMES`."""
    request_id: str
    result: Result
    status: int
    started: float
    ended: float
    estimate: Estimate | None
    decision: Decision | None
    endpoint: str | None
    usage: Usage | None
    finish_reason: str | None
    sent_upstream: float | None
    first_byte: float | None
    attempts: int
    key: str | None
    error: str | None
    canary: str | None


_copied = attrgetter(*Kept._fields[3:])


def keep(outcome: Outcome, regret: float | None, at: float) -> Kept:
    """Copies what a row needs; cheap, as nothing is computed. `at` is in seconds since the epoch."""
    features = outcome.features
    # Like `Kept(...)`, without the cost of a call in Python.
    return tuple.__new__(Kept, (at, regret, _numbers(features) if features else None, *_copied(outcome)))


def as_row(kept: Kept) -> dict[str, Any]:
    """The row of a kept request, JSON-ready."""
    decision, estimate = kept.decision, kept.estimate
    return {
        "at": round(kept.at, 3),
        "id": kept.request_id,
        "key": kept.key,
        "model": decision.model if decision else None,
        "features": _features(kept.numbers) if kept.numbers else None,
        "estimate": _estimate(estimate) if estimate else None,
        "pools": [_pool(cost) for cost in decision.costs] if decision else [],
        "decision": _decision(decision) if decision else None,
        **({"canary": kept.canary} if kept.canary else {}),
        "outcome": _outcome(kept),
        "regret": _round(kept.regret),
    }


def _features(numbers: tuple[Any, ...]) -> dict[str, Any]:
    rows = zip(NAMES, numbers, _DEFAULTS, strict=True)
    return {name: _plain(name, value) for name, value, usual in rows if value != usual or name in _ALWAYS}


def _plain(name: str, value: Any) -> Any:
    if name in HASHES:
        return f"{value & (2**64 - 1):016x}"
    if isinstance(value, frozenset):
        return sorted(value)
    return round(value, 4) if isinstance(value, float) else value


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "task": estimate.task.value,
        "output_tokens": round(estimate.output_tokens, 1),
        "p50": round(estimate.p50, 1),
        "p90": round(estimate.p90, 1),
        "confidence": round(estimate.confidence, 3),
        "source": estimate.source,
    }


def _pool(cost: PoolCost) -> dict[str, Any]:
    terms = {name: round(value, 6) for name, value in cost.terms._asdict().items()} if cost.terms else None
    return {
        "pool": cost.pool,
        "kind": cost.kind.value,
        "expected_seconds": _round(cost.seconds),
        "out": cost.out,
        "terms": terms,
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "pool": decision.pool,
        "reason": decision.reason.value,
        "detail": decision.detail,
        "order": list(decision.order),
        "thread": f"{decision.thread & (2**64 - 1):016x}" if decision.thread else None,
    }


def _outcome(outcome: Kept) -> dict[str, Any]:
    usage, sent, first = outcome.usage, outcome.sent_upstream, outcome.first_byte
    return {
        "result": outcome.result.value,
        "status": outcome.status,
        "error": outcome.error,
        "finish_reason": outcome.finish_reason,
        "endpoint": outcome.endpoint,
        "attempts": outcome.attempts,
        "input_tokens": usage.prompt_tokens if usage else None,
        "output_tokens": usage.completion_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "seconds": _round(outcome.ended - outcome.started),
        "before": _round(None if sent is None else sent - outcome.started),
        "ttft": _round(None if sent is None or first is None else first - sent),
    }


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def read_row(row: Mapping[str, Any]) -> Outcome:
    """The outcome that a row describes, with times in seconds since the epoch; texts are empty.

    Raises ValueError for anything that is not such a row.
    """
    try:
        return _read_outcome(row)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a decision: {type(error).__name__} {error}") from error


def _read_outcome(row: Mapping[str, Any]) -> Outcome:
    outcome, ended = row["outcome"], float(row["at"])
    started = ended - float(outcome["seconds"])
    sent = None if outcome["before"] is None else started + float(outcome["before"])
    decision = _read_decision(row)
    features = _read_features(row["features"]) if row["features"] else None
    if features and decision and decision.thread and not features.thread_key:
        features = replace(features, thread_key=decision.thread)
    usage = None
    if outcome["output_tokens"] is not None:
        usage = Usage(
            prompt_tokens=int(outcome["input_tokens"]),
            completion_tokens=int(outcome["output_tokens"]),
            cached_tokens=int(outcome["cached_tokens"] or 0),
        )
    return Outcome(
        request_id=str(row["id"]),
        result=Result(outcome["result"]),
        status=int(outcome["status"]),
        started=started,
        ended=ended,
        features=features,
        estimate=_read_estimate(row["estimate"]) if row["estimate"] else None,
        decision=decision,
        endpoint=outcome["endpoint"],
        usage=usage,
        finish_reason=outcome["finish_reason"],
        sent_upstream=sent,
        first_byte=None if sent is None or outcome["ttft"] is None else sent + float(outcome["ttft"]),
        attempts=int(outcome["attempts"]),
        key=row["key"],
        error=outcome["error"],
    )


def _read_features(written: Mapping[str, Any]) -> Features:
    values: dict[str, Any] = {}
    for name, value in written.items():
        if name in HASHES:
            values[name] = int(value, 16)
        elif name in _READ:
            values[name] = None if value is None else _READ[name](value)
        elif name in _BY_NAME:
            values[name] = _like(_BY_NAME[name], value)
    return Features(**values)


def _like(default: object, value: object) -> object:
    """The value, if it is of its default's kind. Raises TypeError."""
    kind = int | float if isinstance(default, int | float) else type(default)
    if default is not None and not isinstance(value, kind):
        raise TypeError(f"{value!r} for {default!r}")
    return value


def _name(written: object) -> str:
    if not isinstance(written, str):
        raise TypeError(f"{written!r} for a name")
    return written


def _read_estimate(written: Mapping[str, Any]) -> Estimate:
    return Estimate(
        task=Task(written["task"]),
        output_tokens=float(written["output_tokens"]),
        p50=float(written["p50"]),
        p90=float(written["p90"]),
        confidence=float(written["confidence"]),
        source=str(written["source"]),
    )


def _read_decision(row: Mapping[str, Any]) -> Decision | None:
    if (written := row["decision"]) is None:
        return None
    return Decision(
        model=_name(row["model"]),
        pool=_name(written["pool"]),
        reason=Reason(written["reason"]),
        detail=written["detail"],
        order=tuple(written["order"]),
        costs=tuple(map(_read_cost, row["pools"])),
        thread=int(written["thread"], 16) if written["thread"] else 0,
    )


def _read_cost(written: Mapping[str, Any]) -> PoolCost:
    terms = CostTerms(**written["terms"]) if written["terms"] else None
    return PoolCost(written["pool"], PoolKind(written["kind"]), written["expected_seconds"], written["out"], terms)
