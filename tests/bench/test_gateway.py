"""The measurements through a gateway: `--url`, pools asked for by name, and what happens where they are not given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import run
from gateway.profiles import parse_catalog
from tests.bench.engines import engines, scales, undisturbed
from tests.gateways import Running, gateway

SETTLE = ("--settle", "0.7")


def policy(urls: Sequence[str], ks: Sequence[int], extra: str = "") -> str:
    """A pool `k0`, `k1`, ... for each engine."""
    pools = "\n".join(
        f'  k{k}: {{endpoints: ["{url}"], model: e4b'
        + (f", speculative: {{method: mtp, tokens: {k}}}" if k else "")
        + "}"
        for url, k in zip(urls, ks, strict=True)
    )
    names = ", ".join(f"k{k}" for k in ks)
    return f"""
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: 200ms}}}}
pools:
{pools}
models:
  e4b: {{pools: [{names}], architecture: dense}}
{extra}
"""


async def bench(url: str, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """The JSON of `gateway bench WORDS --url URL`."""
    got = await asyncio.to_thread(run, ["bench", *words, "--url", url, *SETTLE, "--json"])
    out = capsys.readouterr()
    assert got == code, out.err
    report: dict[str, Any] = json.loads(out.out) if out.out else {"error": out.err}
    return report


async def known(running: Running, urls: Sequence[str]) -> None:
    """Waits until the gateway has asked its back ends who they are."""
    view = running.core.watch.view
    await running.until(lambda: all(view.identity(url).version for url in urls))


async def test_short_answers_through_a_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    """Both pools answer every question alike, and the engines' time scale shows through the gateway."""
    with engines(0, 2, scale=8.0) as urls:
        async with gateway(policy(urls, (0, 2))) as running:
            await known(running, urls)
            report = await bench(running.url, capsys, "short", "--quick")

    assert report["quality"]["questions"] == 12
    assert report["quality"]["agreement"] == 1.0
    assert report["plain"]["errors"] == report["mtp"]["errors"] == 0
    assert report["simulated_back_ends"] == [f"{s}, 8 times as fast as its profile" for s in ("plain", "mtp")]


async def test_depth_through_a_gateway_with_a_pool_for_each_k(capsys: pytest.CaptureFixture[str]) -> None:
    """Acceptance is that of the pool in question, though the gateway counts all of them together."""
    with engines(0, 1, 2) as urls:
        async with gateway(policy(urls, (0, 1, 2))) as running:
            words = [word for k in (0, 1, 2) for word in ("--endpoint", f"{k}=k{k}")]
            report = await bench(
                running.url, capsys, "depth", *words, "--concurrency", "3", "--runs", "2", "--max-tokens", "96", "--all"
            )

    depths = {row["k"]: row for row in report["depths"]}
    assert set(depths) == {0, 1, 2}
    assert depths[0]["acceptance"] is None
    assert len(depths[1]["acceptance"]["position_acceptance_rates"]) == 1
    assert len(depths[2]["acceptance"]["position_acceptance_rates"]) == 2
    assert 1.2 < depths[1]["mean_length"] < depths[2]["mean_length"] < 2.3


async def test_slices_through_a_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    """Each pool is a slice; two give more than one."""
    with engines(0, 2) as urls:
        async with gateway(policy(urls, (0, 2))) as running:
            words = ("slices", "--slice", "k0", "--slice", "k2", "--quick", "--concurrency", "2", "--max-tokens", "48")
            report = await undisturbed(lambda: bench(running.url, capsys, *words, "--critical", "6"), scales)

    one, two = report["scaling"]
    assert scales(report)
    assert one["errors"] == two["errors"] == 0
    assert report["interference"]["beside"].keys() == report["interference"]["alone"].keys()


async def test_break_even_through_a_gateway_becomes_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps are fitted from the counters that the gateway shows; the file says that it is simulated, and how fast."""
    out, page = tmp_path / "mine.yaml", tmp_path / "page.html"
    with engines(0, 2) as urls:
        async with gateway(policy(urls, (0, 2))) as running:
            await known(running, urls)
            words = ("breakeven", "--lengths", "1,16,96", "--concurrency", "1,3", "--runs", "1", "--prompt", "64")
            files = ("--profile", str(out), "--html", str(page))
            report = await undisturbed(
                lambda: bench(running.url, capsys, *words, *files), lambda report: bool(report["fit"]["worst"] < 0.3)
            )

    assert report["k"] == 2
    assert len(report["cells"]) == 6
    assert report["fit"]["worst"] < 0.3
    assert parse_catalog(out.read_text("utf-8")).models("measured") == ("e4b",)
    assert "10 times as fast" in out.read_text("utf-8")
    assert "<svg" in page.read_text("utf-8")


async def test_a_gateway_that_goes_its_own_way_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A rule that overrides the asked pool would have one pool's times pass for the other's."""
    rule = "routing: {rules: [{name: always, when: {}, require: k0}]}"
    with engines(0, 2, scale=50.0) as urls:
        async with gateway(policy(urls, (0, 2), rule)) as running:
            report = await bench(running.url, capsys, "short", "--quick", code=1)

    assert "the gateway chose k0 (rule)" in report.get("error", "") + str(report.get("stopped"))


async def test_a_back_end_is_not_taken_for_a_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that knows no pools would give the same times twice."""
    with engines(0, scale=50.0) as (plain,):
        report = await bench(plain, capsys, "short", "--quick", code=1)

    assert "not a gateway" in report.get("error", "") + str(report.get("stopped"))
