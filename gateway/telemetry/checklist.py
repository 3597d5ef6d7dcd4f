"""The MTP checklist: acceptance, gain over the plain pool, health state and advice per pool and model. No I/O.

It receives counter differences from a `TelemetryView` and timings of the gateway's own requests, keeps them in time
windows, and judges a pool when its counters move and when a report is asked for.

TPOT is compared at the pool's present load and, for the report, at each load served lately; `gain.py` says which
sources are compared. A difference of an engine's histograms is filed under the batch size at the scrape and the mean
length of the requests that finished since the last scrape. A report shows the gain that its state was judged on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.telemetry.advice import Advice, Evidence, advise
from gateway.telemetry.counters import Window, seconds_per_token
from gateway.telemetry.gain import Gains, Key
from gateway.telemetry.mtp import MIN_DRAFTS, MtpHealth, MtpState, Thresholds
from gateway.telemetry.source import BreakEven, MtpPolicy, PlainSpeed, PoolLike
from gateway.telemetry.spec_decode import Acceptance, acceptance, counts_of
from gateway.telemetry.tpot import Comparison
from gateway.telemetry.view import Counted, TelemetryView
from gateway.types import PoolKind, SpecSample, Task

log = logging.getLogger("gateway.mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpReport:
    """One pool and model, for the status page, `gateway advise` and metrics."""

    pool: str
    model: str
    state: MtpState
    seconds_in_state: float
    tokens: int
    """Draft tokens per step, k; 0 where unknown."""
    acceptance: Acceptance | None
    """Over the policy's window."""
    recent: Acceptance | None
    """Over the period on which the state was judged."""
    gain: Comparison | None
    """At the present load."""
    gain_by_load: tuple[Comparison, ...]
    """One per load band that the pool has served lately."""
    by_task: dict[Task, Acceptance]
    advice: tuple[Advice, ...]

    def as_dict(self) -> dict[str, object]:
        return {
            "pool": self.pool,
            "model": self.model,
            "state": self.state.value,
            "seconds_in_state": round(self.seconds_in_state, 1),
            "tokens": self.tokens,
            "acceptance": self.acceptance.as_dict() if self.acceptance else None,
            "recent": self.recent.as_dict() if self.recent else None,
            "gain": self.gain.as_dict() if self.gain else None,
            "gain_by_load": [found.as_dict() for found in self.gain_by_load],
            "by_task": {task.value: found.as_dict() for task, found in self.by_task.items()},
            "advice": [row.as_dict() for row in self.advice],
        }


class _Entry:
    """The windows and the health of one pool and model."""

    def __init__(self, window: float, k: int) -> None:
        self.k = k
        self.window = Window(window)
        self.tasks: dict[Task, Window] = {}
        self.health = MtpHealth()
        self.judged: float | None = None

    def forget(self) -> None:
        """Drops the old engine's acceptance after a restart or another k."""
        self.window.clear()
        self.tasks.clear()
        self.health.restarted()


class MtpChecklist:
    """See the module's docstring. One per process; use it from the event loop only."""

    def __init__(
        self,
        view: TelemetryView,
        policy: Callable[[], MtpPolicy],
        clock: Callable[[], float],
        break_even: BreakEven = lambda pool, running, k: None,
        plain_speed: PlainSpeed = lambda plain, drafting, model, tokens, running: None,
    ) -> None:
        """`policy` is the live policy's `mtp` section. `break_even` comes from profiles or learned curves,
        `plain_speed` from learned curves only."""
        self._view = view
        self._policy = policy
        self._clock = clock
        self._break_even = break_even
        self._entries: dict[Key, _Entry] = {}
        self._gains = Gains(lambda: policy().window, plain_speed)
        view.listen(self.take)

    # Learning

    def take(self, counted: Counted) -> None:
        """Records a counter difference of an engine."""
        key = counted.pool, counted.model
        entry = self._entry(key)
        delta, counts = counted.delta, counted.delta.counts
        # A restart matters if the engine is the only one: among several, the others' counts still hold.
        if (delta.reset and counted.alone) or counted.k != entry.k:
            entry.forget()
            entry.k = counted.k
        load = {} if not counted.running else {"load_sum": counted.running, "load_count": 1.0}
        if counts or load:
            entry.window.add(counted.at, {**counts, **load})
        requests = counts.get("generated_count", counts.get("tpot_count", 0.0))
        if requests and (seconds := seconds_per_token(counts)):
            tokens = counts.get("generated_sum", 2.0 * requests) / requests
            running = max(counted.running or 0.0, 1.0)
            self._gains.engine(counted.at, key, entry.k, tokens, running, seconds, requests)
        if counted.kind is PoolKind.MTP or entry.k:
            self._judge(key, entry, counted.at, every=entry.window.span / 120.0)

    def observe_tpot(self, pool: str, model: str, tokens: int, running: float, seconds_per_token: float) -> None:
        """Records a streamed answer: output tokens, requests running beside it on its engine, its TPOT in seconds."""
        key = pool, model
        self._gains.request(self._clock(), key, self._entry(key).k, tokens, running, seconds_per_token)

    def observe_request(self, pool: str, model: str, task: Task, sample: SpecSample) -> None:
        """Records the drafting counts in an answer, where its back end sends them."""
        entry = self._entry((pool, model))
        window = entry.tasks.get(task)
        if window is None:
            window = entry.tasks[task] = Window(entry.window.span)
        window.add(self._clock(), counts_of(sample))

    # Reading

    def state(self, pool: str, model: str) -> MtpState:
        """The current state, judged at most every 1/120 of the window: cheap enough to call per request."""
        entry = self._entries.get((pool, model))
        if entry is None:
            return MtpState.UNKNOWN
        self._judge((pool, model), entry, self._clock(), every=entry.window.span / 120.0)
        return entry.health.state

    def reports(self, *, by_load: bool = True) -> list[MtpReport]:
        """One report per model of each pool that drafts, by the policy or by its counters.

        `by_load=False` leaves out `gain_by_load`, the costly part, for callers that poll every second."""
        rows = []
        for pool in self._view.pools():
            for model in self._view.models_of(pool):
                entry = self._entries.get((pool.name, model))
                if pool.kind is PoolKind.MTP or (entry and entry.k):
                    rows.append(self._report(pool, model, by_load=by_load))
        return rows

    def _report(self, pool: PoolLike, model: str, *, by_load: bool) -> MtpReport:
        key, now = (pool.name, model), self._clock()
        entry = self._entry(key)
        self._judge(key, entry, now)
        limits = Thresholds.of(self._policy())
        recent = _recent(entry, limits, now)
        gain = entry.health.gain
        evidence = Evidence(
            state=entry.health.state,
            was_healthy=entry.health.was_healthy,
            k=entry.k,
            recent=recent,
            gain=gain,
            lacking=None if gain else self._gains.lacking(key, entry.k, self._plain_pools(key), now),
            over_fewer=self._gains.depths(key, entry.k, now),
            over_more=self._gains.depths(key, entry.k + 1, now),
            step_growth=self._step_growth(pool.name, entry, now),
        )
        by_task = {task: acceptance(window.total(now)) for task, window in entry.tasks.items()}
        return MtpReport(
            pool=pool.name,
            model=model,
            state=entry.health.state,
            seconds_in_state=now - (entry.health.since if entry.health.since is not None else now),
            tokens=entry.k,
            acceptance=acceptance(entry.window.total(now)),
            recent=recent,
            gain=gain,
            gain_by_load=self._gains.by_load(key, entry.k, self._plain_pools(key), now) if by_load else (),
            by_task={task: found for task, found in by_task.items() if found and found.drafts >= MIN_DRAFTS},
            advice=advise(evidence, limits),
        )

    # Judging

    def _judge(self, key: Key, entry: _Entry, now: float, every: float = 0.0) -> None:
        if entry.judged is not None and 0.0 <= now - entry.judged < every:
            return
        entry.judged = now
        limits = Thresholds.of(self._policy())
        before = entry.health.state
        gain = self._gains.present(key, entry.k, self._plain_pools(key), now)
        if entry.health.update(now, limits, _recent(entry, limits, now), gain):
            bad = entry.health.state in (MtpState.WEAK_TAIL, MtpState.DRIFTING, MtpState.HARMFUL)
            fields = {"pool": key[0], "model": key[1], "state": entry.health.state.value, "was": before.value}
            log.log(logging.WARNING if bad else logging.INFO, "drafting health", extra={"fields": fields})

    def _step_growth(self, pool: str, entry: _Entry, now: float) -> float | None:
        counts = entry.window.total(now)
        if not counts.get("load_count") or not entry.k:
            return None
        running = max(counts["load_sum"] / counts["load_count"], 1.0)
        here, deeper = (self._break_even(pool, running, k) for k in (entry.k, entry.k + 1))
        return deeper / here if here and deeper else None

    # Keeping

    def _entry(self, key: Key) -> _Entry:
        window = self._policy().window
        entry = self._entries.get(key)
        if entry is None or entry.window.span != window:
            self._prune()
            entry = self._entries[key] = _Entry(window, self._policy_k(key[0]))
        return entry

    def _prune(self) -> None:
        """Drops pools and models that are no longer in the policy."""
        known = {(pool.name, model) for pool in self._view.pools() for model in self._view.models_of(pool)}
        names = {pool.name for pool in self._view.pools()}
        self._entries = {key: e for key, e in self._entries.items() if key in known or key[0] in names}
        self._gains.keep(known)

    def _policy_k(self, pool: str) -> int:
        found = next((p for p in self._view.pools() if p.name == pool), None)
        return found.policy.speculative.tokens if found and found.policy.speculative else 0

    def _plain_pools(self, key: Key) -> list[str]:
        return [
            pool.name
            for pool in self._view.pools()
            if pool.kind is PoolKind.PLAIN and pool.name != key[0] and key[1] in self._view.models_of(pool)
        ]


def _recent(entry: _Entry, limits: Thresholds, now: float) -> Acceptance | None:
    return acceptance(entry.window.recent(now, limits.sustain, "drafts", MIN_DRAFTS))
