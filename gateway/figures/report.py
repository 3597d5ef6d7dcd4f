"""What a measurement comes to: figures for machines, tables and plots for people. Markdown and JSON are made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        lines += [_line(row) for row in self.rows]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot, or one group of bars."""

    name: str
    points: tuple[tuple[float, float], ...]
    published: bool = False
    """Somebody else's figure: drawn dashed."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over a number, or bars over categories (`x` is then the category's index)."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    categories: tuple[str, ...] = ()
    level: float | None = None
    """A line across, where there is a value that decides: 1 for a speed-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run of one measurement, whole or as far as it came."""

    name: str
    title: str
    intro: str
    """How it was measured, in a sentence or two."""
    findings: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    simulated: tuple[str, ...] = ()
    """Labels of the back ends that say of themselves that they are simulated."""

    @property
    def label(self) -> str:
        """What every output says about simulated back ends."""
        return f"SIMULATED back ends ({'; '.join(self.simulated)}): not a measurement of hardware" * bool(
            self.simulated
        )

    def warnings(self, stopped: str, quick: bool) -> list[str]:
        """What every output says first. `stopped` is why the run ended early; empty where it did not."""
        found = [self.label] if self.label else []
        if quick:
            found.append("Quick: a check, not figures to quote.")
        if stopped:
            found.append(f"Not complete ({stopped}): what was measured until then.")
        return found

    def as_dict(self, *, stopped: str = "", quick: bool = False) -> dict[str, Any]:
        return {
            "measurement": self.name,
            "simulated": bool(self.simulated),
            "simulated_back_ends": list(self.simulated),
            "quick": quick,
            "stopped": stopped or None,
            **self.data,
            "findings": list(self.findings),
        }

    def markdown(self, *, stopped: str = "", quick: bool = False) -> str:
        parts = [f"## {self.title}", self.intro]
        parts += [f"**{warning}**" for warning in self.warnings(stopped, quick)]
        parts += [table.markdown() for table in self.tables]
        if self.findings:
            parts.append("\n".join(f"- {finding}" for finding in self.findings))
        return "\n\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
