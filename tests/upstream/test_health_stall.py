"""Endpoints that hang: how they are found, and that their waiting requests are served elsewhere."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from gateway.policy.schema import Health
from gateway.types import Result
from gateway.upstream.breaker import Gate, Trip
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.lease import Lease
from gateway.upstream.pools import Pools
from gateway.upstream.stall import is_stalled, watch_stalls
from tests.answers import hang, reply, stream
from tests.stub import Call, Stub
from tests.upstream.live import Client, Clock, ask, only, policy_of, still, wired

WHOLE = reply({"choices": []})
EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
WHOLE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HEALTH = Health.model_validate({"interval": "1s"})


def lease_of(pools: Pools, *, answered: bool = False, waits: bool = True) -> Lease:
    lease = pools["p"].lease()
    assert lease is not None
    if answered:
        lease.first_byte(lease.since)
        lease.waits = waits
        lease.endpoint.moved = False
    return lease


def look(endpoint: Endpoint, times: int, stall: float | None = 30.0) -> bool:
    return any([is_stalled(endpoint, stall, 1.0) for _ in range(times)])


class TestStall:
    def test_silence_on_every_stream_is_a_stall(self) -> None:
        """HEALTH-01: `/health` is fine, streams run, and nothing has come for the limit."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        for _ in range(3):
            lease_of(pools, answered=True)

        assert not look(only(pools), 29)
        assert look(only(pools), 1)
        assert watch_stalls(pools, 30.0) == [only(pools)]
        assert (only(pools).breaker.gate, only(pools).breaker.reason) == (Gate.SHUT, Trip.STALL)
        assert watch_stalls(pools, 300.0) == []

    def test_one_piece_on_any_stream_is_progress(self) -> None:
        """An engine that serves somebody does not hang."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        lease_of(pools, answered=True)
        look(only(pools), 29)
        only(pools).moved = True

        assert not look(only(pools), 30)
        assert look(only(pools), 1)

    def test_streams_that_wait_for_their_clients_are_no_silence(self) -> None:
        """A client that reads slowly does not take its back end out."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        lease_of(pools, answered=True, waits=False)

        assert not look(only(pools), 1000)

    def test_a_long_prompt_has_the_first_byte_limit(self) -> None:
        """Before the first byte silence is normal, but not for ever: clients that give up say nothing."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        for _ in range(30):
            lease = lease_of(pools)
            assert not look(only(pools), 10 - 1)
            lease.release(Result.CLIENT_CLOSED)
            assert not watch_stalls(pools, 1000.0)  # idle time does not count
        lease_of(pools)

        assert look(only(pools), 30)

    def test_a_trial_after_a_stall_has_the_short_limit(self) -> None:
        """The request that finds out whether an engine still hangs is not held for five minutes."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        only(pools).stalled()
        only(pools).breaker.permit()
        lease_of(pools)

        assert look(only(pools), 30)

    def test_off_is_off(self) -> None:
        """`breaker: {stall: off}` leaves it to the idle limit of each request."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        lease_of(pools, answered=True)

        assert not look(only(pools), 10_000, stall=None)

    def test_no_first_byte_for_anybody_within_the_limit_shuts_at_once(self) -> None:
        """HEALTH-01: one timeout is enough when nobody has had an answer for as long."""
        clock = Clock()
        pools = still(policy_of({"p": ["http://a:1"]}), clock)
        lease = lease_of(pools)
        clock.pass_(300.0)
        lease.release(Result.TIMEOUT)

        assert only(pools).breaker.reason is Trip.STALL

    def test_answers_to_earlier_requests_do_not_hide_a_hang(self) -> None:
        """HEALTH-01: an engine may still end what it had begun when it takes up nothing more."""
        clock = Clock()
        pools = still(policy_of({"p": ["http://a:1"]}), clock)
        earlier = lease_of(pools)
        late = lease_of(pools)
        clock.pass_(100.0)
        earlier.first_byte(clock())
        clock.pass_(200.0)
        late.release(Result.TIMEOUT)

        assert only(pools).breaker.reason is Trip.STALL

    def test_a_timeout_beside_answers_is_one_failure(self) -> None:
        """One request may be too long for the limit on an endpoint that is well."""
        clock = Clock()
        pools = still(policy_of({"p": ["http://a:1"]}), clock)
        late = lease_of(pools)
        clock.pass_(300.0)
        lease_of(pools, answered=True)
        late.release(Result.TIMEOUT)

        assert (only(pools).breaker.gate, only(pools).breaker.consecutive) == (Gate.OPEN, 1)


class TestMoving:
    async def test_requests_without_a_byte_leave_an_endpoint_that_is_found_dead(self) -> None:
        """HEALTH-01, TIMEOUT-03: they are served elsewhere, at once, and cost the budget nothing."""
        async with (
            Stub(hang) as hung,
            Stub(WHOLE) as well,
            wired(policy_of({"p": [hung.url], "q": [well.url]})) as live,
        ):
            live["p"].budget.share = 0.0
            clients = [Client(live) for _ in range(5)]
            tasks = [asyncio.create_task(client.open()) for client in clients]
            await hung.until(lambda: len(hung.requests) == 5)
            only(live).probed(False)
            opened = await asyncio.gather(*tasks)

            assert {o.lease.pool for o in opened} == {"q"}
            assert [client.retries for client in clients] == [[("p", "moved")]] * 5
            await hung.until(lambda: hung.open == 0)
            for o in opened:
                o.lease.release(Result.OK)
            assert (live["p"].in_flight, live["q"].in_flight) == (0, 0)

    @pytest.mark.parametrize("turns", range(4))
    @pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
    @pytest.mark.parametrize("via", ["lean", "httpx"])
    async def test_an_answer_that_has_come_is_not_asked_for_again(
        self, via: Literal["lean", "httpx"], streams: bool, turns: int
    ) -> None:
        """RETRY-01: an endpoint's last answer is taken, wherever between socket and request the finding meets it."""
        asked: list[Call] = []

        async def last_act(call: Call) -> None:
            asked.append(call)
            await call.hang()

        chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
        answer = STREAM_HEAD + chunk if streams else WHOLE_HEAD + b'{"choices":[]}'
        async with (
            Stub(last_act) as dying,
            Stub(WHOLE) as well,
            wired(policy_of({"p": [dying.url], "q": [well.url]}), via=via) as live,
        ):
            task = asyncio.create_task(Client(live).open(stream=streams))
            await dying.until(lambda: bool(asked))
            asked[0].connection.sock.send(answer)
            for _ in range(turns):
                await asyncio.sleep(0)
            only(live).probed(False)
            opened = await task

            assert opened.lease.pool == "p"
            assert not well.requests
            opened.response.close()
            opened.lease.release(Result.OK)

    async def test_a_stream_that_has_begun_stays(self) -> None:
        """RETRY-01: its client has read the beginning."""
        gate = asyncio.Event()
        async with (
            Stub(stream(EVENT, b"data: [DONE]\n\n", gate=gate)) as a,
            Stub(WHOLE) as b,
            wired(policy_of({"p": [a.url], "q": [b.url]})) as live,
        ):
            opened = await Client(live).open()
            only(live).stalled()
            gate.set()

            assert await opened.response.read() == b"data: [DONE]\n\n"
            opened.lease.release(Result.OK)

    async def test_without_another_endpoint_they_wait_on(self) -> None:
        """It may still come back; an error would help nobody."""
        gate = asyncio.Event()

        async def late(call: Call) -> None:
            await gate.wait()
            await WHOLE(call)

        async with Stub(late) as stub, wired(policy_of({"p": [stub.url]})) as live:
            task = asyncio.create_task(ask(live))
            await stub.until(lambda: len(stub.requests) == 1)
            only(live).probed(False)
            gate.set()

            assert await task == 200

    async def test_with_no_attempt_left_they_wait_on(self) -> None:
        """RETRY-05: moving sends another request, so it counts."""
        async with (
            Stub(hang) as hung,
            Stub(WHOLE) as well,
            wired(policy_of({"p": [hung.url], "q": [well.url]})) as live,
        ):
            task = asyncio.create_task(Client(live).open(attempts=1))
            await hung.until(lambda: len(hung.requests) == 1)
            only(live).probed(False)
            task.cancel()
            await asyncio.wait([task])

            assert task.cancelled()
            assert not well.requests

    async def test_a_client_that_leaves_while_it_is_moved_has_left(self) -> None:
        """Both cancel the same task in one turn of the loop; the leaving wins."""
        async with (
            Stub(hang) as hung,
            Stub(WHOLE) as well,
            wired(policy_of({"p": [hung.url], "q": [well.url]})) as live,
        ):
            for first in ("move", "leave"):
                only(live).probed(True)
                before = len(hung.requests)
                task = asyncio.create_task(Client(live).open())
                await hung.until(lambda: len(hung.requests) > before)  # noqa: B023
                for step in (first, "leave" if first == "move" else "move"):
                    task.cancel() if step == "leave" else only(live).probed(False)
                await asyncio.wait([task])

                assert task.cancelled()
                assert not well.requests
            assert (live["p"].in_flight, live["q"].in_flight) == (0, 0)

    async def test_the_others_are_not_slowed_by_one_that_hangs(self) -> None:
        """TIMEOUT-03: 50 requests hang at A; requests to B are served while they do."""
        async with Stub(hang) as a, Stub(WHOLE) as b, wired(policy_of({"p": [a.url], "q": [b.url]})) as live:
            stuck = [asyncio.create_task(Client(live).open(order=("p",))) for _ in range(50)]
            await a.until(lambda: len(a.requests) == 50)
            for _ in range(20):
                opened = await Client(live).open(order=("q",))
                opened.lease.release(Result.OK)

            assert not any(task.done() for task in stuck)
            for task in stuck:
                task.cancel()
            await asyncio.wait(stuck)
