"""The composition root: `build` makes the ASGI application from settings and a policy. All wiring is here.

Routed paths are looked up in one dictionary and answered as plain ASGI; FastAPI serves everything else.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from random import Random

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from gateway import __version__
from gateway.access.limits import Limits
from gateway.api.afterwards import Afterwards
from gateway.api.core import Active, Core, Learned, Tracer, activate
from gateway.api.exchange import Observer
from gateway.api.models import ModelList
from gateway.api.opinion import desk_for
from gateway.api.ops import keep_gauges, ops_router, shape_errors
from gateway.api.surface import Surface
from gateway.decisions.log import DecisionLog
from gateway.discovery.follow import follower
from gateway.discovery.found import Follow
from gateway.discovery.keeper import Discovery
from gateway.drain import background, drain_on_signals
from gateway.estimate.estimator import Estimator
from gateway.exposition import DIRECTORY, worker_number
from gateway.heap import settle_heap, tidy_heap
from gateway.hindsight import Hindsight
from gateway.logs import RequestLines, RequestLog, configure
from gateway.metrics import Metrics
from gateway.policy.describe import warnings
from gateway.policy.load import PolicyInvalid, load_policy
from gateway.policy.schema import Endpoint, FoundEndpoint, Policy, Pool
from gateway.policy.watch import PolicyWatcher, ReloadState
from gateway.request.tokens import TokenEstimator
from gateway.routing.state import RoutingState
from gateway.settings import Settings, resolve
from gateway.sharing import Sharing, local_view
from gateway.state.board import shared_counts
from gateway.state.home import open_store
from gateway.state.snapshot import Snapshots
from gateway.telemetry.fetch import ConnectorFetch
from gateway.tracing import open_tracer
from gateway.ui.routes import ui_router
from gateway.upstream.client import Connector, Timeouts
from gateway.upstream.connect import connect
from gateway.upstream.health import Prober
from gateway.upstream.pools import Pools
from gateway.upstream.shed import raise_file_limit
from gateway.watch import Watch

log = logging.getLogger("gateway")


class Gateway(Surface):
    """The ASGI application of one process."""

    frame: FastAPI


def build(
    settings: Settings,
    policy: Policy,
    *,
    env: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
    rng: Random | None = None,
    lines: RequestLines | None = None,
    own_process: bool = False,
    follow: Follow | None = None,
) -> Gateway:
    """Makes the application. Nothing runs or connects before its lifespan starts.

    `lines` takes the requests' log lines, see `logs.configure`. With `own_process` the application handles stop signals
    and tunes the garbage collector. `follow` finds endpoints, by default with this machine's resolver and cluster.
    Raises InvalidSetting, and PolicyInvalid for a shadow or canary policy.
    """
    rng = rng or Random()
    # Called once only: a second call would take another worker's number.
    replica = replica_name(settings.port, env)
    discovery = Discovery(follow or follower(env, rng))
    core, watch, hindsight = compose(settings, policy, discovery, replica, env, clock, rng, lines)
    watcher = policy_watcher(settings, policy, core, env) if settings.policy else None

    def connect_to(url: str) -> Connector:
        return connect(url, host=discovery.host_of(url))

    pages = ConnectorFetch(connect_to, Timeouts(), discovery.host_of)
    sharing = Sharing(core.store, core.learned, replica, time.time_ns())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warn_at_start(settings, policy)
        core.pools.shedder.files = raise_file_limit(policy.server.max_requests)
        await core.store.start(lambda: local_view(core))
        await sharing.restore()
        running = [
            Prober(core.pools, rng, lambda: core.store.others).run(),
            discovery.run(),
            keep_gauges(core),
            sharing.run(),
            watch.run(connect_to, discovery.host_of, rng),
            *hindsight.begin(),
            *([tidy_heap()] if own_process else []),
            *([lines.run()] if lines else []),
            *([watcher.run()] if watcher else []),
        ]
        if own_process:
            settle_heap()
        with drain_on_signals(core, lambda: core.active.policy.server.grace) if own_process else nullcontext():
            async with background(running), sending(core.tracer):
                yield
                core.afterwards.flush()
        await put_away(core, sharing)
        await pages.aclose()

    frame = FastAPI(title="MTP gateway", version=__version__, lifespan=lifespan, redoc_url=None)
    add_routes(frame, core, ModelList(core, pages, clock), watcher, settings.workers)
    return Gateway(core, frame)


async def put_away(core: Core, sharing: Sharing) -> None:
    """The end, once no request runs: saves what was learned and closes connections."""
    await core.decisions.flush()
    await sharing.publish()
    await core.store.aclose()
    await core.pools.aclose()


def add_routes(frame: FastAPI, core: Core, models: ModelList, watcher: PolicyWatcher | None, workers: int) -> None:
    """Adds everything that is not on the request path."""

    def reload_state() -> ReloadState | None:
        return watcher.state if watcher else None

    frame.include_router(ops_router(core, models, reload_state))
    frame.include_router(ui_router(core, reload_state, time.time, workers))
    shape_errors(frame)


def compose(
    settings: Settings,
    policy: Policy,
    discovery: Discovery,
    replica: str,
    env: Mapping[str, str],
    clock: Callable[[], float],
    rng: Random,
    lines: RequestLines | None = None,
) -> tuple[Core, Watch, Hindsight]:
    """Makes and wires the parts of the request path; `policy` becomes the live one."""
    metrics, tracer = Metrics(CollectorRegistry()), open_tracer(env, replica, clock, rng)
    pools = Pools(make_connector, rng, clock)
    learned = Learned(Estimator(share=True), TokenEstimator(), RoutingState(clock, rng, pools))
    watch = Watch(
        pools,
        lambda: core.active.policy.models.values(),
        lambda: core.active.policy.mtp,
        learned.routing.curves,
        clock,
        lambda: core.store.others,
    )
    store = open_store(
        settings.redis_url,
        redis_wait=settings.redis_wait / 1000,
        replica=replica,
        rng=rng,
        processes=settings.workers,
        snapshots=Snapshots(Path(settings.state_dir), replica) if settings.state_dir else None,
        clock=clock,
    )
    request_log = RequestLog(lambda: core.active.policy.logging.requests, rng, lines)
    hindsight = Hindsight(learned, DecisionLog(lambda: core.active.policy.logging, store), metrics, clock())
    observers = (metrics.observe, request_log.observe, hindsight.observe, watch.observe, *observing(tracer))
    # With several workers, another one may be asked at any time for what this one counts.
    settle = metrics.settle if DIRECTORY in env else None
    core = Core(
        active=activate(policy, 1, learned.routing, desk_for(policy.second_opinion, None, clock)),
        pools=pools,
        discovery=discovery,
        watch=watch,
        learned=learned,
        limits=Limits(store, clock=clock, board=shared_counts(settings, env)),
        store=store,
        metrics=metrics,
        decisions=hindsight.decisions,
        afterwards=Afterwards(observers, clock, settle),
        clock=clock,
        new_id=request_ids(rng),
        tracer=tracer,
    )
    if path := settings.canary_policy:
        core.canary = hindsight.send_canary(path, env, watch, clock, rng, lambda: adopt(core, core.active))
    adopt(core, core.active)
    discovery.on_change = lambda: core.pools.apply(discovery.fill(core.active.policy))
    if settings.shadow_policy:
        hindsight.cast_shadow(settings.shadow_policy, env, watch, clock)
    return core, watch, hindsight


def observing(tracer: Tracer | None) -> tuple[Observer, ...]:
    """The tracer as an observer of outcomes, if there is one."""
    return (tracer.observe,) if tracer else ()


@asynccontextmanager
async def sending(tracer: Tracer | None) -> AsyncIterator[None]:
    """Sends spans as long as the block runs; does nothing without a tracer."""
    if tracer:
        tracer.start()
    try:
        yield
    finally:
        if tracer:
            await tracer.aclose()


def adopt(core: Core, active: Active) -> None:
    """Makes a policy the live one, at the start and on every reload: first what follows it, then the swap."""
    policy = active.policy
    core.metrics.allow({name: model.pools for name, model in policy.models.items()}, policy.pools)
    core.pools.apply(core.discovery.fill(policy))
    core.limits.apply(policy.access)
    core.active = core.canary.beside(active) if core.canary else active


def make_connector(endpoint: Endpoint, pool: Pool) -> Connector:
    """The connector for one endpoint of the policy."""
    host = endpoint.host if isinstance(endpoint, FoundEndpoint) else None
    limit = pool.limits.connections
    # One more than requests may have (`Endpoint.room`): a health probe must take none of theirs.
    return connect(endpoint.url, host=host, limit=limit + 1 if limit else 0)


def replica_name(port: int, env: Mapping[str, str]) -> str:
    """A name for this process, the same after a restart and different from every other's: host, port (a host may run
    several gateways) and the worker's number. The call takes the number, so that a second call gets another name."""
    folder = env.get(DIRECTORY)
    return f"{socket.gethostname()}-{port}-{worker_number(Path(folder)) if folder else 0}"


def request_ids(rng: Random) -> Callable[[], str]:
    """Makes ids that are cheap and unique across processes: a random prefix, then a counter."""
    prefix = f"{rng.getrandbits(64):016x}"
    number = 0

    def new_id() -> str:
        nonlocal number
        number += 1
        return f"gw-{prefix}-{number:x}"

    return new_id


def policy_watcher(settings: Settings, policy: Policy, core: Core, env: Mapping[str, str]) -> PolicyWatcher:
    """Follows the policy file. A change takes the same path as the policy at the start."""

    def on_change(changed: Policy) -> None:
        desk = desk_for(changed.second_opinion, core.active.opinion, core.clock)
        active = activate(changed, core.active.version + 1, core.learned.routing, desk)
        adopt(core, active)
        core.metrics.policy_reloads.labels("ok").inc()
        log.info("policy reloaded", extra={"fields": {"hash": changed.version_hash, "version": active.version}})

    def on_failure(error: PolicyInvalid) -> None:
        core.metrics.policy_reloads.labels("failed").inc()
        log.error("policy not reloaded; the last good one stays in use", extra={"fields": {"problems": str(error)}})

    def on_restored() -> None:
        core.metrics.policy_reloads.labels("ok").inc()
        log.info("the file holds the policy in use again", extra={"fields": {"hash": core.active.policy.version_hash}})

    return PolicyWatcher(
        settings.policy, env, policy, on_change=on_change, on_failure=on_failure, on_restored=on_restored
    )


def warn_at_start(settings: Settings, policy: Policy) -> None:
    """Logs what looks like a mistake in the policy, and open access on a public address."""
    for line in warnings(policy):
        log.warning("policy: %s", line)
    if policy.access is None and settings.host not in ("127.0.0.1", "localhost", "::1"):
        log.warning("open to everybody who can reach %s: the policy has no `access` section", settings.host)


def from_environment() -> Gateway:
    """The factory that worker processes call; `gateway serve` passes its options on in the environment."""
    settings = resolve({}, os.environ)
    lines = configure(settings.log_format, settings.log_level)
    return build(settings, load_policy(settings.policy, os.environ), env=os.environ, lines=lines, own_process=True)
