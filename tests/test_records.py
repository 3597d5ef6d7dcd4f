"""Records: frozen for the type checker, ordinary dataclasses otherwise."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from mypy import api

from gateway.records import keyword_record, record


@record
class Point:
    x: int
    y: int = 2


@keyword_record
class Named:
    x: int


def test_a_record_is_a_dataclass() -> None:
    """It compares, hashes, is replaced and tells its fields as any."""
    assert Point(1) == Point(1, 2)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert replace(Point(1), x=3) == Point(3)
    assert [field.name for field in fields(Point)] == ["x", "y"]
    assert not hasattr(Point(1), "__dict__")


def test_a_keyword_record_takes_names_only() -> None:
    """Fields of one type are not mixed up by their places."""
    assert Named(x=1).x == 1
    with pytest.raises(TypeError):
        Named(1)  # type: ignore[call-arg]


def test_the_type_checker_refuses_to_change_one(tmp_path: Path) -> None:
    """What run time does not check is an error of the type check."""
    source = tmp_path / "changes.py"
    source.write_text("from tests.test_records import Point\nPoint(1).x = 3\n")
    said, _, status = api.run(["--follow-imports=silent", str(source)])
    assert status == 1
    assert "read-only" in said
