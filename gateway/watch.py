"""What the gateway knows of its back ends, for decisions and for operators: load, acceptance, the MTP checklist.

It is the router's view of the live pools. Our own requests are counted here. Other clients' requests and the engines'
queues are those of the last scrape, or the other replicas' counts where nothing is scraped. The context window of a
pool is the one that all its endpoints have. Every second the measured acceptance is handed to the speed curves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from gateway.metrics import tpot_of
from gateway.policy.engines import disagreement, faults
from gateway.policy.schema import Model, Mtp, Pool
from gateway.routing.curves import Curves
from gateway.state.store import Others
from gateway.telemetry.checklist import MtpChecklist
from gateway.telemetry.export import TelemetryCollector
from gateway.telemetry.fetch import ConnectorFetch
from gateway.telemetry.neighbours import Neighbours
from gateway.telemetry.scrape import Scraper
from gateway.telemetry.slices import Seat, SliceReport, slice_report
from gateway.telemetry.view import TelemetryView
from gateway.types import Decision, Outcome, PoolLoad
from gateway.upstream.client import Connector, Timeouts
from gateway.upstream.pools import Pools
from gateway.words import OK

log = logging.getLogger("gateway.telemetry")

TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Foreign:
    """What runs in a pool besides our own requests, as of the last tick."""

    in_flight: int
    window: int | None
    running: int = 0
    """Requests running in its engines, our own included, by their last `/metrics`."""
    waiting: int = 0
    """Requests waiting in its engines' own queues, likewise."""


NOTHING = Foreign(0, None)


class Watch:
    """Telemetry of one process."""

    def __init__(
        self,
        pools: Pools,
        models: Callable[[], Iterable[Model]],
        thresholds: Callable[[], Mtp],
        curves: Curves,
        clock: Callable[[], float],
        others: Callable[[], Others] = Others,
    ) -> None:
        """`others` are the other replicas' views, by "pool url"."""
        self._others = others
        self._pools = pools
        self._models = models
        self._curves = curves
        self._clock = clock
        self._foreign: dict[str, Foreign] = {}
        self._versions: dict[tuple[str, str], tuple[str, Pool]] = {}
        """What engines told when they were last compared with the policy, by pool and URL."""
        self.view = TelemetryView(pools, models, clock)
        self.checklist = MtpChecklist(self.view, thresholds, clock, self._break_even, curves.plain_speed)
        self._neighbours = Neighbours()
        self.view.listen_pages(self._neighbours.take)

    def load(self, pool: str) -> PoolLoad:
        """The router's view of one pool."""
        own = self._pools.load(pool)
        foreign = self._foreign.get(pool, NOTHING)
        if foreign is NOTHING:
            return own
        in_flight = own.in_flight + foreign.in_flight
        # What waits in an engine's own queue is in flight there, but slows down nothing that runs.
        queued = min(foreign.waiting, max(in_flight - foreign.running, 0))
        return PoolLoad(
            up=own.up,
            in_flight=in_flight - queued,
            waiting=own.waiting + queued,
            full=own.full,
            window=foreign.window,
            since=own.since,
        )

    def observe(self, outcome: Outcome) -> None:
        """Takes a finished answer's time per token, and its drafting counts if the back end sent them."""
        decision, usage = outcome.decision, outcome.usage
        if decision is None or usage is None or outcome.result is not OK or outcome.features is None:
            return
        pool, model, n = decision.pool, decision.model, outcome.features.n
        if (seconds := tpot_of(outcome)) is not None:
            self.checklist.observe_tpot(pool, model, usage.completion_tokens // n, self._beside(decision), seconds)
        if usage.spec is not None and n == 1 and outcome.estimate is not None:
            self.checklist.observe_request(pool, model, outcome.estimate.task, usage.spec)

    def _beside(self, decision: Decision) -> float:
        """Other requests on the engine of an answer that has just ended: the mean of when it was decided and of now.
        The count at its end alone would be too low for the last answers of a burst."""
        load = self.load(decision.pool)
        now = load.in_flight / (load.up or 1)
        terms = decision.terms(decision.pool)
        return now if terms is None else (terms.running + now) / 2.0

    def collector(self) -> TelemetryCollector:
        return TelemetryCollector(self.view, self.checklist, self._clock, self.slices)

    def slices(self) -> list[SliceReport]:
        """Engines that slow each other down, whether or not the policy says that they share a GPU."""
        now = self._clock()
        seats = {
            e.url: Seat(pool.name, e.slice, e.shared.limit if e.shared else 0)
            for pool in self._pools
            for e in pool.endpoints
        }
        found = (slice_report(pair, seats, now) for pair in self._neighbours.found())
        return [row for row in found if row is not None]

    async def run(self, connect: Callable[[str], Connector], host_of: Callable[[str], str | None], rng: Random) -> None:
        """Scrapes and ticks until cancelled. `host_of`: see `ConnectorFetch`."""
        fetch = ConnectorFetch(connect, Timeouts(), host_of)
        scraper = asyncio.create_task(Scraper(self.view, fetch, rng, self._clock).run())
        try:
            while True:
                self.tick()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            scraper.cancel()
            await asyncio.gather(scraper, return_exceptions=True)
            await fetch.aclose()

    def tick(self) -> None:
        """Updates what decisions read between scrapes."""
        self.view.match()
        self._neighbours.follow(self.view.endpoints())
        records = self.view.endpoints()
        versions: dict[tuple[str, str], tuple[str, Pool]] = {}
        for pool in self._pools:
            for endpoint in pool.endpoints:
                if (record := records.get(endpoint.url)) is not None:
                    endpoint.heard_at, endpoint.generated_at = record.heard_at, record.generated_at
                    if record.identity.version is not None:
                        versions[pool.name, endpoint.url] = record.identity.version, pool.policy
            seen = self.view.pool_load(pool.name)
            if not seen.fresh:
                # Without the engines' own word, the other replicas' counts are all that is known of foreign load.
                elsewhere = sum(self._elsewhere(f"{pool.name} {e.url}") for e in pool.endpoints)
                self._foreign[pool.name] = Foreign(elsewhere, None) if elsewhere else NOTHING
                continue
            self._foreign[pool.name] = Foreign(
                in_flight=round(max(seen.in_flight - pool.in_flight, 0.0)),
                window=self._window(pool.name),
                running=round(seen.running),
                waiting=round(seen.waiting),
            )
        self._compare(versions)
        for report in self.checklist.reports(by_load=False):
            if report.recent is not None:
                self._curves.accept(report.pool, report.recent.mean_length)

    def _compare(self, versions: dict[tuple[str, str], tuple[str, Pool]]) -> None:
        """Logs what an engine's version means for its pool, whenever one of the two is new."""
        for (name, url), (version, pool) in versions.items():
            before = self._versions.get((name, url))
            if before is not None and before[0] == version and before[1] is pool:
                continue
            for message in (*faults(pool, version), disagreement(pool, version)):
                if message is not None:
                    log.warning(message, extra={"fields": {"pool": name, "endpoint": url}})
        self._versions = versions

    def _elsewhere(self, endpoint: str) -> int:
        found = self._others().endpoints.get(endpoint)
        return found.in_flight if found else 0

    def _window(self, name: str) -> int | None:
        """The shortest context length that the pool's endpoints report for any of its models."""
        pool = self._pools[name]
        served = {pool.policy.model or model.name for model in self._models() if name in model.pools}
        lengths = [self.view.identity(e.url).context_length(model) for e in pool.endpoints for model in served]
        return min((length for length in lengths if length), default=None)

    def _break_even(self, pool: str, running: float, k: int) -> float | None:
        """Tokens per step from which drafting k tokens pays in this pool, by its profile; None without a curve."""
        curve = next((curve for curve in self._curves if curve.pool == pool), None)
        return curve.profile.break_even(running, k) if curve else None
