"""`gateway bench longform` and `short` against simulated engines, direct and through a gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.bench.client import Target
from gateway.bench.longform import LongForm
from gateway.bench.rows import Row
from gateway.bench.short import Short, prompts_of
from gateway.bench.sources import own_questions
from gateway.cli import run
from tests.bench.engines import engines, measured, undisturbed, undisturbed_command
from tests.gateways import gateway, two_pools


@pytest.fixture(scope="module")
def spark() -> object:
    """A plain and an MTP engine at the speed of the published comparison, fifteen times."""
    with engines(0, 3, profile="dgx-spark", scale=15.0) as urls:
        yield urls


def about_published(report: dict[str, Any]) -> object:
    return pytest.approx(report["published"]["speedup"]["e4b"], rel=0.12)


def test_longform_reproduces_the_published_speedup(spark: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On the profile made of the article's figures, one client gets the article's 2.1x, labelled simulated."""
    report = undisturbed_command(
        capsys,
        lambda report: bool(report["speedup"] == about_published(report)),
        *("longform", "--plain", spark[0], "--mtp", spark[1] + "/v1", "--runs", "4"),
    )

    assert report["simulated"]
    assert report["simulated_back_ends"] == [f"{s}, 15 times as fast as its profile" for s in ("plain", "mtp")]
    assert report["speedup"] == about_published(report)
    for language in ("ja", "en"):
        cell = report["languages"][language]
        assert 0.35 < cell["acceptance"]["acceptance_rate"] < 0.55
        assert cell["plain"]["requests"] == cell["mtp"]["requests"] == 3
        assert {"tok_s", "ttft_ms", "tpot_ms", "e2e_ms", "characters_per_token"} <= cell["plain"].keys()
    assert report["languages"]["en"]["mtp"]["characters_per_token"] > 2.5
    assert report["languages"]["ja"]["mtp"]["characters_per_token"] < 2.5


def test_short_answers_gain_nothing_and_stay_the_same(spark: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A few tokens leave drafting nothing to save, and the answers agree question by question."""
    report = undisturbed_command(
        capsys,
        lambda report: report["speedup"] < 1.3 and report["quality"]["agreement"] == 1.0,
        *("short", "--plain", spark[0], "--mtp", spark[1], "--quick"),
    )

    assert report["speedup"] < 1.3
    assert report["quality"]["questions"] == 12
    assert report["quality"]["agreement"] == 1.0
    assert report["quality"]["within_half_a_point"]
    assert report["mtp"]["p95_ms"] >= report["mtp"]["e2e_ms"]["median"]


def test_answers_without_a_letter_say_nothing_of_quality() -> None:
    """Two sides that answer noise do not agree, and their accuracies are no finding."""
    targets = (Target(label="plain", url="http://a"), Target(label="MTP", url="http://b"))
    short = Short(targets, prompts_of(own_questions(), 2), 1, "our own")
    noise = Row(label="", tag="ja", sent=0.0, first=0.1, last=0.2, total=0.2, tokens=8, text="...")
    short._pairs = [(asked, noise, noise) for asked in short._asked]

    quality = short.quality()

    assert quality["agreement"] is quality["difference_points"] is None
    assert not quality["within_half_a_point"]
    assert any("nothing can be said of quality" in finding for finding in short.report().findings)


def test_short_takes_a_question_file(spark: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A JCommonsenseQA file is asked with its first three questions as examples."""
    rows = [
        {"question": f"{i}番目は？", **{f"choice{c}": f"答え{c}" for c in range(5)}, "label": i % 5} for i in range(7)
    ]
    path = tmp_path / "questions.json"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    report = measured(capsys, "short", "--plain", spark[0], "--mtp", spark[1], "--questions", str(path))

    assert report["quality"]["questions"] == 4
    assert report["questions_from"] == str(path)


def test_prints_markdown_and_writes_a_page(
    spark: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured and published figures stand beside each other, with the source and hardware of the latter."""
    page = tmp_path / "report.html"
    code = run(["bench", "longform", "--plain", spark[0], "--mtp", spark[1], "--runs", "2", "--html", str(page)])
    out = capsys.readouterr().out

    assert code == 0
    assert "SIMULATED back ends" in out
    assert "| E4B | 18 | 39 | 2.10x |" in out
    assert "hardware: DGX Spark" in out
    assert "SIMULATED back ends" in page.read_text("utf-8")


async def test_a_gateway_stands_for_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    """With --url both pools are asked for by header, and the back ends' simulation still shows."""
    with engines(0, 2) as (plain, mtp):
        policy = two_pools(plain, mtp).replace("telemetry: {interval: off}", "telemetry: {interval: 500ms}")
        policy = policy.replace("endpoints", "model: e4b, endpoints")
        async with gateway(policy) as running:
            words = ("longform", "--url", running.url, "--language", "ja", "--runs", "2")
            report = await undisturbed(
                lambda: asyncio.to_thread(measured, capsys, *words), lambda report: bool(report["speedup"] > 1.0)
            )

    assert report["simulated"]
    assert report["languages"]["ja"]["acceptance"]["mean_acceptance_length"] > 1.3
    assert report["speedup"] > 1.0


async def test_what_was_measured_until_an_interrupt_is_told() -> None:
    """A cancelled run reports the rows it has."""
    with engines(0, 2) as (plain, mtp):
        form = LongForm([(Target(label="plain", url=plain), Target(label="mtp", url=mtp))], 12, 64)
        enough = asyncio.Event()
        ticks: list[str] = []

        def tick(what: str) -> None:
            ticks.append(what)
            if len(ticks) == 6:
                enough.set()

        task = asyncio.create_task(form.run(tick))
        await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        report = form.report()

    assert report.data["languages"]["ja"]["plain"]["requests"] >= 1
    assert "Not complete (interrupted)" in report.markdown(stopped="interrupted")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--plain", "http://127.0.0.1:1", "--mtp", "URL"], 1, "start the server or correct the address"),
        (["--plain", "URL", "--mtp", "URL", "--model", "nope"], 1, "it serves e4b"),
        (["--plain", "URL"], 2, "--mtp URL"),
        (["--plain", "127.0.0.1:80", "--mtp", "URL"], 1, "give an address as http://"),
    ],
)
def test_says_what_to_do_about_a_mistake(
    spark: list[str], words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr that names the remedy, no traceback."""
    got = run(["bench", "longform", *(spark[1] if word == "URL" else word for word in words), "--runs", "2"])
    err = capsys.readouterr().err

    assert got == code
    assert err.count("\n") == 1
    assert told in err


@pytest.mark.parametrize("what", ["longform", "short", "breakeven"])
@pytest.mark.parametrize(("plain", "mtp", "told"), [(1, 0, "are --plain and --mtp swapped?"), (0, 0, "is it an MTP")])
def test_sides_that_are_not_what_they_are_called_are_not_compared(
    spark: list[str], what: str, plain: int, mtp: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two addresses in the wrong order, or one of them twice, would be a table of the opposite, or of nothing."""
    got = run(["bench", what, "--plain", spark[plain], "--mtp", spark[mtp], "--quick"])
    out, err = capsys.readouterr()

    assert got == 2
    assert told in err
    assert out == ""


def test_a_refused_key_names_the_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A back end with a key of its own is not mistaken for one that is down."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with engines(0, 2, api_key="secret") as (plain, mtp):
        assert run(["bench", "longform", "--plain", plain, "--mtp", mtp]) == 1
        assert "--key" in capsys.readouterr().err
        assert measured(
            capsys, "longform", "--plain", plain, "--mtp", mtp, "--key", "secret", "--runs", "2", "--max-tokens", "16"
        )


def test_further_models_are_rows_of_one_table(spark: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--also adds another model's back ends; the first model's figures stand at the top."""
    also = f"{spark[0]},{spark[1]}"
    words = ["--plain", spark[0], "--mtp", spark[1], "--runs", "2", "--language", "en", "--max-tokens", "24"]
    code = run(["bench", "longform", *words, "--also", also, "--html", "/dev/null"])
    out = capsys.readouterr().out

    assert code == 0
    assert out.count("| e4b | en |") == 2
    assert run(["bench", "longform", *words, "--also", "http://127.0.0.1:1"]) == 2


def test_a_file_of_questions_that_is_not_there_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """One line."""
    assert run(["bench", "short", "--plain", "http://127.0.0.1:1", "--questions", "/nowhere/q.json"]) == 1
    assert capsys.readouterr().err.count("/nowhere/q.json") == 1
