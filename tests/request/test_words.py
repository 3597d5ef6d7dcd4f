"""Words, numbers and patterns of short texts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request.wish_words import FIRM_CJK, FIRM_LATIN
from gateway.request.words import leaping

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
