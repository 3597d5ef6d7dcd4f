"""The command line as a process: its streams, its exit codes, and options that are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import run

ROOT = Path(__file__).parents[1]
POLICY = str(ROOT / "policies" / "default.yaml")
RUN = f"{sys.executable} -m gateway"
CHECK = f"check {POLICY}"
EXPLAIN = f"explain --policy {POLICY} -"


def shell(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of shell with streams as it sets them, buffered as they are for a user."""
    mine = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, env=mine | env, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"{RUN} {CHECK} >&-", 0),
        (f"{RUN} {CHECK} 2>&-", 0),
        (f"{RUN} {EXPLAIN} <&-", 1),
        (f"{RUN} replay --policy {POLICY} - <&-", 1),
        (f"{RUN} {CHECK} > /dev/full", 1),
        (f"{RUN} recipe --list > /dev/full", 1),
    ],
)
def test_a_stream_that_is_closed_or_full_is_no_traceback(command: str, code: int) -> None:
    """Started without one of its streams, as by a supervisor, or onto a full disk, a command says what is wrong in a
    line and ends with its usual code."""
    done = shell(command)

    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (code != 0)


@pytest.mark.parametrize("command", ["recipe --list", CHECK])
def test_a_reader_that_has_seen_enough_is_no_error_message(command: str) -> None:
    """`| head` and `| true` end a command quietly."""
    done = shell(f"{RUN} {command} | true")

    assert done.stderr == ""


def test_an_encoding_without_a_character_gets_its_escape() -> None:
    """On a Latin-1 terminal a Japanese text is written as escapes; it does not end the command."""
    done = shell(f"{RUN} recipe E4B --slice 1g.24gb --served-name 窓口", PYTHONIOENCODING="latin-1")

    assert done.returncode == 0, done.stderr
    assert "--served-model-name '\\u7a93\\u53e3'" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("advise --policy p --seconds x", "'x' is not a number of seconds above 0"),
        ("bench load --url http://a --rate x", "'x' is not a number above 0"),
        ("bench load --url http://a --requests 1.5", "'1.5' is not a whole number of at least 1"),
        ("bench longform --runs x", "'x' is not a whole number of at least 1"),
        ("bench longform --settle x", "'x' is not a number of seconds from 0 to 600"),
        ("bench breakeven --lengths 1,x", "'x' is not a whole number of at least 1"),
        ("recipe E4B --k x", "'x' is not a whole number in 1..8"),
        ("recipe E4B --context 1.5", "'1.5' is not a whole number in 256"),
        ("recipe E4B --share x", "'x' is not a share in 0.05..0.98"),
    ],
)
def test_what_is_no_number_is_told_in_the_users_words(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that takes a number says which, and names no function of the program."""
    with pytest.raises(SystemExit) as ended:
        run(words.split())

    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "bench longform --plain http://a --mtp http://b --html",
        "bench breakeven --plain http://a --mtp http://b --profile",
        "bench estimator --data d --svg",
        "bench estimator --data d --points",
        "simulate --plan --html",
        "simulate --validate --html",
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped folder ends the command at once: it must not cost what took hours to measure."""
    for path, told in (
        (tmp_path / "none" / "out.yaml", f"there is no folder {tmp_path / 'none'}"),
        (tmp_path, "is a folder; name a file"),
    ):
        with pytest.raises(SystemExit) as ended:
            run([*words.split(), str(path)])

        assert ended.value.code == 2
        assert told in capsys.readouterr().err
