"""Answers that come whole: how long their first byte may take, which is their last as well, and what ends the wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from gateway.errors import UpstreamTimeout
from gateway.types import Result
from gateway.upstream.breaker import Gate, Trip
from gateway.upstream.call import Opened
from gateway.upstream.client import Timeouts
from gateway.upstream.late import why_late
from gateway.upstream.lease import Lease
from gateway.upstream.pools import Pools
from gateway.upstream.retry import Hung, Late, Overdue
from gateway.upstream.stall import is_stalled, watch_stalls
from tests.answers import hang, reply
from tests.stub import Call, Stub
from tests.upstream.live import Client, Clock, only, policy_of, still, wired

WHOLE = reply({"choices": [{"message": {"content": "hi"}}]})
LIMIT = ", timeouts: {first_byte: 50ms}"
LONG = 60.0
"""Seconds that an answer's tokens may take; more than any test waits."""

Via = Literal["lean", "httpx"]
both = pytest.mark.parametrize("via", ["lean", "httpx"])


def lease_of(pools: Pools, more: float, *, stream: bool = False) -> Lease:
    lease = pools["p"].lease()
    assert lease is not None
    lease.extra, lease.stream = (lambda: more) if more else None, stream
    return lease


async def test_more_time_is_worked_out_only_where_it_is_late() -> None:
    """An answer that comes in time costs nothing for it; the extra time is for the first byte alone."""
    asked: list[float] = []

    def extra() -> float:
        asked.append(LONG)
        return LONG

    async def piece_and_silence(call: Call) -> None:
        await call.head(headers=[("transfer-encoding", "chunked")])
        await call.chunk(b"piece")
        await call.hang()

    async with Stub(piece_and_silence) as stub, wired(policy_of({"p": [stub.url]})) as live:
        stub.script.append(WHOLE)
        connector = only(live).connector
        response = await connector.send(b"POST", b"/v1/completions", [], b"{}", Timeouts(first_byte=60.0), extra)
        assert await response.read()
        response = await connector.send(b"POST", b"/v1/completions", [], b"{}", Timeouts(idle=0.05), extra)
        assert await response.read() == b"piece"
        with pytest.raises(UpstreamTimeout) as late:
            await response.read()

    assert late.value.phase == "idle"
    assert not asked


@both
class TestWait:
    async def test_an_answer_that_is_longer_than_the_limit_comes(self, via: Via) -> None:
        """TIMEOUT-02: while a stream beside it has run out of time, it is waited for."""
        done = asyncio.Event()

        async def generating(call: Call) -> None:
            await done.wait()
            await WHOLE(call)

        async with Stub(generating) as stub:
            policy = policy_of({"p": [stub.url]}, own={"p": LIMIT})
            async with wired(policy, via=via) as live:
                only(live).heard_at = math.inf
                whole = asyncio.create_task(Client(live).open(more=LONG))
                await stub.until(lambda: len(stub.requests) == 1)
                with pytest.raises(UpstreamTimeout, match="first byte"):
                    await Client(live).open(attempts=1, stream=True)
                assert not whole.done()
                done.set()
                opened = await whole
                opened.lease.release(Result.OK)

                assert opened.response.status == 200
                await stub.until(lambda: len(stub.requests) == 2)

    async def test_an_engine_that_tells_nothing_has_the_limit_alone(self, via: Via) -> None:
        """TIMEOUT-02: whether it is at work can't be known, so that what the policy says is all there is."""
        async with Stub(hang) as stub, wired(policy_of({"p": [stub.url]}, own={"p": LIMIT}), via=via) as live:
            with pytest.raises(UpstreamTimeout, match="first byte"):
                await Client(live).open(more=LONG)

            await stub.until(lambda: len(stub.requests) == 1)

    async def test_the_wait_ends_and_another_endpoint_is_asked(self, via: Via) -> None:
        """TIMEOUT-03: the engine answers nobody; the connection is closed before the second request goes out."""
        async with (
            Stub(hang) as a,
            Stub(WHOLE) as b,
            wired(policy_of({"p": [a.url], "q": [b.url]}, own={"p": LIMIT}), via=via) as live,
        ):
            client = Client(live)
            live["p"].endpoints[0].heard_at = math.inf
            opened = await client.open(more=0.05)
            opened.lease.release(Result.OK)
            await a.until(lambda: a.open == 0)

            assert client.retries == [("p", "hung")]
            assert [pool.in_flight for pool in live] == [0, 0]

    async def test_a_hung_endpoint_is_found_and_its_answers_come_from_elsewhere(self, via: Via) -> None:
        """HEALTH-01: no new token on its page for the usual limit, however long its answers may take."""
        async with self.hung(via, elsewhere=True) as (_, task, client):
            opened = await task
            assert isinstance(opened, Opened)
            opened.lease.release(Result.OK)

            assert (opened.lease.pool, client.retries) == ("q", [("p", "moved")])

    async def test_where_there_is_no_other_the_request_ends(self, via: Via) -> None:
        """TIMEOUT-02: a 504 about when a stream would have had it, not after the time of tokens that nobody makes."""
        async with self.hung(via, elsewhere=False) as (live, task, _):
            await asyncio.sleep(0)
            assert not task.done()
            assert only(live).breaker.gate is Gate.SHUT
            watch_stalls(live, 1.0)
            with pytest.raises(Hung):
                await task

            assert only(live).in_flight == 0

    @asynccontextmanager
    async def hung(self, via: Via, *, elsewhere: bool) -> AsyncIterator[tuple[Pools, asyncio.Task[Opened], Client]]:
        """A whole answer is waited for where no token is made, and the watch has just seen that."""
        clock = Clock()
        async with Stub(hang) as a, Stub(WHOLE) as b:
            urls = {"p": [a.url], "q": [b.url]} if elsewhere else {"p": [a.url]}
            async with wired(policy_of(urls), clock, via) as live:
                client = Client(live)
                live["p"].endpoints[0].heard_at = clock()
                task = asyncio.create_task(client.open(more=LONG))
                await a.until(lambda: len(a.requests) == 1)
                clock.pass_(300.0)
                only(live).heard_at = clock()
                assert watch_stalls(live, 300.0) == [only(live)]
                yield live, task, client


class TestStall:
    def look(self, pools: Pools, clock: Clock, seconds: int, *, page: bool = False, tokens: bool = False) -> bool:
        """The watch, once a second; each time after a page, perhaps one that tells of new tokens."""
        found = False
        for _ in range(seconds):
            clock.pass_(1.0)
            if page:
                only(pools).heard_at = clock()
            if tokens:
                only(pools).generated_at = clock()
            found = found or is_stalled(only(pools), 30.0, 1.0)
        return found

    def rig(self) -> tuple[Pools, Clock]:
        clock = Clock()
        return still(policy_of({"p": ["http://a:1"]}, own={"p": ", timeouts: {first_byte: 30s}"}), clock), clock

    def test_an_engine_that_makes_tokens_does_not_hang(self) -> None:
        """A lone long answer shows nothing else; once the tokens stop, the usual limit holds."""
        pools, clock = self.rig()
        lease_of(pools, LONG)

        assert not self.look(pools, clock, 300, page=True, tokens=True)
        assert not self.look(pools, clock, 29, page=True)
        assert self.look(pools, clock, 1, page=True)

    def test_tokens_do_not_hide_streams_that_have_stopped(self) -> None:
        """Past the first byte silence is judged by the pieces that come."""
        pools, clock = self.rig()
        lease = lease_of(pools, 0.0, stream=True)
        lease.first_byte(clock())
        lease.waits = True
        only(pools).moved = False

        assert self.look(pools, clock, 30, page=True, tokens=True)

    def test_without_a_page_the_shortest_answers_time_is_left(self) -> None:
        """What an engine does that tells nothing can't be known before that."""
        pools, clock = self.rig()
        lease_of(pools, LONG)
        lease_of(pools, 6.0)

        assert not self.look(pools, clock, 35)
        assert self.look(pools, clock, 2)

    def test_a_stream_that_comes_then_finds_the_usual_limit(self) -> None:
        """Neither is it found hung by the seconds of the long answer, nor much later than by the stream alone."""
        pools, clock = self.rig()
        lease_of(pools, LONG)
        assert not self.look(pools, clock, 29)
        lease_of(pools, 0.0, stream=True)

        assert not self.look(pools, clock, 15)
        assert self.look(pools, clock, 10)

    @pytest.mark.parametrize(("tokens", "gate"), [(False, Gate.SHUT), (True, Gate.OPEN)])
    def test_a_time_out_of_an_engine_at_work_is_one_failure(self, tokens: bool, gate: Gate) -> None:
        """HEALTH-01: nobody has had an answer in the latter half; only its page tells the two apart."""
        pools, clock = self.rig()
        lease = lease_of(pools, LONG)
        self.look(pools, clock, 90, tokens=tokens)
        lease.release(Result.TIMEOUT)

        assert only(pools).breaker.gate is gate

    @pytest.mark.parametrize(
        ("age", "page", "tokens", "ends"),
        [(30.0, True, False, True), (29.0, True, False, False), (30.0, True, True, False), (30.0, False, False, False)],
    )
    def test_what_waits_at_a_hung_endpoint_ends_at_the_usual_limit(
        self, age: float, page: bool, tokens: bool, ends: bool
    ) -> None:
        """Not before it, not where tokens are made after all, and not where nobody knows."""
        pools, clock = self.rig()
        lease = lease_of(pools, LONG)
        told: list[bool] = []
        lease.move = lambda *, anyway: told.append(anyway)
        clock.pass_(age)
        if page:
            only(pools).heard_at = clock()
        if tokens:
            only(pools).generated_at = clock()
        only(pools).breaker.trip(clock(), Trip.STALL)
        watch_stalls(pools, 1.0)

        assert told == [True] * ends


class TestWhy:
    @pytest.mark.parametrize(
        ("stream", "more", "expected", "kind"),
        [
            (False, 40.0, 35.0, Overdue),
            (False, 40.0, 36.0, Late),
            (False, 0.0, math.inf, UpstreamTimeout),
            (True, 0.0, math.inf, Late),
        ],
    )
    def test_it_is_told_by_what_was_expected(
        self, stream: bool, more: float, expected: float, kind: type[UpstreamTimeout]
    ) -> None:
        """A whole answer that had the time of its tokens was stuck or in a queue; only one of unknown length may be
        in the making."""
        pools = still(policy_of({"p": ["http://a:1"]}, own={"p": ", timeouts: {first_byte: 30s}"}))
        lease = lease_of(pools, more, stream=stream)

        assert type(why_late(UpstreamTimeout("late", phase="first_byte"), lease, expected)) is kind
