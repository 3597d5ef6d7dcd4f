"""The attempt loop's limits: attempts, budget, time, places; and clients that leave."""

from __future__ import annotations

import asyncio
import math
import socket

import pytest

from gateway.errors import ConnectFailed, ConnectionLost, NothingAvailable, UpstreamTimeout
from gateway.types import Result
from gateway.upstream.breaker import Gate
from gateway.upstream.call import Opened
from tests.answers import close, hang, reply, stream, text
from tests.stub import Call, Stub
from tests.upstream.attempts import DONE, EVENT, GOOD, WHOLE, body_of, counts
from tests.upstream.exchange import until
from tests.upstream.live import Client, Clock, only, policy_of, wired


class TestBounds:
    @pytest.mark.parametrize("attempts", [0, 1, 2, 3, 4])
    async def test_requests_sent_never_exceed_the_attempts(self, attempts: int) -> None:
        """RETRY-05: all answer 503; the first request is one of them, and the last answer is passed on as it is."""
        answer = reply({"error": "full"}, 503)
        async with (
            Stub(answer) as a,
            Stub(answer) as b,
            Stub(answer) as c,
            wired(policy_of({"p": [a.url, b.url, c.url]})) as live,
        ):
            opened = await Client(live).open(attempts)

            assert len(a.requests) + len(b.requests) + len(c.requests) == min(max(attempts, 1), 3)
            assert opened.response.status == 503
            assert await body_of(opened) == b'{"error": "full"}'
            assert not any(counts(live))

    async def test_one_other_endpoint_of_the_pool_then_the_next_pool(self) -> None:
        """With three attempts: two in the first pool, the third in the second."""
        answer = reply({}, 503)
        async with (
            Stub(answer) as a,
            Stub(answer) as b,
            Stub(answer) as c,
            Stub(WHOLE) as d,
            wired(policy_of({"p": [a.url, b.url, c.url], "q": [d.url]})) as live,
        ):
            client = Client(live)
            opened = await client.open(3)
            opened.lease.release(Result.OK)

            assert opened.lease.pool == "q"
            assert client.retries == [("p", "status_503")] * 2

    async def test_a_refused_connection_costs_no_attempt(self, refused: str) -> None:
        """RETRY-07: nothing was sent, so that even with one attempt the next endpoint is asked."""
        async with Stub(WHOLE) as good, wired(policy_of({"p": [refused], "q": [good.url]})) as live:
            client = Client(live)
            opened = await client.open(1)
            opened.lease.release(Result.OK)

            assert client.last is not None
            assert (client.last.count, client.retries) == (1, [("p", "connect")])

    async def test_no_endpoint_is_asked_twice(self, refused: str) -> None:
        """RETRY-04: with one endpoint there is nowhere else to go, however many attempts are left."""
        async with Stub(close) as stub, wired(policy_of({"p": [stub.url], "q": [refused]})) as live:
            with pytest.raises(ConnectFailed):
                await Client(live).open(9)

            assert len(stub.requests) == 1
            assert not any(counts(live))

    async def test_an_outage_is_not_multiplied(self) -> None:
        """RETRY-05: with every answer a 502, the budget ends the repeats; 60 requests are no 120."""
        bad = text(b"", 502)
        extra = "defaults: {health: {interval: off}, breaker: {failures: 0, success_rate: 0}}"
        async with Stub(bad) as a, Stub(bad) as b, wired(policy_of({"p": [a.url], "q": [b.url]}, extra)) as live:
            for _ in range(60):
                opened = await Client(live).open()
                await body_of(opened)

            # 20 % of 60 besides the floor of 10; what was sent first counts, not what was repeated.
            assert len(a.requests) == 60
            assert 10 <= len(b.requests) <= 22

    async def test_what_a_broken_endpoint_had_moves_whole(self) -> None:
        """RETRY-01: requests that wait at a back end that dies go on past the budget once its breaker is shut."""
        dead = asyncio.Event()

        async def dies(call: Call) -> None:
            await dead.wait()
            call.connection.close()

        async with Stub(dies) as a, Stub(GOOD) as b, wired(policy_of({"p": [a.url], "q": [b.url]})) as live:
            asked = [asyncio.create_task(Client(live).open()) for _ in range(60)]
            await until(lambda: len(a.requests) == 60)
            dead.set()
            for task in asked:
                assert await body_of(await task) == EVENT + DONE

            assert len(b.requests) == 60
            assert not any(counts(live))

    async def test_a_budget_of_nothing_still_fails_over_from_refused_connections(self, refused: str) -> None:
        """`budget: 0` forbids repeats; a connection that never was is none."""
        policy = policy_of({"p": [refused], "q": [refused]}, own={"p": ", retry: {budget: 0}"})
        async with Stub(WHOLE) as good, Stub(close) as bad:
            policy = policy_of({"p": [refused], "q": [good.url]}, own={"p": ", retry: {budget: 0}"})
            async with wired(policy) as live:
                (await Client(live).open()).lease.release(Result.OK)
            policy = policy_of({"p": [bad.url], "q": [good.url]}, own={"p": ", retry: {budget: 0}"})
            async with wired(policy) as live:
                with pytest.raises(ConnectionLost):
                    await Client(live).open()

    @pytest.mark.parametrize(("expected", "again"), [(math.inf, False), (1.2, False), (0.8, True)])
    async def test_a_late_request_is_sent_twice_only_if_it_should_be_short(self, expected: float, again: bool) -> None:
        """Others have their first bytes meanwhile: it is stuck, or the engine may be at work on it. 504 then."""
        async with Stub(hang) as a, Stub(GOOD) as b:
            clock, own = Clock(), {"p": ", timeouts: {first_byte: 2s}"}
            async with wired(policy_of({"p": [a.url], "q": [b.url]}, own=own), clock) as live:
                late = asyncio.create_task(Client(live).open(first=expected))
                await a.until(lambda: len(a.requests) == 1)
                a.answer = GOOD
                clock.pass_(10.0)
                await body_of(await Client(live).open(order=("p",)))
                clock.pass_(1.0)
                (outcome,) = await asyncio.gather(late, return_exceptions=True)
                assert isinstance(outcome, Opened if again else UpstreamTimeout)
                assert len(b.requests) == again

    async def test_a_request_at_an_endpoint_that_answers_nobody_goes_elsewhere(self) -> None:
        """HEALTH-01, TIMEOUT-03: its own time limit finds the endpoint hung; it is not the one to pay for that."""
        async with Stub(hang) as a, Stub(GOOD) as b:
            own = {"p": ", timeouts: {first_byte: 50ms}"}
            async with wired(policy_of({"p": [a.url], "q": [b.url]}, own=own)) as live:
                client = Client(live)
                assert await body_of(await client.open()) == EVENT + DONE
                assert client.retries == [("p", "hung")]
                assert counts(live) == [0] * 6

    async def test_comments_are_no_first_byte(self) -> None:
        """TIMEOUT-05, HEALTH-01: a hung engine behind something that sends comments is a hung engine."""

        async def comments(call: Call) -> None:
            await call.head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
            while not call.connection.closed.is_set():
                await call.chunk(b": ping\n\n")
                await asyncio.sleep(0.01)

        async with Stub(comments) as a, Stub(GOOD) as b:
            own = {"p": ", timeouts: {first_byte: 100ms}"}
            async with wired(policy_of({"p": [a.url], "q": [b.url]}, own=own)) as live:
                client = Client(live)
                opened = await asyncio.wait_for(client.open(stream=True), 20)
                assert await body_of(opened) == EVENT + DONE
                assert client.retries == [("p", "hung")]
                assert counts(live) == [0] * 6

    @pytest.mark.parametrize(("attempts", "budget"), [(1, 0.2), (2, 0)])
    async def test_a_hung_endpoint_counts_as_an_attempt(self, attempts: int, budget: float) -> None:
        """RETRY-05: engines may only be slow, all of them; requests to them must not multiply."""
        async with Stub(hang) as a, Stub(GOOD) as b:
            own = {"p": f", timeouts: {{first_byte: 50ms}}, retry: {{budget: {budget}}}"}
            async with wired(policy_of({"p": [a.url], "q": [b.url]}, own=own)) as live:
                with pytest.raises(UpstreamTimeout):
                    await Client(live).open(attempts)
                assert not b.requests

    async def test_a_server_that_takes_no_connection_is_left_after_the_connect_limit(self) -> None:
        """TIMEOUT-04: a full backlog stands for an address that drops packets; the limit is its own, and short."""
        with socket.socket() as deaf, socket.socket() as filler:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            filler.setblocking(False)
            with pytest.raises(BlockingIOError):
                filler.connect(deaf.getsockname())
            more = [socket.socket() for _ in range(4)]
            for sock in more:
                sock.setblocking(False)
                sock.connect_ex(deaf.getsockname())
            url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            async with Stub(WHOLE) as good:
                policy = policy_of({"p": [url], "q": [good.url]}, own={"p": ", timeouts: {connect: 100ms}"})
                async with wired(policy) as live:
                    client = Client(live)
                    opened = await client.open(1)
                    opened.lease.release(Result.OK)

                    assert client.retries == [("p", "connect")]
            for sock in more:
                sock.close()


class TestOverload:
    async def test_an_endpoint_without_a_free_connection_is_passed_over(self) -> None:
        """POOL-01: the other endpoint serves at once, and no connection is waited for out of sight."""
        gate = asyncio.Event()
        async with Stub(stream(EVENT, DONE, gate=gate)) as a, Stub(GOOD) as b:
            policy = policy_of({"p": [a.url], "q": [b.url]}, own={"p": ", limits: {connections: 1}"})
            async with wired(policy) as live:
                first = await Client(live).open()
                second = await Client(live).open()
                gate.set()

                assert (first.lease.pool, second.lease.pool) == ("p", "q")
                assert [await body_of(first), await body_of(second)] == [EVENT + DONE] * 2

    async def test_a_retry_waits_for_a_place_ahead_of_newcomers(self) -> None:
        """A request that failed over has waited before; it is not lost for want of a place at that moment."""
        gate = asyncio.Event()
        async with Stub(close) as a, Stub(stream(EVENT, DONE, gate=gate)) as b:
            policy = policy_of({"p": [a.url], "q": [b.url]}, own={"q": ", limits: {in_flight: 1}"})
            async with wired(policy) as live:
                holder = await Client(live).open(order=("q",))
                newcomer = asyncio.create_task(Client(live).open(order=("q",)))
                await until(lambda: live["q"].waiting == 1)
                retried = asyncio.create_task(Client(live).open())
                await until(lambda: live["q"].waiting == 2)
                gate.set()
                await body_of(holder)
                first, _ = await asyncio.wait([newcomer, retried], return_when=asyncio.FIRST_COMPLETED)

                assert first == {retried}
                await body_of(await retried)
                await body_of(await newcomer)
                assert not any(counts(live))

    async def test_a_rest_that_a_back_end_asks_for_is_kept(self) -> None:
        """`Retry-After` of a 503: no request goes there for that time, and the final answer carries it on."""
        refusal = reply({}, 503, [("retry-after", "7")])
        async with Stub(refusal) as a, wired(policy_of({"p": [a.url]})) as live:
            opened = await Client(live).open()
            assert (b"retry-after", b"7") in opened.response.headers
            await body_of(opened)

            with pytest.raises(NothingAvailable) as caught:
                await Client(live).open()
            assert caught.value.retry_after in (6, 7)
            assert len(a.requests) == 1

    async def test_a_limit_on_our_key_lets_the_endpoint_rest_without_blame(self) -> None:
        """A 429 with `Retry-After` is passed on, is no failure, and later requests go elsewhere."""
        async with (
            Stub(reply({}, 429, [("retry-after", "7")])) as a,
            Stub(WHOLE) as b,
            wired(policy_of({"p": [a.url], "q": [b.url]})) as live,
        ):
            statuses = []
            for _ in range(2):
                opened = await Client(live).open()
                statuses.append(opened.response.status)
                opened.lease.release(Result.OK if opened.response.status == 200 else Result.CLIENT_ERROR)

            assert statuses == [429, 200]
            assert only(live).breaker.consecutive == 0

    async def test_a_limit_where_there_is_nowhere_else_is_each_clients_own_answer(self) -> None:
        """ERROR-03: with one endpoint, one client's 429 never becomes another client's 503."""
        async with Stub(reply({}, 429, [("retry-after", "7")])) as a, wired(policy_of({"p": [a.url]})) as live:
            for _ in range(2):
                opened = await Client(live).open()
                assert opened.response.status == 429
                opened.lease.release(Result.CLIENT_ERROR)

            a.answer = WHOLE
            assert (await Client(live).open()).response.status == 200

    async def test_an_engine_that_refuses_while_it_works_is_full_and_not_broken(self) -> None:
        """vLLM's admission refusal: the endpoint rests a moment, its breaker stays open."""
        gate = asyncio.Event()
        async with (
            Stub(stream(EVENT, DONE, gate=gate)) as a,
            Stub(WHOLE) as b,
            wired(policy_of({"p": [a.url], "q": [b.url]})) as live,
        ):
            running = await Client(live).open()
            a.answer = reply({"error": {"type": "Service Unavailable"}}, 503)
            for _ in range(20):
                only(live).rests_until = 1e-9  # as if the moment were over
                await body_of(await Client(live).open())
            gate.set()

            assert only(live).breaker.gate is Gate.OPEN
            assert await body_of(running) == EVENT + DONE


class TestCancel:
    @pytest.mark.parametrize("where", ["connect", "head", "first event", "queue"])
    async def test_a_client_that_leaves_costs_the_endpoint_nothing(self, where: str) -> None:
        """RETRY-03: wherever it leaves, the place comes back, the connection closes, no failure is counted."""
        answer = stream(finish=False) if where == "first event" else hang
        async with Stub(answer) as stub:
            policy = policy_of({"p": [stub.url]}, own={"p": ", limits: {in_flight: 1}"})
            async with wired(policy) as live:
                holder = asyncio.create_task(Client(live).open()) if where == "queue" else None
                if holder:
                    await stub.until(lambda: len(stub.requests) == 1)
                task = asyncio.create_task(Client(live).open())
                if where == "queue":
                    await until(lambda: live["p"].waiting == 1)
                elif where == "connect":
                    await asyncio.sleep(0)
                else:
                    await stub.until(lambda: len(stub.requests) == 1)
                task.cancel()
                await asyncio.wait([task])
                if holder:
                    holder.cancel()
                    await asyncio.wait([holder])

                assert task.cancelled()
                assert not any(counts(live))
                assert only(live).breaker.consecutive == 0
                assert len(stub.requests) <= 1
                await stub.until(lambda: stub.open == 0)
