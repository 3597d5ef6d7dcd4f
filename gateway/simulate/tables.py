"""Loads the shipped measured and published tables against which the simulator is validated."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import yaml

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KnownTable:
    """One table. Cells are text as in the file; column names carry meaning and unit."""

    name: str
    title: str
    source: str
    hardware: str
    method: str
    fitted: bool
    """Whether the profile was fitted to this table, so that a small error proves nothing."""
    lacks: str
    """Effects in this table that the simulator does not model."""
    rows: tuple[Row, ...]


def known_tables() -> tuple[KnownTable, ...]:
    """All tables, in the order of the index."""
    folder = files("gateway.simulate").joinpath("data")
    index = yaml.safe_load(folder.joinpath("tables.yaml").read_text("utf-8"))["tables"]
    return tuple(
        KnownTable(
            name=name,
            title=about["title"],
            source=about["source"],
            hardware=about["hardware"],
            method=" ".join(about["method"].split()),
            fitted=about["fitted"],
            lacks=" ".join(about["lacks"].split()),
            rows=rows_of(name),
        )
        for name, about in index.items()
    )


def rows_of(name: str) -> tuple[Row, ...]:
    """The rows of one table."""
    text = files("gateway.simulate").joinpath("data", f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))
