"""Active probes: what takes an endpoint out, and how soon it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from gateway.errors import UpstreamTimeout
from gateway.policy.schema import Health
from gateway.state.store import Others
from gateway.upstream.health import PROBE_SECONDS, Prober
from gateway.upstream.pools import Pools
from tests.answers import close, hang, reply, text
from tests.stub import Answer, Call, Stub
from tests.upstream.exchange import until
from tests.upstream.live import ask, only, policy_of, wired

WHOLE = reply({"choices": []})
EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
HEALTH = Health.model_validate({"interval": "1s"})


def split(completions: Answer, health: Answer) -> Answer:
    """A server whose health path and completions answer differently."""

    async def answer(call: Call) -> None:
        await (health if call.request.target == b"/health" else completions)(call)

    return answer


@asynccontextmanager
async def probing(pools: Pools, others: Callable[[], Others] = Others) -> AsyncIterator[Prober]:
    prober = Prober(pools, Random(1), others)
    task = asyncio.create_task(prober.run())
    try:
        yield prober
    finally:
        task.cancel()
        await asyncio.wait([task])


def probed(*urls: str, interval: str = "20ms") -> str:
    return f"defaults: {{health: {{interval: {interval}}}, telemetry: {{interval: off}}}}"


class TestProbes:
    async def test_a_server_that_is_still_loading_is_not_picked(self) -> None:
        """HEALTH-03: port open, `/health` 503; and used at once when that changes."""
        loading = reply({}, 503)
        async with Stub(split(WHOLE, loading)) as stub, wired(policy_of({"p": [stub.url]}, probed())) as live:
            assert only(live).available()
            async with probing(live):
                await until(lambda: not only(live).available())
                assert await ask(live) == "NothingAvailable"
                stub.answer = WHOLE
                await until(only(live).available)

                assert await ask(live) == 200

    async def test_the_first_probe_does_not_wait_for_the_interval(self) -> None:
        """HEALTH-03: at the start, and for an endpoint that a reload brings."""
        async with Stub(split(WHOLE, reply({}, 503))) as first, Stub(split(WHOLE, reply({}, 503))) as second:
            extra = probed(interval="1h")
            async with wired(policy_of({"p": [first.url]}, extra)) as live, probing(live):
                await until(lambda: not only(live).probed_up)
                live.apply(policy_of({"q": [second.url]}, extra))
                await until(lambda: not only(live, "q").probed_up)

    @pytest.mark.parametrize("answer", [close, text(b"", 500), reply({}, 404)])
    async def test_a_clear_answer_counts_at_once(self, answer: Answer) -> None:
        """A refusal or a wrong status needs no second opinion."""
        async with Stub(answer) as stub, wired(policy_of({"p": [stub.url]})) as live:
            await Prober(live, Random(1)).probe(only(live), HEALTH)

            assert not only(live).probed_up

    async def test_silence_counts_the_second_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server that is busy with a long prompt may be late once; a frozen one stays silent."""
        assert PROBE_SECONDS < 5
        async with wired(policy_of({"p": ["http://127.0.0.1:1"]})) as live:

            async def silent(*_: object) -> None:
                raise UpstreamTimeout("nothing", phase="first_byte")

            monkeypatch.setattr(only(live).connector, "send", silent)
            prober = Prober(live, Random(1))
            await prober.probe(only(live), HEALTH)
            assert only(live).probed_up
            await prober.probe(only(live), HEALTH)
            assert not only(live).probed_up

    async def test_a_probe_is_no_completion(self) -> None:
        """HEALTH-02: a GET of the health path with the endpoint's own key, and nothing else."""
        async with Stub(WHOLE) as stub:
            row = f'{{url: "{stub.url}", api_key: sesame}}'
            async with wired(policy_of({"p": [row]}, probed())) as live, probing(live):
                await stub.until(lambda: len(stub.requests) >= 2)

            assert {(r.method, r.target, r.get(b"authorization")) for r in stub.requests} == {
                (b"GET", b"/health", b"Bearer sesame")
            }

    async def test_one_that_hangs_delays_no_other_probe(self) -> None:
        """TIMEOUT-03: every endpoint has a task of its own."""
        async with (
            Stub(hang) as hung,
            Stub(WHOLE) as well,
            wired(policy_of({"p": [hung.url, well.url]}, probed())) as live,
            probing(live),
        ):
            await well.until(lambda: len(well.requests) >= 5)

            assert len(hung.requests) == 1

    async def test_switching_probes_off_brings_back_what_they_had_taken_out(self) -> None:
        """Nobody would ever find it up again."""
        async with (
            Stub(split(WHOLE, reply({}, 503))) as stub,
            wired(policy_of({"p": [stub.url]}, probed())) as live,
            probing(live),
        ):
            await until(lambda: not only(live).probed_up)
            live.apply(policy_of({"p": [stub.url]}))

            assert only(live).available()
