"""The gateway as operators see it at one instant: JSON-ready, without request texts or secrets.

Traffic is computed from the last decisions in memory, so it covers this process and at most the last thousand
requests; `window` says how many seconds that is. Break-even times come from the live speed curves at the present load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from gateway import __version__
from gateway.api.core import Core
from gateway.api.ops import describe_pool
from gateway.api.served import unready
from gateway.decisions.row import Kept
from gateway.policy.watch import ReloadState
from gateway.telemetry.checklist import MtpReport
from gateway.types import Result, Task

RATE_SECONDS = 60.0
FLOW_SECONDS = 300.0
SHOWN_DECISIONS = 15
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Output tokens at which the pools are compared."""
PROMPT = 500
"""Prompt tokens of that comparison."""
COMPARED_TASKS = (Task.CHAT, Task.CODE, Task.SUMMARIZATION)
_FAILED = frozenset({Result.BACKEND_ERROR, Result.TRUNCATED, Result.TIMEOUT, Result.REJECTED})


class Snapshots:
    """Makes snapshots. `wall` gives seconds since the epoch."""

    def __init__(
        self, core: Core, reload_state: Callable[[], ReloadState | None], wall: Callable[[], float], processes: int
    ) -> None:
        self._core = core
        self._reload_state = reload_state
        self._wall = wall
        self._processes = processes
        self._began = core.clock()

    def take(self) -> dict[str, Any]:
        """The snapshot of this instant."""
        core, now = self._core, self._wall()
        reports = core.watch.checklist.reports()
        kept = core.decisions.kept()
        return {
            "at": round(now, 3),
            "version": __version__,
            "uptime": round(core.clock() - self._began, 1),
            "processes": max(self._processes, core.store.status().replicas),
            "draining": core.draining,
            "open": core.active.policy.access is None,
            "models_without_pool": unready(core),
            "state": core.store.status().object(),
            "policy": self._policy(),
            "canary": core.canary.glance() if core.canary else None,
            "traffic": traffic(kept, now),
            "pools": [describe_pool(core, name) for name in core.active.policy.pools],
            "mtp": [report.as_dict() for report in reports],
            "disagreements": [asdict(found) for found in core.watch.view.disagreements()],
            "models": self._models(),
            "decisions": [line(row) for row in reversed(kept[-SHOWN_DECISIONS:])],
            "point": point(reports, now),
        }

    def _policy(self) -> dict[str, Any]:
        active, state = self._core.active, self._reload_state()
        policy = active.policy
        return {
            "hash": policy.version_hash,
            "version": active.version,
            "source": policy.source,
            "objective": policy.routing.objective,
            "threshold": policy.routing.threshold,
            "exploration": policy.routing.exploration,
            "rules": [rule.name for rule in policy.routing.rules],
            "acceptance_alert": policy.mtp.acceptance_alert,
            "gain_target": policy.mtp.gain_target,
            "watched": state is not None,
            "reloads": state.ok if state else 0,
            "failed": state.failed if state else 0,
            "error": state.last_error if state else None,
            "loaded_ago": round(self._wall() - state.loaded_at if state else self._core.clock() - self._began, 1),
        }

    def _models(self) -> list[dict[str, Any]]:
        """Each model's expected seconds by output tokens, in each of its pools at the present load."""
        core = self._core
        rows = []
        for model in core.active.policy.models.values():
            if not model.pools:
                continue
            running = {}
            for name in model.pools:
                load = core.watch.load(name)
                running[name] = load.in_flight / (load.up or 1)
            rows.append(
                {
                    "model": model.name,
                    "architecture": model.architecture,
                    "lengths": LENGTHS,
                    "prompt": PROMPT,
                    "running": {name: round(others, 1) for name, others in running.items()},
                    "seconds": {
                        task.value: {name: self._seconds(name, model.name, task, n) for name, n in running.items()}
                        for task in COMPARED_TASKS
                    },
                }
            )
        return rows

    def _seconds(self, pool: str, model: str, task: Task, running: float) -> list[float] | None:
        seconds = self._core.learned.routing.curves.seconds
        found = [
            seconds(pool, model, tokens=tokens, task=task, input_tokens=PROMPT, running=running) for tokens in LENGTHS
        ]
        return [round(one, 5) for one in found if one is not None] or None


def traffic(kept: Sequence[Kept], now: float) -> dict[str, Any]:
    """Sums over the last requests: rate, failures, time saved, and which task went to which pool."""
    recent = [row for row in kept if now - row.at <= RATE_SECONDS]
    window = min(RATE_SECONDS, now - recent[0].at) if len(recent) == len(kept) and recent else RATE_SECONDS
    flow = [row for row in kept if now - row.at <= FLOW_SECONDS and row.decision and row.estimate]
    first = [row.first_byte - row.sent_upstream for row in recent if row.first_byte and row.sent_upstream]
    return {
        "window": round(max(window, 1.0), 1),
        "requests": len(recent),
        "per_second": round(len(recent) / max(window, 1.0), 3),
        "failed": sum(row.result in _FAILED for row in recent),
        "tokens_per_second": round(_tokens(recent) / max(window, 1.0), 1),
        "ttft": round(median(first), 5) if first else None,
        "saved": round(sum(max(-row.regret, 0.0) for row in flow if row.regret is not None), 4),
        "lost": round(sum(max(row.regret, 0.0) for row in flow if row.regret is not None), 4),
        "spent": round(sum(row.ended - row.started for row in flow if row.regret is not None), 4),
        "flow_window": round(min(FLOW_SECONDS, now - flow[0].at) if flow else 0.0, 1),
        "flow": _flow(flow),
    }


def _tokens(rows: Iterable[Kept]) -> int:
    return sum(row.usage.completion_tokens for row in rows if row.usage)


def _flow(rows: Iterable[Kept]) -> list[dict[str, Any]]:
    counts = Counter((row.estimate.task.value, row.decision.pool) for row in rows if row.estimate and row.decision)
    return [{"task": task, "pool": pool, "requests": number} for (task, pool), number in counts.most_common()]


def line(row: Kept) -> dict[str, Any]:
    """One decision in short form."""
    decision, estimate, usage = row.decision, row.estimate, row.usage
    return {
        "at": round(row.at, 3),
        "id": row.request_id,
        "key": row.key,
        "model": decision.model if decision else None,
        "task": estimate.task.value if estimate else None,
        "predicted": round(estimate.output_tokens) if estimate else None,
        "tokens": usage.completion_tokens if usage else None,
        "pool": decision.pool if decision else None,
        "reason": decision.reason.value if decision else None,
        "detail": decision.detail if decision else "",
        "result": row.result.value,
        "status": row.status,
        "error": row.error,
        "seconds": round(row.ended - row.started, 5),
        "regret": None if row.regret is None else round(row.regret, 5),
        "pools": [
            {"pool": cost.pool, "kind": cost.kind.value, "seconds": _short(cost.seconds), "out": cost.out}
            for cost in (decision.costs if decision else ())
        ],
    }


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)


def point(reports: Iterable[MtpReport], now: float) -> dict[str, Any]:
    """This instant's values for the chart over time, by `pool model`."""
    rows = list(reports)
    return {
        "at": round(now, 1),
        "acceptance": {f"{r.pool} {r.model}": round(r.recent.rate, 4) for r in rows if r.recent},
        "gain": {f"{r.pool} {r.model}": round(r.gain.gain, 4) for r in rows if r.gain},
    }
