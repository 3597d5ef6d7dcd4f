"""Words, numbers and patterns of short texts."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request.wish_words import FIRM_CJK, FIRM_LATIN
from gateway.request.words import digit_runs, has_digit, leaping, newlines

FIRM = [pattern for _, pattern, _ in (*FIRM_LATIN, *FIRM_CJK)]


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ("nur mit dem Wort", True),
        ("genau ein Wort", True),
        ("kein Wort", False),
        ("ein oder zwei", False),
        ("zeige\nein Wort", True),
    ],
)
def test_a_leaping_pattern_tells_whether_it_occurs(text: str, is_there: bool) -> None:
    """Anywhere in the text, under the conditions that the pattern puts on what stands around it."""
    pattern = leaping("en", r"\b(?:nur (?:mit )?dem|ein) Wort")

    assert (pattern.search(text) is not None) is is_there


@pytest.mark.parametrize("pattern", FIRM)
@given(data=st.data())
def test_firm_wishes_are_found_whatever_they_begin_with(pattern: re.Pattern[str], data: st.DataObject) -> None:
    """The characters to which the search leaps are those of all alternatives."""
    sought = pattern.pattern.partition("(?=")[2].rpartition(")[")[0]
    text = data.draw(st.from_regex(re.compile(sought), fullmatch=True))

    assert pattern.search(text)


@given(st.text(max_size=60))
def test_digits_are_found_in_every_script(text: str) -> None:
    """Counting runs of digits and telling whether there are any agree with `\\d`."""
    assert has_digit(text) is (re.search(r"\d", text) is not None)
    assert digit_runs(text) == len(re.findall(r"\d+", text))


def test_each_decimal_digit_of_unicode_is_a_digit() -> None:
    """Also those of scripts that few requests are written in."""
    digits = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isdecimal()]

    assert all(has_digit(f"文{digit}") and digit_runs(f"1文{digit}{digit}") == 2 for digit in digits)


@given(st.text("a\n", max_size=30), st.integers(1, 20))
def test_line_breaks_are_counted_up_to_a_bound(text: str, most: int) -> None:
    """However many there are, the count is that of `str.count`, or the bound."""
    assert newlines(text) == text.count("\n")
    assert newlines(text, most) == min(most, text.count("\n"))
