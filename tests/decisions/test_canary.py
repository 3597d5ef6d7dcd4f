"""The canary policy on a live gateway: its share, its conversations, its metrics, its file."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from gateway.api.core import Trial, activate, place_of
from gateway.app import build
from gateway.cli import run
from gateway.policy.load import PolicyInvalid, parse_policy
from gateway.settings import Settings
from gateway.types import Api, Features, Hints
from tests.answers import reply
from tests.gateways import Running, gateway, two_pools
from tests.raw_client import ask, chat, get
from tests.servers import serve
from tests.stub import Stub

ANSWER = reply({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
SHORT = chat("Is this good or bad? One word.")
NOT_A_CHAT = {"model": "m", "prompt": "Once upon a time", "max_tokens": 4}
COMPLETIONS = "/v1/completions"


def always_mtp(policy: str, share: float) -> str:
    """The same policy, but everything is drafted."""
    return policy.replace("threshold: 64", "threshold: 0") + f"canary: {{share: {share}}}\n"


@asynccontextmanager
async def tried(text: str, canary: Path) -> AsyncIterator[Running]:
    settings = Settings(canary_policy=str(canary))
    app = build(settings, parse_policy(text, "policy.yaml", {}), env={}, rng=random.Random(7))
    async with serve(app, loop="asyncio", http="httptools", lifespan="on") as url:
        yield Running(url, app.core)


@asynccontextmanager
async def plain_or_drafted(folder: Path, share: float) -> AsyncIterator[tuple[Running, Stub, Stub, Path]]:
    """The live policy sends short answers to the plain pool, the canary all to the other."""
    file = folder / "canary.yaml"
    async with Stub(ANSWER) as plain, Stub(ANSWER) as mtp:
        live = two_pools(plain.url, mtp.url, "static")
        file.write_text(always_mtp(live, share), "utf-8")
        async with tried(live, file) as running:
            yield running, plain, mtp, file


async def test_it_decides_for_its_share_for_real(tmp_path: Path) -> None:
    """What it takes goes where it says, under its hash; what it would not take is the live policy's."""
    async with plain_or_drafted(tmp_path, 0.5) as (running, plain, mtp, _):
        hashes = {(await ask(running.url, NOT_A_CHAT, COMPLETIONS)).header("x-gateway-policy"): None for _ in range(60)}
        shown = orjson.loads((await get(running.url, "/gateway/policy")).body)
        rows = orjson.loads((await get(running.url, "/gateway/decisions")).body)["decisions"]

        assert len(plain.requests) + len(mtp.requests) == 60
        assert 20 <= len(mtp.requests) <= 40
        assert set(hashes) == {shown["hash"], shown["canary"]["hash"]}
        assert sum(row.get("canary") == shown["canary"]["hash"] for row in rows) == len(mtp.requests)


async def test_the_two_are_counted_side_by_side(tmp_path: Path) -> None:
    """Requests, times and regret by policy; and what the live one would have done with the canary's."""
    async with plain_or_drafted(tmp_path, 0.5) as (running, plain, mtp, _):
        for _ in range(40):
            await ask(running.url, NOT_A_CHAT, COMPLETIONS)

        for policy, requests in (("live", len(plain.requests)), ("canary", len(mtp.requests))):
            assert running.counted("gateway_canary_requests_total", policy=policy, outcome="ok") == requests
            assert running.counted("gateway_canary_request_seconds_count", policy=policy) == requests
            assert running.counted("gateway_canary_regret_seconds_count", policy=policy) == requests
        flips = running.counted("gateway_canary_flips_total", **{"from": "plain", "to": "mtp"})
        assert flips == len(mtp.requests)
        changed = [running.counted(f"gateway_canary_{what}_seconds_total", model="m") for what in ("saved", "lost")]
        assert sum(changed) > 0
        assert running.counted("gateway_canary_share") == 0.5


async def test_the_status_shows_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What each decided, how it went and what flips; anew when one of the two changes; in `gateway top` too."""
    async with plain_or_drafted(tmp_path, 0.5) as (running, plain, mtp, file):
        for _ in range(40):
            await ask(running.url, NOT_A_CHAT, COMPLETIONS)
        running.core.afterwards.flush()
        told = orjson.loads((await get(running.url, "/gateway/policy")).body)["canary"]["beside"]
        assert await asyncio.to_thread(run, ["top", "--once", "--url", running.url]) == 0

        assert (told["live"]["requests"], told["canary"]["requests"]) == (len(plain.requests), len(mtp.requests))
        assert (told["live"]["failed_share"], told["canary"]["failed"]) == (0.0, 0)
        assert told["canary"]["mean_seconds"] > 0
        assert told["moves"] == [{"model": "m", "from": "plain", "to": "mtp", "requests": len(mtp.requests)}]
        assert told["saved"] + told["lost"] > 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"{len(mtp.requests)} of its {len(mtp.requests)} would go elsewhere" in shown

        file.write_text(file.read_text("utf-8").replace("0.5", "0.25"), "utf-8")
        await running.until(lambda: (core := running.core).active.trial is not None and core.active.trial.share == 0.25)
        told = orjson.loads((await get(running.url, "/gateway/policy")).body)["canary"]["beside"]
        assert (told["live"]["requests"], told["canary"]["mean_seconds"], told["moves"]) == (0, None, [])


async def test_a_conversation_stays_with_one_policy(tmp_path: Path) -> None:
    """By the client's session, and by the conversation itself."""
    async with plain_or_drafted(tmp_path, 0.5) as (running, _, _, _):
        seen: dict[str, set[str | None]] = {}
        for number in range(12):
            for _ in range(3):
                answer = await ask(running.url, SHORT, headers=(("x-gateway-session", f"s{number}"),))
                seen.setdefault(f"s{number}", set()).add(answer.header("x-gateway-policy"))

    assert {len(hashes) for hashes in seen.values()} == {1}
    assert len(set.union(*seen.values())) == 2


def test_places_are_even_and_a_growing_share_keeps_what_it_has() -> None:
    """The same in every process; a request of no conversation is drawn."""
    places = [place_of(Features(api=Api.CHAT, model="m", thread_key=key), Hints()) for key in range(1, 4001)]
    told = [place for place in places if place is not None]
    policy = parse_policy(two_pools("http://a", "http://b"), "p", {})
    draws = iter([0.04, 0.06])

    assert len(told) == 4000
    assert sum(place < 0.05 for place in told) == pytest.approx(200, abs=60)
    assert place_of(Features(api=Api.CHAT, model="m", thread_key=1), Hints()) == places[0]
    assert place_of(Features(api=Api.CHAT, model="m"), Hints(session="one")) == pytest.approx(0.79, abs=0.21)
    assert place_of(Features(api=Api.COMPLETIONS, model="m"), Hints()) is None
    trial = Trial(activate(policy, 1), 0.05, lambda: next(draws))
    taken = [trial.takes("m", Features(api=Api.COMPLETIONS, model="m"), Hints()) for _ in range(2)]
    assert taken == [True, False]
    assert not trial.takes("other", Features(api=Api.CHAT, model="other", thread_key=1), Hints())


async def test_its_file_is_followed(tmp_path: Path) -> None:
    """A new share is live without a restart, 0 takes it away, and an invalid file changes nothing."""
    async with plain_or_drafted(tmp_path, 0.0) as (running, plain, mtp, file):
        text = file.read_text("utf-8")
        for _ in range(5):
            await ask(running.url, SHORT)
        assert (len(plain.requests), len(mtp.requests)) == (5, 0)

        file.write_text(text.replace("share: 0.0", "share: 1"), "utf-8")
        await running.until(lambda: running.core.active.trial is not None)
        await ask(running.url, SHORT)
        assert len(mtp.requests) == 1

        file.write_text(text.replace("share: 0.0", "share: 2"), "utf-8")
        canary = running.core.canary
        assert canary is not None
        await running.until(lambda: canary.object()["reload"]["failed"] == 1)
        assert "canary.share" in canary.object()["reload"]["last_error"]
        await ask(running.url, SHORT)
        assert len(mtp.requests) == 2

        file.write_text(text, "utf-8")
        await running.until(lambda: running.core.active.trial is None)
        await ask(running.url, SHORT)
        assert (len(plain.requests), len(mtp.requests)) == (6, 2)


async def test_one_with_pools_that_are_not_live_takes_nothing(tmp_path: Path) -> None:
    """And says so; the share does not matter."""
    file = tmp_path / "canary.yaml"
    async with Stub(ANSWER) as stub:
        live = two_pools(stub.url, stub.url, "static")
        file.write_text(live.replace("mtp:", "other:").replace(", mtp]", ", other]") + "canary: {share: 1}\n", "utf-8")
        async with tried(live, file) as running:
            answer = await ask(running.url, SHORT)
            shown = orjson.loads((await get(running.url, "/gateway/policy")).body)

    assert answer.status == 200
    assert answer.header("x-gateway-policy") == shown["hash"]
    assert shown["canary"]["problem"] == "the live policy has no pool other"


def test_a_share_beyond_all_is_an_error_with_its_place() -> None:
    """As `gateway check` prints it."""
    text = two_pools("http://a", "http://b") + "canary: {share: 1.5}\n"
    with pytest.raises(PolicyInvalid) as caught:
        parse_policy(text, "next.yaml", {})

    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == ("canary.share", len(text.splitlines()))


async def test_without_a_canary_there_is_nothing_of_it() -> None:
    """No series, and null for operators."""
    async with Stub(ANSWER) as stub, gateway(two_pools(stub.url, stub.url)) as running:
        await ask(running.url, SHORT)

        assert b"gateway_canary" not in (await get(running.url, "/metrics")).body
        assert orjson.loads((await get(running.url, "/gateway/policy")).body)["canary"] is None
        assert running.core.active.trial is None
