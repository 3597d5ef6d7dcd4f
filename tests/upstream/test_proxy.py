"""The attempt loop against back ends that refuse, cut, hang and lie: what is repeated, where, and what is not."""

from __future__ import annotations

import pytest

from gateway.errors import ConnectionLost
from gateway.types import Result
from gateway.upstream.breaker import Gate
from tests.answers import close, cut_stream, raw, reply, reset, stream, text
from tests.stub import Answer, Stub
from tests.upstream.attempts import DONE, ERROR, EVENT, GOOD, WHOLE, body_of, counts
from tests.upstream.live import Client, only, policy_of, wired


class TestFailOver:
    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            (close, "lost"),
            (reset, "lost"),
            (raw(b"SSH-2.0-OpenSSH_9.6\r\n", then_close=True), "lost"),
            (cut_stream(b""), "lost"),
            (cut_stream(b'data: {"choi', with_reset=True), "lost"),
            (stream(), "lost"),
            (reply({"error": {"message": "queue is full", "type": "Service Unavailable"}}, 503), "status_503"),
            (text(b"<html>Bad Gateway</html>", 502), "status_502"),
            (stream(ERROR, DONE), "error_event"),
            (stream(b": keep-alive\n\n", ERROR[:20], ERROR[20:], DONE), "error_event"),
            (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it", then_close=True), "lost"),
        ],
    )
    @pytest.mark.parametrize("elsewhere", ["endpoint", "pool"])
    async def test_what_delivered_nothing_is_had_elsewhere(self, bad: Answer, reason: str, elsewhere: str) -> None:
        """RETRY-07, SSE-08: another endpoint of the pool, or else the next pool, and the client never knows."""
        async with Stub(bad) as a, Stub(GOOD) as b:
            pools = {"p": [a.url], "q": [b.url]} if elsewhere == "pool" else {"p": [a.url, b.url]}
            async with wired(policy_of(pools)) as live:
                if elsewhere == "endpoint":
                    live["p"].endpoints[1].weight = 1e-3  # so that the bad one is drawn first
                client = Client(live)
                opened = await client.open()

                assert await body_of(opened) == EVENT + DONE
                assert client.retries == [("p", reason)]
                assert client.last is not None
                assert (client.last.count, client.last.endpoint, len(a.requests)) == (2, b.url, 1)
                assert not any(counts(live))

    async def test_a_kept_connection_that_breaks_is_no_failed_request(self) -> None:
        """POOL-04: no byte came over it, so that the only endpoint is asked once more, on a new connection, as the
        second attempt; and no third time."""
        async with Stub(WHOLE) as a, wired(policy_of({"p": [a.url]})) as live:
            await body_of(await Client(live).open())
            a.script.append(close)
            client = Client(live)
            assert (await client.open()).response.status == 200
            assert client.last is not None
            assert (client.last.count, len(a.requests), client.retries) == (2, 3, [("p", "lost")])

        for attempts, sent in ((1, 1), (3, 2)):
            async with Stub(WHOLE) as a, wired(policy_of({"p": [a.url]})) as live:
                await body_of(await Client(live).open())
                a.answer = close
                with pytest.raises(ConnectionLost):
                    await Client(live).open(attempts)
                assert len(a.requests) == 1 + sent

    @pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 500])
    async def test_other_answers_are_passed_on(self, status: int) -> None:
        """RETRY-02, ERROR-04: a 4xx goes to the client with its body; a 500 is not repeated either."""
        async with (
            Stub(reply({"error": "x"}, status)) as a,
            Stub(WHOLE) as b,
            wired(policy_of({"p": [a.url], "q": [b.url]})) as live,
        ):
            opened = await Client(live).open()

            assert opened.response.status == status
            assert await body_of(opened) == b'{"error": "x"}'
            assert not b.requests

    async def test_an_error_event_that_is_the_requests_own_is_passed_on(self) -> None:
        """RETRY-02: a 400 in band neither fails over nor counts against the endpoint."""
        event = b'data: {"error":{"message":"min_p","code":400}}\n\n'
        async with (
            Stub(stream(event, DONE)) as a,
            Stub(GOOD) as b,
            wired(policy_of({"p": [a.url], "q": [b.url]})) as live,
        ):
            for _ in range(10):
                opened = await Client(live).open()
                assert opened.first is not None
                assert opened.first.startswith(event)
                opened.response.close()
                opened.lease.release(Result.BACKEND_ERROR)

            assert only(live).breaker.gate is Gate.OPEN
            assert not b.requests

    async def test_nothing_is_repeated_after_the_first_event(self) -> None:
        """RETRY-01: the cut comes to the reader as such, and nobody else is asked."""
        async with (
            Stub(cut_stream(EVENT, EVENT)) as a,
            Stub(GOOD) as b,
            wired(policy_of({"p": [a.url], "q": [b.url]})) as live,
        ):
            opened = await Client(live).open()

            assert opened.first is not None
            assert opened.first.startswith(EVENT)
            with pytest.raises(ConnectionLost):
                await body_of(opened)
            opened.lease.release(Result.TRUNCATED)
            assert not b.requests

    async def test_without_waiting_for_the_first_event_an_answer_is_final(self) -> None:
        """With heartbeats the status goes out early, so that the first event is read by the relay."""
        async with Stub(stream(ERROR)) as a, Stub(GOOD) as b, wired(policy_of({"p": [a.url], "q": [b.url]})) as live:
            opened = await Client(live).open(wait_for_first=False)

            assert opened.first is None
            assert await body_of(opened) == ERROR
