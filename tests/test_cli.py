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


WRONG = r"version: 1\npools:\n  plain: {endpoints: [\"http://a:1\"], limts: {}}\nmodels: {m: {pools: [plain, none]}}\n"


@pytest.mark.parametrize(
    "verb", ["check -", "explain --policy - README.md", "replay --policy - README.md", "advise --policy -"]
)
def test_a_policy_on_standard_input_is_told_by_line_and_column(verb: str) -> None:
    """What a template prints can be piped in; each error names `<stdin>` and its place, as it names a file's."""
    done = shell(f"printf '{WRONG}' | {RUN} {verb}")

    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("<stdin>:3:38: pools.plain.limts: unknown name")
    assert second == "<stdin>:4:29: models.m.pools[1]: no pool named `none`"


def test_a_policy_on_standard_input_serves_as_a_file_does(tmp_path: Path) -> None:
    """Valid text is `ok`, alone, beside files and from a shell's `<(...)`, and decides; nothing is no policy."""
    request = tmp_path / "request.json"
    request.write_text('{"model": "e4b", "messages": [{"role": "user", "content": "長い物語を書いて"}]}', "utf-8")

    assert shell(f"{RUN} check - {POLICY} < {POLICY}").stdout == "ok\n"
    assert shell(f"{RUN} check <(cat {POLICY})").stdout == "ok\n"
    assert '"pool": "e4b-mtp"' in shell(f"{RUN} explain --json --policy - {request} < {POLICY}").stdout
    assert shell(f"{RUN} check - < /dev/null").stderr.startswith("<stdin>:1:1: policy: ")
    assert shell(f"{RUN} check - 0> /dev/null").stderr == "<stdin>:1:1: policy: cannot be read: Bad file descriptor\n"


@pytest.mark.parametrize(
    "verb",
    [
        "check - -",
        "explain --policy - -",
        "replay --policy - -",
        "serve --policy -",
        "serve --policy x --canary-policy -",
    ],
)
def test_standard_input_is_read_once_and_never_watched(verb: str) -> None:
    """Exit code 2 and a line that says so, before anything is read."""
    done = shell(f"{RUN} {verb} < {POLICY}")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "standard input" in done.stderr


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
