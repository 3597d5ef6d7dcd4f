"""Dataclasses that are frozen for the type checker and as cheap as plain objects at run time, and a cheap way to make
named tuples.

A frozen dataclass sets each field through `object.__setattr__`. With 14 fields that makes it 2.7 times as expensive to
build by keyword, and 5.7 times by position (CPython 3.11), and a request builds a dozen. mypy reports an assignment to
a record's field just as it does with `frozen=True`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")

make = tuple.__new__
"""`make(Row, (a, b))` is `Row(a, b)` for a NamedTuple at half the price: it goes round the constructor in Python that
NamedTuple writes. It fills in no default, and no type is checked, so it is for tuples of which every request makes
several."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """`@dataclass(frozen=True, slots=True)` without the check at run time."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def keyword_record(cls: type[T]) -> type[T]:
    """A `record` whose fields are keyword-only."""
    return dataclass(slots=True, unsafe_hash=True, kw_only=True)(cls)
