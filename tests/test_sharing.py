"""Learned state between processes and across restarts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gateway.api.core import Learned
from gateway.estimate.estimator import Estimator
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.request.tokens import TokenEstimator
from gateway.routing.state import RoutingState
from gateway.sharing import Sharing
from gateway.state.memory import MemoryStore
from gateway.state.snapshot import Snapshots
from gateway.types import Api, Features, Outcome, Result, Usage


def features() -> Features:
    body = (
        b'{"model":"m","messages":[{"role":"system","content":"You file notes."},{"role":"user","content":"Go on."}]}'
    )
    return extract(parse_body(body), Api.CHAT)


def replica(folder: Path, name: str, number: int = 0) -> tuple[Learned, Sharing]:
    learned = Learned(Estimator(share=True), TokenEstimator(), RoutingState(lambda: 0.0, random.Random(1)))
    store = MemoryStore(replicas=1, snapshots=Snapshots(folder, name), wall=lambda: 1e9)
    return learned, Sharing(store, learned, name, number)


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
