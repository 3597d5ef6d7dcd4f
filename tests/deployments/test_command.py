"""`gateway recipe` as a user meets it."""

from __future__ import annotations

import pytest

from gateway.cli import run


def test_a_recipe_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, the recipe on standard output alone."""
    assert run(["recipe", "e4b", "--slice", "1g.24gb"]) == 0

    printed = capsys.readouterr()
    assert "exec vllm serve google/gemma-4-E4B-it" in printed.out
    assert printed.err == ""


def test_a_refusal_says_why_and_what_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, the sum and the alternatives on standard error, and nothing that could be run by mistake."""
    assert run(["recipe", "31B", "--slice", "4g.96gb"]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("gateway recipe: 31B does not fit 4g.96gb: it needs ")
    assert "KV cache" in printed.err
    assert "would do: --context" in printed.err


@pytest.mark.parametrize(
    "words",
    [
        ["recipe"],
        ["recipe", "E4B"],
        ["recipe", "27B", "--slice", "1g.24gb"],
        ["recipe", "E4B", "--slice", "a100"],
        ["recipe", "E4B", "--slice", "1g.24gb", "--vllm", "latest"],
        ["recipe", "E4B", "--slice", "1g.24gb", "--checkpoint", "own"],
    ],
)
def test_wrong_usage_is_told_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and one line that says what is wrong."""
    assert run(words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["--k", "0"], ["--k", "9"], ["--k", "2", "--plain"], ["--share", "1.5"], ["--context", "1"]]
)
def test_wrong_values_are_refused(words: list[str]) -> None:
    """Values outside their range, and a depth for a plain engine, are wrong usage."""
    with pytest.raises(SystemExit) as caught:
        run(["recipe", "E4B", "--slice", "1g.24gb", *words])
    assert caught.value.code == 2


def test_the_list_names_sources(capsys: pytest.CaptureFixture[str]) -> None:
    """--list shows every model and slice with where its figures come from."""
    assert run(["recipe", "--list"]) == 0

    printed = capsys.readouterr().out
    assert all(name in printed for name in ("E2B", "26B-A4B", "1g.24gb", "dgx-spark", "Derived", "not measured"))
