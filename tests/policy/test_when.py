"""Conditions of rules, one field at a time."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.schema import Facts, When
from gateway.types import Structure, Task

CASES: list[tuple[dict[str, Any], Facts, Facts]] = [
    ({"task": "code"}, Facts(task=Task.CODE), Facts(task=Task.CHAT)),
    ({"task": ["code", "math"]}, Facts(task=Task.MATH), Facts(task=Task.CHAT)),
    ({"output_tokens": {"below": 32}}, Facts(output_tokens=31.9), Facts(output_tokens=32)),
    ({"output_tokens": {"at_least": 32}}, Facts(output_tokens=32), Facts(output_tokens=31.9)),
    ({"output_tokens": 3}, Facts(output_tokens=3.2), Facts(output_tokens=4)),
    ({"input_tokens": {"at_least": 1, "below": 3}}, Facts(input_tokens=2), Facts(input_tokens=3)),
    ({"input_tokens": [1, 5]}, Facts(input_tokens=5), Facts(input_tokens=3)),
    ({"language": ["JA", "no"]}, Facts(language="ja"), Facts(language="en")),
    ({"tools": True}, Facts(tools=3), Facts(tools=0)),
    ({"tools": False}, Facts(tools=0), Facts(tools=1)),
    ({"tools": {"at_least": 5}}, Facts(tools=5), Facts(tools=4)),
    ({"schema": True}, Facts(structure=Structure.REGEX), Facts()),
    ({"schema": False}, Facts(), Facts(structure=Structure.CHOICE)),
    ({"schema": ["json_schema"]}, Facts(structure=Structure.JSON_SCHEMA), Facts(structure=Structure.JSON_OBJECT)),
    ({"thinking": True}, Facts(thinking=True), Facts(thinking=None)),
    ({"thinking": False}, Facts(thinking=None), Facts(thinking=True)),
    ({"stream": False}, Facts(stream=False), Facts(stream=True)),
    ({"header": {"X-Batch": "1"}}, Facts(headers={"x-batch": "1"}), Facts(headers={"x-batch": "2"})),
    ({"header": {"x-batch": 1}}, Facts(headers={"x-batch": "1"}), Facts()),
    ({"header": {"x-a": ["b", "c"]}}, Facts(headers={"x-a": "c"}), Facts(headers={"x-a": "d"})),
    ({"header": {"x-a": True}}, Facts(headers={"x-a": ""}), Facts()),
    ({"header": {"x-a": False}}, Facts(), Facts(headers={"x-a": ""})),
    ({"key": "alpha"}, Facts(key="alpha"), Facts(key=None)),
    ({"model": ["m", "n"]}, Facts(model="n"), Facts(model="o")),
    (
        {"task": "code", "stream": True, "output_tokens": {"at_least": 9}},
        Facts(task=Task.CODE, stream=True, output_tokens=9),
        Facts(task=Task.CODE, stream=True, output_tokens=8),
    ),
]


@pytest.mark.parametrize(("written", "inside", "outside"), CASES, ids=lambda value: str(value)[:40])
def test_a_condition_holds_for_its_facts_only(written: dict[str, Any], inside: Facts, outside: Facts) -> None:
    """Each field takes a value, a list (any of) or bounds, and all fields must hold."""
    when = When.model_validate(written)

    assert when.matches(inside)
    assert not when.matches(outside)


def test_an_empty_condition_always_holds() -> None:
    """A rule without `when` is a default."""
    assert When().matches(Facts())


def test_header_names_are_known_beforehand() -> None:
    """The caller collects only those headers that some rule asks for."""
    assert When.model_validate({"header": {"X-Batch": "1", "x-team": True}}).header_names == {"x-batch", "x-team"}
