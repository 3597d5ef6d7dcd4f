"""What is known of one back end from its own pages: the last snapshot, its age, errors, restarts, who it is."""

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
"""The counter that grows with every step of an engine that decodes."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A pool that an endpoint is in, and what the policy says of it."""

    pool: str
    kind: PoolKind
    k: int
    """Drafted tokens per step by the policy; 0 for a plain pool."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to scrape, and how. A URL in several pools is scraped once, at the shortest interval."""

    url: str
    api_key: bytes | None
    interval: float
    stale_after: float
    members: tuple[Membership, ...]
    sources: tuple[EndpointLike, ...]
    """The live endpoints behind the URL, for our own requests there."""

    def in_flight(self) -> int:
        """Our own requests there now."""
        return sum(source.in_flight for source in self.sources)


class EndpointTelemetry:
    """The live record. Written by its scraping task, read by everybody else."""

    def __init__(self, target: Target, track: CounterTrack | None = None) -> None:
        """`track` is the endpoint's own from before, where it had been removed for a while."""
        self.target = target
        self.track = track or CounterTrack()
        self.layout = PageLayout()
        self.snapshot: Snapshot | None = None
        """The last one, however old."""
        self.others = 0.0
        """Requests in the last snapshot, running or waiting, that were not ours."""
        self.identity = Identity()
        self.wants_identity = True
        self.identity_asked: float | None = None
        self.error: str | None = None
        """Why the last scrape failed; None after a good one."""
        self.complaint: str | None = None
        """What keeps it from serving though it answers, by its list of models; see `complaint`."""
        self.failures = 0
        """Consecutive ones."""
        self.errors = 0
        self.scrapes = 0
        self.heard_at = -math.inf
        """When a page last told how many tokens there have been."""
        self.generated_at = -math.inf
        """When a page last told of new ones."""
        self.page_bytes = 0
        self.seconds = 0.0
        """The last good scrape's, from request to parsed page."""

    def fresh(self, now: float) -> Snapshot | None:
        """The last snapshot, unless it is stale."""
        snapshot = self.snapshot
        return snapshot if snapshot is not None and now - snapshot.at <= self.target.stale_after else None

    def load(self, now: float) -> tuple[float, float, float, float | None] | None:
        """(others' requests, running, waiting, cache use) by a fresh snapshot that tells the load, else None."""
        snapshot = self.fresh(now)
        if snapshot is None or (snapshot.running is None and snapshot.waiting is None):
            return None
        return self.others, snapshot.running or 0.0, snapshot.waiting or 0.0, snapshot.kv_usage

    def accept(self, snapshot: Snapshot, own: int) -> list[Delta]:
        """Takes in a page. `own` is the number of our own requests there while the page was made."""
        self.snapshot = snapshot
        self.others = max((snapshot.running or 0.0) + (snapshot.waiting or 0.0) - own, 0.0)
        back = self.error is not None
        self.scrapes += 1
        self.failures, self.error = 0, None
        restarts = self.track.restarts
        deltas = self.track.update(snapshot)
        if any(TOKENS in reading.counters for reading in snapshot.readings):
            self.heard_at = snapshot.at
        if any(delta.counts.get(TOKENS) for delta in deltas):
            self.generated_at = snapshot.at
        # After an outage or a restart another version, or another model, may answer.
        self.wants_identity |= back or self.track.restarts > restarts
        return deltas

    def fail(self, reason: str) -> bool:
        """Notes a failed scrape; True where the reason is news."""
        news = reason != self.error
        self.error = reason
        self.failures += 1
        self.errors += 1
        return news

    def why(self) -> str | None:
        """What is wrong with it as far as its pages tell, in words; None where nothing is."""
        return in_words(self.error, keyed=bool(self.target.api_key)) if self.error else self.complaint

    def statistics(self, now: float) -> dict[str, object]:
        """For operators' pages: figures by name, ages in seconds."""
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
