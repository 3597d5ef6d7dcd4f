"""Which finished requests teach."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.hindsight import LESSONS, LESSONS_AHEAD, Lessons
from tests.gateways import gateway
from tests.raw_client import ask


def taken(lessons: Lessons, times: Sequence[float]) -> list[int]:
    return [lessons.take(now) for now in times]


def test_every_request_teaches_while_there_are_few() -> None:
    """Below the rate each request stands for itself alone, for as long as one likes."""
    lessons = Lessons(0.0)
    assert set(taken(lessons, [number / (LESSONS * 0.9) for number in range(20_000)])) == {1}


def test_a_burst_after_a_quiet_time_teaches_whole() -> None:
    """A load test of some seconds is not thinned out at its beginning."""
    lessons = Lessons(0.0)
    assert set(taken(lessons, [100.0] * LESSONS_AHEAD)) == {1}
    assert lessons.take(100.0) == 0


def test_an_even_share_teaches_under_load() -> None:
    """At five times the rate one in five teaches and stands for five, and all together stand for all."""
    lessons = Lessons(0.0)
    rows = taken(lessons, [number / (LESSONS * 5) for number in range(50_000)])
    late = [row for row in rows[-10_000:] if row]
    assert 1990 <= len(late) <= 2010
    assert set(late) <= {4, 5, 6}
    assert 50_000 - 6 <= sum(rows) <= 50_000


async def test_a_request_that_teaches_nothing_is_let_go() -> None:
    """What the estimator kept for its outcome holds text, and no more of it than what runs."""
    policy = "{version: 1, pools: {p: {endpoints: ['http://127.0.0.1:9']}}, models: {m: {pools: [p]}}}"
    async with gateway(policy) as running:
        for _ in range(3):
            got = await ask(running.url, {"model": "m", "messages": [{"role": "user", "content": "Tell me."}]})
            assert got.status in (502, 503)
        running.core.afterwards.flush()
        assert running.core.learned.estimator.statistics().waiting == 0
