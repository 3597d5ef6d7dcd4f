"""The measured and published tables that the simulator is held against, as they ship: numbers, source, hardware."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import yaml

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KnownTable:
    """One table. Cells are text as in the file; what a cell means is its column's name, with the unit."""

    name: str
    title: str
    source: str
    hardware: str
    method: str
    fitted: bool
    """Whether the profile was fitted to it, so that a small error is no prediction."""
    lacks: str
    """The physics that the model does not have and that this table shows."""
    rows: tuple[Row, ...]


def known_tables() -> tuple[KnownTable, ...]:
    """All of them, in the order of the index."""
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
    """One table's rows."""
    text = files("gateway.simulate").joinpath("data", f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))
