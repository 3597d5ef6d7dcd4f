"""Learned state between processes and across restarts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.api.core import Learned
from gateway.estimate.estimator import Estimator
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.request.tokens import TokenEstimator
from gateway.routing.curve import Curve
from gateway.routing.state import RoutingState
from gateway.sharing import Sharing
from gateway.state.memory import MemoryStore
from gateway.state.snapshot import Snapshots
from gateway.state.store import Store, View
from gateway.types import Api, Features, Outcome, Result, Usage
from tests.redis_server import redis_server
from tests.routing.worlds import G4
from tests.state.stores import eventually, hurry, make_store, replicas


def features() -> Features:
    body = (
        b'{"model":"m","messages":[{"role":"system","content":"You file notes."},{"role":"user","content":"Go on."}]}'
    )
    return extract(parse_body(body), Api.CHAT)


def replica(folder: Path, name: str, number: int = 0) -> tuple[Learned, Sharing]:
    return on(MemoryStore(replicas=1, snapshots=Snapshots(folder, name), wall=lambda: 1e9), name, number)


def on(store: Store, name: str, number: int = 0) -> tuple[Learned, Sharing]:
    learned = Learned(Estimator(share=True), TokenEstimator(), RoutingState(lambda: 0.0, random.Random(1)))
    return learned, Sharing(store, learned, name, number)


def curve(learned: Learned) -> Curve:
    return learned.routing.curves.curve("mtp", "m", G4, 2)


def teach(learned: Learned, tokens: int, times: int = 30) -> None:
    for _ in range(times):
        asked = features()
        learned.estimator.estimate(asked)
        usage = Usage(prompt_tokens=20, completion_tokens=tokens)
        learned.estimator.observe(
            Outcome(request_id="r", result=Result.OK, status=200, started=0, ended=1, features=asked, usage=usage)
        )


def expects(learned: Learned) -> float:
    """Tokens; a template that was read before is told a trifle otherwise than one that has to be read."""
    return learned.estimator.estimate(features()).p50


async def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    """A process that comes back finds its own state again."""
    learned, sharing = replica(tmp_path, "a")
    before = expects(learned)
    teach(learned, 700)
    await sharing.publish()
    again, restarted = replica(tmp_path, "a", 100)
    await restarted.restore()

    assert abs(expects(learned) - before) > 100
    assert expects(again) == pytest.approx(expects(learned), rel=0.001)


async def test_news_of_another_process_is_taken_once(tmp_path: Path) -> None:
    """Two workers exchange what each learned; repeating the exchange changes nothing more."""
    (one, first), (two, second) = replica(tmp_path, "one"), replica(tmp_path, "two")
    teach(one, 700)
    await first.publish()
    await second.publish()
    heard, known = expects(two), two.estimator.snapshot()
    for _ in range(5):
        await second.publish()

    assert abs(heard - expects(one)) < 0.25 * expects(one)
    assert two.estimator.snapshot() == known


async def test_a_new_replica_starts_from_the_largest_snapshot(tmp_path: Path) -> None:
    """A scaled-out replica is not cold."""
    learned, sharing = replica(tmp_path, "old")
    teach(learned, 700)
    await sharing.publish()
    fresh, joined = replica(tmp_path, "new")
    await joined.restore()

    assert expects(fresh) == pytest.approx(expects(learned), rel=0.001)


async def test_learned_speeds_stay_after_a_restart(tmp_path: Path) -> None:
    """The first publication after a restart, of nothing new, takes away nothing old: here, or for the others."""
    (one, first), (other, beside) = replica(tmp_path, "a"), replica(tmp_path, "b")
    for _ in range(40):
        curve(one).tpot.learn(2.0, ("chat",), 1.0)
    await first.publish()
    again, restarted = replica(tmp_path, "a", 100)
    seen = [curve(again).tpot.seen, curve(other).tpot.seen]
    await restarted.restore()
    await restarted.publish()
    await beside.publish()

    assert seen == [0.0, 0.0]
    for there in (again, other):
        assert curve(there).tpot.seen == pytest.approx(curve(one).tpot.seen, rel=0.01)
        assert curve(there).tpot.log("chat") == pytest.approx(curve(one).tpot.log("chat"), rel=0.01)


def count(learned: Learned, times: int = 0) -> int:
    """Prompt tokens of a request, after the back end has reported twice as many as were expected `times` times."""
    asked = features()
    for _ in range(times):
        learned.tokens.observe(asked.model, asked.profile, 2 * asked.input_tokens)
    return learned.tokens.estimate(asked.model, asked.profile)


async def test_prompts_are_counted_right_at_once_after_a_restart(tmp_path: Path) -> None:
    """What token counting has learned of a model stays with the process, and a new replica starts with it."""
    learned, sharing = replica(tmp_path, "a")
    cold, warm = count(learned), count(learned, 30)
    await sharing.publish()
    (again, restarted), (fresh, joined) = replica(tmp_path, "a", 100), replica(tmp_path, "b")
    await restarted.restore()
    await joined.restore()

    assert warm > 1.8 * cold
    assert count(again) == count(fresh) == warm


async def test_prompts_are_counted_alike_by_all_replicas_of_a_redis() -> None:
    """Each replica adds what the others have observed to its own, once; and a restarted one finds both again."""
    with redis_server() as server:
        async with replicas(server.url, 2) as stores:
            (one, first), (two, second) = (on(store, name) for store, name in zip(stores, "ab", strict=True))
            for sharing in (first, second):
                await sharing.restore()
            warm = count(one, 30)
            for sharing in (first, second, first, second):
                await sharing.publish()
            heard = count(two)
            again, restarted = on(stores[0], "a", 100)
            await restarted.restore()

    assert heard == warm
    assert count(again) == count(one)


async def test_a_start_while_redis_is_silent_loses_nothing(tmp_path: Path) -> None:
    """REDIS-01: who could not read what was learned publishes nothing in its place, and reads it once it can."""
    with redis_server() as server:
        before = make_store(server.url, interval=3600.0)
        await before.start(View)
        learned, sharing = on(before, "a")
        await sharing.restore()
        teach(learned, 700)
        curve(learned).tpot.learn(2.0, ("chat",), 1.0)
        await sharing.publish()
        await before.aclose()

        server.freeze()
        store = make_store(server.url, interval=3600.0)
        hurry(store, 0.05)
        await store.start(View)
        again, restarted = on(store, "a", 100)
        cold = expects(again)
        curve(again)
        await restarted.restore()
        await restarted.publish()
        unread = expects(again)
        server.thaw()
        hurry(store, 60.0)
        await eventually(lambda: store._bulk.link.allows())
        await store.sync()
        await restarted.publish()
        await store.aclose()

        assert unread == cold
        assert expects(again) == pytest.approx(expects(learned), rel=0.001)
        assert curve(again).tpot.seen == pytest.approx(1.0, rel=0.01)


async def test_one_late_answer_loses_nothing_at_the_end(tmp_path: Path) -> None:
    """REDIS-01: what a process has learned when it stops is sent again where Redis was silent for a moment."""
    with redis_server() as server:
        store = make_store(server.url, interval=3600.0)
        await store.start(View)
        learned, sharing = on(store, "a")
        await sharing.restore()
        teach(learned, 700)
        hurry(store, 0.2)
        server.freeze()
        ending = asyncio.create_task(sharing.publish())
        await eventually(lambda: not store._bulk.link.sound)
        hurry(store, 60.0)
        server.thaw()
        await ending
        await store.aclose()

        late = make_store(server.url, "b", interval=3600.0)
        await late.start(View)
        again, restarted = on(late, "b", 100)
        await restarted.restore()
        await late.aclose()

        assert expects(again) == pytest.approx(expects(learned), rel=0.001)
