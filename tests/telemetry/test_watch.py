"""What finished answers tell the checklist: time per token, filed under the load that they ran beside."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gateway.policy.schema import Engine
from gateway.routing.router import Router
from gateway.routing.state import RoutingState
from gateway.simulate.world import no_connector
from gateway.telemetry.identity import Identity
from gateway.telemetry.vllm import PageReader
from gateway.types import CostTerms, Decision, PoolCost, PoolKind, Reason, Result
from gateway.upstream.pools import Pools
from gateway.watch import Watch
from tests.routing.worlds import MODEL, estimate, outcome, policy, request
from tests.telemetry.helpers import Clock, engine

MTP = "http://127.0.0.1:9002"


def rig() -> tuple[Clock, Pools, Watch, RoutingState]:
    """The watch over a plain and a drafting pool, and the state whose curves it reads."""
    clock, rng, of = Clock(), Random(1), policy()
    pools = Pools(lambda *_: no_connector(), rng, clock)
    pools.apply(of)
    state = RoutingState(clock, rng)
    Router(of, state)
    return clock, pools, Watch(pools, of.models.values, lambda: of.mtp, state.curves, clock), state


def taken(pool: str, running: float) -> Decision:
    """A decision for a pool in which so many others ran."""
    terms = CostTerms(running, 0.0, 0.05, 1.0, 0.0, 0.0)
    return Decision(
        model=MODEL, pool=pool, reason=Reason.FASTER, costs=(PoolCost(pool, PoolKind(pool), 1.05, None, terms),)
    )


@pytest.mark.parametrize(("begun", "elsewhere", "alike"), [(0.0, 0, True), (16.0, 0, False), (0.0, 16, False)])
def test_times_are_compared_at_the_load_of_the_answers(begun: float, elsewhere: int, alike: bool) -> None:
    """An answer that began in a crowd, or runs beside other clients' requests, is not compared with one that ran alone,
    though both end when this gateway has nothing else under way."""
    clock, _, watch, _ = rig()
    watch.tick()
    page = engine(MODEL, num_requests_running=float(elsewhere), num_requests_waiting=0.0)
    watch.view.accept(MTP, PageReader().read(page.encode(), clock()), 0)
    watch.tick()
    for _ in range(30):
        for pool, running, each in (("plain", 0.0, 0.010), ("mtp", begun, 0.012)):
            watch.observe(outcome(request(), estimate(200), taken(pool, running), each=each))
    (report,) = watch.checklist.reports()

    assert (report.gain is not None) == alike
    if report.gain:
        assert report.gain.gain == pytest.approx(-0.2)


def test_a_pool_is_compared_with_the_plain_ones_curve_where_their_loads_differ() -> None:
    """The plain pool runs almost empty and the drafting one full, so that no two answers are alike; the plain pool's
    learned speed tells what it would take at the drafting one's load."""
    clock, _, watch, state = rig()
    for _ in range(60):
        clock.now += 0.2
        for pool, running, each in (("plain", 0.0, 0.010), ("mtp", 16.0, 0.012)):
            done = outcome(request(), estimate(200), taken(pool, running), each=each, now=clock.now)
            state.observe(done)
            watch.observe(done)
    (report,) = watch.checklist.reports()
    gain = report.gain

    assert gain is not None
    assert (gain.source, gain.load) == ("curve", 3)
    assert report.gain_by_load == (gain,)
    assert report.as_dict()["gain_by_load"] == [gain.as_dict()]


@pytest.mark.parametrize(("own", "running", "waiting"), [(40, 4, 36), (10, 4, 6), (3, 3, 0), (0, 0, 0), (60, 24, 36)])
def test_what_waits_inside_an_engine_is_waited_for_and_not_run_beside(own: int, running: int, waiting: int) -> None:
    """SPEC-07: an engine's own queue counts as a queue, which its running requests work off, also when ours have come
    or gone since its last page."""
    clock, pools, watch, _ = rig()
    watch.tick()
    page = engine(MODEL, num_requests_running=4.0, num_requests_waiting=36.0)
    watch.view.accept(MTP, PageReader().read(page.encode(), clock()), 40)
    leases = [pools["mtp"].lease() for _ in range(40)]
    watch.tick()
    for lease in leases[own:]:
        assert lease
        lease.release(Result.CLIENT_CLOSED)
    leases += [pools["mtp"].lease() for _ in range(own - 40)]

    load = watch.load("mtp")

    assert (load.in_flight, load.waiting) == (running, waiting)


def test_an_endpoint_hears_from_its_page_whether_its_engine_makes_tokens() -> None:
    """HEALTH-01: the only sign of life of an engine that makes whole answers; without the counter nothing is known."""
    clock, pools, watch, _ = rig()
    (endpoint,) = pools["mtp"].endpoints
    watch.tick()
    told = []
    for counts in (
        {},
        {"generation_tokens_total": 5.0},
        {"generation_tokens_total": 5.0},
        {"generation_tokens_total": 6.0},
    ):
        clock.now += 10.0
        page = engine(MODEL, num_requests_running=1.0, **counts)
        watch.view.accept(MTP, PageReader().read(page.encode(), clock()), 0)
        watch.tick()
        told.append((endpoint.counts_tokens(clock()), clock() - endpoint.generated_at < 5.0))

    assert told == [(False, False), (True, False), (True, False), (True, True)]


def test_a_version_that_is_not_the_policys_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A contradiction between policy and engine is logged, again only when the engine or the policy changes."""
    _, pools, watch, _ = rig()
    of = policy()
    stated = replace(of.pools["mtp"], engine=Engine(vllm="0.30"))
    pools.apply(replace(of, pools={**of.pools, "mtp": stated}))
    watch.tick()
    record = watch.view.endpoints()[MTP]
    for version in ("0.30.1", "0.33.0", "0.33.0", "0.34.0"):
        record.identity = Identity(version)
        watch.tick()

    said = [record.message for record in caplog.records]
    assert [("0.33.0" in line, "0.34.0" in line) for line in said] == [(True, False), (False, True)]
    assert all("correct `engine.vllm`" in line for line in said)
