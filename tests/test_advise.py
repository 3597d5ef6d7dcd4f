"""`gateway advise` against simulated servers."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

import httpx
from rich.console import Console

from gateway.advise import look, show
from gateway.policy.load import parse_policy
from gateway.sim.faults import Faults
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.gateways import two_pools
from tests.servers import serve


def sim(k: int, **faults: float) -> SimSettings:
    return SimSettings(served_names=("m",), k=k, profile="h200", time_scale=20, faults=Faults(**faults))  # type: ignore[arg-type]


async def advised(mtp: SimSettings, *, extra: str = "", idle: str = "", seconds: float = 4.0) -> dict[str, object]:
    """What is found while both servers write long answers, or one of them (`idle` is the other: plain, mtp)."""
    async with serve(create_app(sim(0))) as plain, serve(create_app(mtp)) as drafting, httpx.AsyncClient() as client:
        text = two_pools(plain, drafting).replace("interval: off", "interval: 200ms") + extra
        policy = parse_policy(text, "p", {})

        async def write(url: str) -> None:
            while True:
                body = {"model": "m", "messages": [{"role": "user", "content": "Write an essay."}], "max_tokens": 200}
                await client.post(url + "/v1/chat/completions", json=body, timeout=60)

        busy = [url for name, url in (("plain", plain), ("mtp", drafting)) if name != idle]
        writers = [asyncio.create_task(write(url)) for url in busy for _ in range(8)]
        found = await look(policy, seconds)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        return found


async def test_a_healthy_pool_is_described() -> None:
    """Acceptance, length and positions are those of the engine's counters; people get a table."""
    found = await advised(sim(2))
    pools = found["pools"]
    assert isinstance(pools, list)
    row = pools[0]
    screen = io.StringIO()
    show(found, Console(file=screen, width=120))

    assert found["reached"] == 2
    assert row["tokens"] == 2
    assert 0.25 < row["acceptance"]["acceptance_rate"] < 0.5
    assert len(row["acceptance"]["position_acceptance_rates"]) == 2
    assert "mtp" in screen.getvalue()
    assert "m, plain and mtp, code: MTP pays for more than" in screen.getvalue()


async def test_a_pool_that_is_measured_slower_is_never_told_to_draft_more() -> None:
    """SPEC-06: its acceptance is as good as ever and its profile says that it pays; what was measured counts."""
    found = await advised(sim(1, slowdown=3), extra="mtp: {window: 20s}\n", seconds=6.0)
    pools = found["pools"]
    assert isinstance(pools, list)
    (row,) = pools
    screen = io.StringIO()
    show(found, Console(file=screen, width=300))

    assert row["gain"]["tpot_improvement_ratio"] < -0.1
    assert (row["state"], [advice["code"] for advice in row["advice"]]) == ("harmful", ["harmful"])
    assert row["advice"][0]["tokens"] == 0
    assert "run without it" in screen.getvalue()
    assert "measured slower here" in screen.getvalue()


async def test_without_the_plain_pools_answers_nothing_is_advised_but_what_is_missing() -> None:
    """The profile would say that one more draft pays; that this one does is not measured yet."""
    found = await advised(sim(1), idle="plain")
    pools = found["pools"]
    assert isinstance(pools, list)
    (row,) = pools

    assert row["gain"] is None
    (advice,) = row["advice"]
    assert advice["code"] == "too_few_samples"
    assert "of plain at like load and length are needed and there are 0" in advice["message"]


async def test_an_engine_that_does_not_do_what_the_policy_says_is_named() -> None:
    """A plain server in an MTP pool is said loudly."""
    found = await advised(sim(0))

    assert "does not draft" in str(found["disagreements"])


async def told(*words: str) -> tuple[int | None, str, str]:
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "advise", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await made.communicate()
    return made.returncode, out.decode(), err.decode()


async def test_a_fleet_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    """No endpoint, no advice: exit 1, and the error stream names each endpoint and what to look at."""
    policy = tmp_path / "policy.yaml"
    text = two_pools("http://127.0.0.1:1", "http://127.0.0.1:2").replace("interval: off", "interval: 200ms")
    policy.write_text(text)
    code, out, err = await told("--policy", str(policy), "--seconds", "2")

    assert (code, out.strip()) == (1, "")
    assert "endpoint=http://127.0.0.1:1 " in err
    assert "endpoint=http://127.0.0.1:2 " in err
    assert err.endswith("are the back ends up?\n")


async def test_a_time_that_is_none_is_wrong_usage() -> None:
    """One line and exit 2 for what cannot be waited for."""
    for seconds in ("-1", "nan", "inf", "soon"):
        code, _, err = await told("--policy", "policies/default.yaml", "--seconds", seconds)
        assert code == 2
        assert "Traceback" not in err


def test_a_fleet_that_does_not_draft_is_told_so() -> None:
    """Words instead of an empty table."""
    screen = io.StringIO()
    show(
        {"pools": [], "slices": [], "disagreements": [], "models": {}, "seconds": 3.0}, Console(file=screen, width=200)
    )

    assert "no pool drafts" in screen.getvalue()
    assert "speculative: {method: mtp, tokens: 2}" in screen.getvalue()
