"""vLLM versions, and the rules of the catalogue that hold for a range of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple


class Version(NamedTuple):
    """A release. What follows the third number, such as `rc1` or `+cpu`, is left out of comparisons."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Reads `0.33.0`, `v0.33.0` or `0.33`; raises ValueError for anything else."""
        found = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+-]?[a-z][\w.]*|\+\w+)?", text.strip())
        if not found:
            raise ValueError(f"{text!r} is not a vLLM version such as 0.33.0")
        major, minor, patch = found.groups()
        return cls(int(major), int(minor), int(patch or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Which engines a rule holds for: `since` <= version < `before`, these models, with a drafter only."""

    since: Version | None = None
    before: Version | None = None
    models: frozenset[str] = frozenset()
    """Empty: every model."""
    mtp_only: bool = False

    def holds(self, version: Version, model: str, mtp: bool) -> bool:
        return (
            (self.since is None or version >= self.since)
            and (self.before is None or version < self.before)
            and (not self.models or model in self.models)
            and (mtp or not self.mtp_only)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Versions that are known not to work, why, and the first one to take instead."""

    where: Range
    why: str
    works: Version
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable of the engine."""

    where: Range
    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    where: Range
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What is known of vLLM's releases."""

    default: Version
    checked: tuple[Version, ...]
    """Recipes for these went through vLLM's own argument parser."""
    guard_from: Version
    """First release that heeds the drafts-by-batch-size table on Gemma 4."""
    fp8_cache_mtp_from: Version
    broken: tuple[Broken, ...]
    environment: tuple[Variable, ...]
    notes: tuple[Note, ...]
