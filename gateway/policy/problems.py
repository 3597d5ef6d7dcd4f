"""What is wrong with a policy file, and where. All problems of a file travel together in one `PolicyInvalid`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

Loc = tuple[str | int, ...]
"""The way to a value in the file: names of mappings and indices of lists."""
_PLAIN_KEY = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem and its place. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        line = f"{self.file}:{self.line}:{self.column}: {self.path}: {self.message}"
        # One line, whatever the file's names and values hold.
        return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


class Finding(NamedTuple):
    """What is wrong with one value or its key, before its place in the file is looked up."""

    loc: Loc
    of_key: bool
    """Whether the key is to blame, not its value."""
    message: str


def at_key(loc: Loc, message: str) -> Finding:
    return Finding(loc, True, message)


def at_value(loc: Loc, message: str) -> Finding:
    return Finding(loc, False, message)


class PolicyInvalid(Exception):
    """The policy cannot be used; nothing of it has taken effect."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def path_text(loc: Loc) -> str:
    """`pools.e4b.endpoints[0]`; `policy` for the file as a whole."""
    out = ""
    for part in loc:
        if isinstance(part, int):
            out += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            out += f".{part}" if out else part
        else:
            shown = part if len(part) <= 60 else f"{part[:57]}..."
            out += f"[{ascii(shown) if not shown.isprintable() else repr(shown)}]"
    return out or "policy"


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """A hint to append to a message; empty if nothing known is similar."""
    found = get_close_matches(text[:100], [*known], n=1, cutoff=0.6)
    return f"; did you mean `{found[0]}`?" if found else ""
