"""The telemetry record of one back end: last snapshot and its age, errors, restarts, identity."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.telemetry.complaint import in_words
from gateway.telemetry.counters import CounterTrack, Delta
from gateway.telemetry.identity import Identity
from gateway.telemetry.source import EndpointLike
from gateway.telemetry.vllm import PageLayout, Snapshot
from gateway.types import PoolKind

TOKENS = "generation_tokens"
"""A counter that grows with every decode step."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A pool that contains the endpoint, with its settings from the policy."""

    pool: str
    kind: PoolKind
    k: int
    """Draft tokens per step in the policy; 0 for a plain pool."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to scrape. A URL that is in several pools is scraped once, at the shortest interval."""

    url: str
    api_key: bytes | None
    interval: float
    stale_after: float
    members: tuple[Membership, ...]
    sources: tuple[EndpointLike, ...]
    """The live endpoints with this URL, which count our own requests."""

    def in_flight(self) -> int:
        """Our own requests at this URL now, as far as it knows of them."""
        return sum(source.in_flight - source.held for source in self.sources)


class EndpointTelemetry:
    """The live record. Only its scrape task writes to it."""

    def __init__(self, target: Target, track: CounterTrack | None = None) -> None:
        """`track` is the earlier counter track of an endpoint that was removed and came back."""
        self.target = target
        self.track = track or CounterTrack()
        self.layout = PageLayout()
        self.snapshot: Snapshot | None = None
        """The last one, at any age."""
        self.others = 0.0
        """Running and waiting requests of other clients in the last snapshot."""
        self.identity = Identity()
        self.wants_identity = True
        self.identity_asked: float | None = None
        self.error: str | None = None
        """Why the last scrape failed; None after a good one."""
        self.complaint: str | None = None
        """Why it cannot serve although it answers, from its model list; see `complaint`."""
        self.failures = 0
        """Consecutive failed scrapes."""
        self.answers = False
        """Whether the last page came, if only without metrics."""
        self.errors = 0
        self.scrapes = 0
        self.heard_at = -math.inf
        """When a page last had the counter of generated tokens."""
        self.generated_at = -math.inf
        """When that counter last grew."""
        self.page_bytes = 0
        self.seconds = 0.0
        """Duration of the last good scrape, parsing included."""

    def fresh(self, now: float) -> Snapshot | None:
        """The last snapshot, unless it is stale."""
        snapshot = self.snapshot
        return snapshot if snapshot is not None and now - snapshot.at <= self.target.stale_after else None

    def load(self, now: float) -> tuple[float, float, float] | None:
        """(other clients' requests, running, waiting) from a fresh snapshot with a load, else None."""
        snapshot = self.fresh(now)
        if snapshot is None or (snapshot.running is None and snapshot.waiting is None):
            return None
        return self.others, snapshot.running or 0.0, snapshot.waiting or 0.0

    def accept(self, snapshot: Snapshot, own: int) -> list[Delta]:
        """Records a page. `own` is the number of our own requests at the time of the page."""
        self.snapshot = snapshot
        self.others = max((snapshot.running or 0.0) + (snapshot.waiting or 0.0) - own, 0.0)
        back = self.error is not None
        self.scrapes += 1
        self.failures, self.error, self.answers = 0, None, True
        restarts = self.track.restarts
        deltas = self.track.update(snapshot)
        if any(TOKENS in reading.counters for reading in snapshot.readings):
            self.heard_at = snapshot.at
        if any(delta.counts.get(TOKENS) for delta in deltas):
            self.generated_at = snapshot.at
        # After an outage or a restart, another version or another model may answer.
        self.wants_identity |= back or self.track.restarts > restarts
        return deltas

    def fail(self, reason: str) -> bool:
        """Records a failed scrape; True if the reason differs from the last one."""
        news = reason != self.error
        self.error, self.answers = reason, False
        self.failures += 1
        self.errors += 1
        return news

    def why(self) -> str | None:
        """What is wrong with the endpoint according to its pages; None if nothing is."""
        return in_words(self.error, keyed=bool(self.target.api_key)) if self.error else self.complaint

    def statistics(self, now: float) -> dict[str, object]:
        """Metrics by name for `/gateway/pools`; ages in seconds."""
        snapshot = self.snapshot
        fresh = self.fresh(now)
        return {
            "url": self.target.url,
            "pools": [member.pool for member in self.target.members],
            "fresh": fresh is not None,
            "age": round(now - snapshot.at, 3) if snapshot else None,
            "error": self.error,
            "complaint": self.complaint,
            "errors": self.errors,
            "scrapes": self.scrapes,
            "restarts": self.track.restarts,
            "page_bytes": self.page_bytes,
            "scrape_seconds": round(self.seconds, 4),
            "running": fresh.running if fresh else None,
            "waiting": fresh.waiting if fresh else None,
            "kv_usage": fresh.kv_usage if fresh else None,
            "drafting": fresh.drafting if fresh else None,
            "draft_positions": fresh.positions if fresh else None,
            "others": self.others if fresh else None,
            "identity": self.identity.as_dict(),
        }
