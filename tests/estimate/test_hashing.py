"""The keys of a request's history: which requests share one."""

from __future__ import annotations

import dataclasses
from typing import Any

from gateway.estimate.hashing import LEVELS, keys_of, name_key, with_case
from tests.estimate.synthetic import ask

CASE, ASK = LEVELS.index("case"), LEVELS.index("ask")


def keys(text: str, case: str, ask_tokens: int = 40, **params: Any) -> tuple[int, ...]:
    return with_case(keys_of(ask(text, **params), name_key("m")), case, ask_tokens)


def test_requests_of_a_case_share_its_key_whatever_their_words() -> None:
    """Two texts of one case have one key, another case or another form of request has its own."""
    first = keys("Write a tale about an otter.", "write")
    assert len(first) == len(LEVELS)
    assert keys("A poem on herons, please.", "write")[CASE] == first[CASE] != 0
    assert keys("A poem on herons, please.", "explain")[CASE] != first[CASE]
    assert keys("A poem on herons, please.", "write", temperature=0.5)[CASE] != first[CASE]


def test_asks_of_about_one_length_share_a_key() -> None:
    """Within a case, the length of the ask counts by powers of two."""
    short, alike, long = (keys("Write a tale.", "write", tokens) for tokens in (33, 60, 70))
    assert short[ASK] == alike[ASK] != 0
    assert long[ASK] != short[ASK]
    assert long[CASE] == short[CASE]


def test_the_case_is_no_key_where_the_request_has_no_form() -> None:
    """A trace's rows, which have no text, are not thrown together by a case that nobody read."""
    formless = dataclasses.replace(ask("Write a tale."), shape_key=0)
    known = keys_of(formless, name_key("m"))
    assert with_case(known, "nothing", 0) == known
    assert known[CASE] == known[ASK] == 0
