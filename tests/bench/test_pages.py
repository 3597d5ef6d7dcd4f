"""What every measurement prints: figures beside the published ones with hardware and source, and a page with plots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.bench.sources import data
from gateway.cli import run
from tests.bench.engines import engines


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    with engines(0, 2, scale=40.0) as found:
        yield found


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("short", ["--plain", "PLAIN", "--mtp", "MTP"]),
        ("depth", ["--endpoint", "0=PLAIN", "--endpoint", "2=MTP", "--concurrency", "2", "--max-tokens", "24"]),
        ("slices", ["--slice", "PLAIN", "--slice", "MTP", "--concurrency", "1", "--max-tokens", "24"]),
        ("breakeven", ["--plain", "PLAIN", "--mtp", "MTP", "--lengths", "1,8,64", "--concurrency", "1"]),
        ("load", ["--url", "MTP", "--rate", "30", "--requests", "16", "--slo", "e2e=60s"]),
    ],
)
def test_markdown_and_page(
    kind: str, words: list[str], urls: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is shown without its label, and nothing published without its source."""
    page = tmp_path / f"{kind}.html"
    given = [word.replace("PLAIN", urls[0]).replace("MTP", urls[1]) for word in words]
    code = run(["bench", kind, *given, "--quick", "--html", str(page)])
    out, html = capsys.readouterr().out, page.read_text("utf-8")
    about = data("published")[kind]

    assert code == 0
    assert "SIMULATED back ends" in out
    assert "40 times as fast as its profile" in out
    assert "Quick: a check, not figures to quote." in out
    assert out.index("### Measured") < out.index("### Published")
    assert f"Source: {about['source']}; hardware: {about['hardware']}" in out
    assert "<svg" in html
    assert "http" not in html.replace("http-equiv", "").split("</style>")[1].replace(urls[0], "").replace(urls[1], "")
