"""The telemetry of all back ends, for routing, operators and metrics.

`match` makes the records follow the live pools and `accept` records a page; everything else reads. A snapshot is
ignored once it is older than its pool's `stale_after`: the endpoint's load is then unknown, not zero.

A scrape is up to an interval old and does not contain the requests sent since. It is therefore used only for the load
of other clients: (running + waiting) on the page minus our own requests at that time. Our own current count, which is
exact, is added at every query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.telemetry.counters import CounterTrack, Delta
from gateway.telemetry.drafting import Disagreement, DraftingWatch
from gateway.telemetry.endpoint import EndpointTelemetry, Membership, Target
from gateway.telemetry.identity import Identity
from gateway.telemetry.source import EndpointLike, ModelLike, PoolLike, PoolsLike, model_of
from gateway.telemetry.vllm import EngineKey, Reading, Snapshot
from gateway.types import PoolKind

SPEC_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
MAX_GONE = 256
"""Removed endpoints whose counters are kept one by one."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one engine of a pool counted between two scrapes, for listeners."""

    at: float
    pool: str
    model: str
    """As named in the policy."""
    kind: PoolKind
    k: int
    """Draft tokens per step, from the page if known, else from the policy."""
    alone: bool
    """Whether the engine's endpoint is the pool's only one."""
    running: float | None
    delta: Delta


Listener = Callable[[Counted], None]
PageListener = Callable[[str, float, list[Delta]], None]
"""(URL, time of the page, differences of all its engines since the previous page)."""


@dataclass(frozen=True, slots=True)
class TelemetryLoad:
    """A pool's load: our own requests now, other clients' as of the last scrapes."""

    in_flight: float
    """Running or waiting."""
    running: float
    """Running in the engines at the last scrapes; 0 where unknown."""
    waiting: float
    """The part of `in_flight` that waited in the engines' queues at the last scrapes; 0 where unknown."""
    fresh: int
    """Endpoints with a fresh snapshot that has a load."""


class TelemetryView:
    """Every endpoint's record by URL. One per process; use it from the event loop only."""

    def __init__(self, pools: PoolsLike, models: Callable[[], Iterable[ModelLike]], clock: Callable[[], float]) -> None:
        """`models` returns the live policy's models; `clock` is monotonic."""
        self._pools = pools
        self._models = models
        self._clock = clock
        self._endpoints: dict[str, EndpointTelemetry] = {}
        self._by_pool: dict[str, tuple[tuple[EndpointTelemetry | None, EndpointLike], ...]] = {}
        self._listeners: list[Listener] = []
        self._page_listeners: list[PageListener] = []
        self._drafting = DraftingWatch()
        self._gone: dict[str, CounterTrack] = {}
        """Removed endpoints, so that one that comes back continues its counters."""
        self._retired: dict[str, dict[str, float]] = {}
        """Sums over the endpoints that were removed longest ago."""

    def listen(self, listener: Listener) -> None:
        """Calls `listener` for every difference of every pool; it must not raise."""
        self._listeners.append(listener)

    def listen_pages(self, listener: PageListener) -> None:
        """Calls `listener` for every page; it must not raise."""
        self._page_listeners.append(listener)

    # Following the pools

    def match(self) -> None:
        """Adds and removes records to match the live pools. Cheap; call it after a reload and periodically."""
        targets = {target.url: target for target in _targets(self._pools)}
        for url in [url for url in self._endpoints if url not in targets]:
            self._retire(url, self._endpoints.pop(url).track)
        for url, target in targets.items():
            if url in self._endpoints:
                self._endpoints[url].target = target
            else:
                self._endpoints[url] = EndpointTelemetry(target, self._gone.pop(url, None))
        self._by_pool = {
            pool.name: tuple((self._endpoints.get(source.url), source) for source in pool.endpoints)
            for pool in self._pools
        }
        self._drafting.match(targets)

    def _retire(self, url: str, track: CounterTrack) -> None:
        self._gone[url] = track
        if len(self._gone) > MAX_GONE:
            oldest = self._gone.pop(next(iter(self._gone)))
            for model, counts in _spec_totals(oldest):
                _add(self._retired.setdefault(model, {}), counts)

    def endpoints(self) -> Mapping[str, EndpointTelemetry]:
        """The live records by URL."""
        return self._endpoints

    def pools(self) -> Iterator[PoolLike]:
        return iter(self._pools)

    def models_of(self, pool: PoolLike) -> list[str]:
        """The policy's models that a pool serves."""
        return [model.name for model in self._models() if pool.name in model.pools]

    def lacks(self, pool: PoolLike, model: ModelLike, url: str) -> bool:
        """Whether the endpoint has reported its models and `model` is not among them."""
        told = self.identity(url).models
        return bool(told) and all(served.name != (pool.policy.model or model.name) for served in told)

    def missing(self, url: str) -> list[str]:
        """Model names that the policy needs from an endpoint and that it does not serve."""
        endpoint = self._endpoints.get(url)
        names = {member.pool for member in endpoint.target.members} if endpoint else set()
        asked = [(pool, model) for pool in self._pools if pool.name in names for model in self._models()]
        return list(
            dict.fromkeys(p.policy.model or m.name for p, m in asked if p.name in m.pools and self.lacks(p, m, url))
        )

    # Taking in

    def accept(self, url: str, snapshot: Snapshot, own: int) -> None:
        """Records an endpoint's page; `own` is the number of our own requests at the time of the page."""
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            return
        deltas = endpoint.accept(snapshot, own)
        self._drafting.check(endpoint.target, snapshot)
        for listener in self._page_listeners:
            listener(url, snapshot.at, deltas)
        readings = {reading.key: reading for reading in snapshot.readings}
        models = list(self._models())
        pools = {pool.name: pool for pool in self._pools}
        for member in endpoint.target.members:
            if member.pool in pools:
                pool = pools[member.pool]
                others = _other_models(pool, readings, models)
                for delta in deltas:
                    if delta.key.model not in others:
                        self._tell(pool, member, readings[delta.key], delta, models, snapshot)

    def _tell(
        self,
        pool: PoolLike,
        member: Membership,
        reading: Reading,
        delta: Delta,
        models: list[ModelLike],
        snapshot: Snapshot,
    ) -> None:
        counted = Counted(
            at=snapshot.at,
            pool=member.pool,
            model=model_of(pool, delta.key.model, models),
            kind=member.kind,
            k=self._tokens(member, reading),
            alone=len(pool.endpoints) == 1,
            running=reading.running,
            delta=delta,
        )
        for listener in self._listeners:
            listener(counted)

    def _tokens(self, member: Membership, reading: Reading) -> int:
        """The k that most of the pool's endpoints draft, so that one that differs does not make it alternate."""
        seen = [e.snapshot.positions for e, _ in self._by_pool.get(member.pool, ()) if e and e.snapshot]
        if len(seen) > 1:
            return max(set(seen), key=lambda k: (seen.count(k), k)) or (member.k if reading.drafting else 0)
        return reading.positions or (member.k if reading.drafting else 0)

    # Reading

    def snapshot(self, url: str) -> Snapshot | None:
        """An endpoint's last snapshot; None if there is none or it is stale."""
        endpoint = self._endpoints.get(url)
        return endpoint.fresh(self._clock()) if endpoint else None

    def others(self, url: str) -> float:
        """Other clients' requests at an endpoint at its last scrape; 0 where unknown. Our own are not included."""
        endpoint = self._endpoints.get(url)
        load = endpoint.load(self._clock()) if endpoint else None
        return load[0] if load else 0.0

    def pool_load(self, pool: str) -> TelemetryLoad:
        """A pool's load now. Without fresh telemetry it is our own requests only."""
        now = self._clock()
        in_flight = running = waiting = 0.0
        fresh = 0
        for endpoint, source in self._by_pool.get(pool, ()):
            in_flight += source.in_flight
            load = endpoint.load(now) if endpoint else None
            if load is not None:
                fresh += 1
                in_flight += load[0]
                running += load[1]
                waiting += load[2]
        return TelemetryLoad(in_flight, running, min(waiting, max(in_flight - running, 0.0)), fresh)

    def identity(self, url: str) -> Identity:
        """An endpoint's version and models; empty while unknown."""
        endpoint = self._endpoints.get(url)
        return endpoint.identity if endpoint else Identity()

    def disagreements(self) -> tuple[Disagreement, ...]:
        """Current mismatches of drafting between policy and engines."""
        return self._drafting.current()

    def statistics(self) -> list[dict[str, object]]:
        """Every endpoint's record as JSON values, for operators."""
        now = self._clock()
        return [endpoint.statistics(now) for endpoint in self._endpoints.values()]

    def spec_totals(self) -> dict[str, dict[str, float]]:
        """The back ends' speculative-decoding counters by served model, summed over endpoints and engines.

        They never fall: counts of restarted engines and of removed endpoints are kept.
        """
        totals = {model: dict(counts) for model, counts in self._retired.items()}
        for track in [*self._gone.values(), *(endpoint.track for endpoint in self._endpoints.values())]:
            for model, counts in _spec_totals(track):
                _add(totals.setdefault(model, {}), counts)
        return totals


def _other_models(pool: PoolLike, readings: Iterable[EngineKey], models: Iterable[ModelLike]) -> frozenset[str]:
    """The models on a page of several that are not the pool's.

    None are, if the pool's own is not among them by name: an engine reports the first of its served names only.
    """
    served = frozenset(key.model for key in readings)
    if len(served) < 2:
        return frozenset()
    own = served & {pool.policy.model or model.name for model in models if pool.name in model.pools}
    return served - own if own else frozenset()


def _targets(pools: PoolsLike) -> Iterator[Target]:
    rows: dict[str, list[tuple[PoolLike, EndpointLike]]] = {}
    for pool in pools:
        if pool.policy.telemetry.interval is not None:
            for endpoint in pool.endpoints:
                rows.setdefault(endpoint.url, []).append((pool, endpoint))
    for url, members in rows.items():
        policies = [pool.policy.telemetry for pool, _ in members]
        yield Target(
            url=url,
            api_key=next((endpoint.api_key for _, endpoint in members if endpoint.api_key), None),
            interval=min(policy.interval for policy in policies if policy.interval is not None),
            stale_after=min(policy.stale_after for policy in policies),
            members=tuple(Membership(p.name, p.kind, p.policy.speculative.tokens if p.policy.speculative else 0)
                          for p, _ in members),
            sources=tuple(endpoint for _, endpoint in members),
        )  # fmt: skip


def _spec_totals(track: CounterTrack) -> Iterator[tuple[str, dict[str, float]]]:
    for key, counts in track.totals():
        spec = {n: v for n, v in counts.items() if n in SPEC_COUNTERS or n.startswith("accepted_at_")}
        if spec:
            yield key.model, spec


def _add(sums: dict[str, float], counts: Mapping[str, float]) -> None:
    for name, value in counts.items():
        sums[name] = sums.get(name, 0.0) + value
