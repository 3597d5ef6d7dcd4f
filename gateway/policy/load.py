"""A policy file -> `Policy`, or every problem of the file at once.

bytes -> text (UTF-8) -> plain data with positions (`tree`) -> form (`document`) and references (`references`), both
checked even if one fails -> `Policy` (`build`). Text that is not YAML stops at its first problem.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from gateway.policy.build import build
from gateway.policy.document import Document
from gateway.policy.messages import MISSING, explain
from gateway.policy.problems import Finding, Loc, PolicyInvalid, Problem, path_text
from gateway.policy.references import check_references
from gateway.policy.schema import Policy
from gateway.policy.speeds import read_speeds
from gateway.policy.tree import Tree, read_tree

__all__ = ["MAX_BYTES", "PolicyInvalid", "Problem", "load_argument", "load_policy", "parse_policy", "read_bytes"]

MAX_BYTES = 256 * 1024
STDIN = "-"
"""What a command line calls standard input."""
STDIN_SOURCE = "<stdin>"
"""What messages call it."""


def load_policy(path: str | os.PathLike[str], env: Mapping[str, str]) -> Policy:
    """The policy in a file. Raises PolicyInvalid, also for a file that cannot be read."""
    return parse_policy(read_bytes(path), os.fspath(path), env)


def load_argument(path: str | os.PathLike[str], env: Mapping[str, str], stdin: BinaryIO) -> Policy:
    """The policy that a command line names: a file, a pipe such as a shell's `<(...)`, or `-` for what `stdin` holds;
    files that the latter names are looked for in the working folder. Raises PolicyInvalid."""
    if os.fspath(path) != STDIN:
        return parse_policy(read_bytes(path, pipes=True), os.fspath(path), env)
    try:
        content = stdin.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyInvalid([Problem(STDIN_SOURCE, 1, 1, "policy", f"cannot be read: {error.strerror}")]) from None
    return parse_policy(content, STDIN_SOURCE, env)


def read_bytes(path: str | os.PathLike[str], *, pipes: bool = False) -> bytes:
    """The file's content, at most `MAX_BYTES` and one more; links are followed. Raises PolicyInvalid."""
    source = os.fspath(path)
    try:
        # A device would never end. A pipe would block whoever watches it; a command that ends may read one.
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode) and not (pipes and stat.S_ISFIFO(mode)):
            raise PolicyInvalid([Problem(source, 1, 1, "policy", "not a file")])
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise PolicyInvalid([Problem(source, 1, 1, "policy", "no such file")]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise PolicyInvalid([Problem(source, 1, 1, "policy", f"cannot be read: {reason}")]) from None
    return content


def parse_policy(content: str | bytes, source: str, env: Mapping[str, str]) -> Policy:
    """The policy in a text; `source` is its name in messages. Raises PolicyInvalid."""
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if len(raw) > MAX_BYTES:
        raise PolicyInvalid([Problem(source, 1, 1, "policy", f"larger than {MAX_BYTES // 1024} KiB")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig")
        mark = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise PolicyInvalid([Problem(source, *mark, "policy", "not UTF-8 text")]) from None
    tree = read_tree(text, env)
    document, found = _check(tree, env)
    speeds, unknown = read_speeds(tree.data, Path(source).parent)
    found.extend(unknown)
    problems = _placed(tree, found, source)
    if problems or document is None:
        raise PolicyInvalid(problems)
    return build(document, source=source, version_hash=sha256(raw).hexdigest()[:12], env=env, speeds=speeds)


def _check(tree: Tree, env: Mapping[str, str]) -> tuple[Document | None, list[Finding]]:
    if tree.data is None:
        return None, []
    document: Document | None = None
    found: list[Finding] = []
    try:
        document = Document.model_validate(tree.data)
    except ValidationError as error:
        found.extend(explain(error))
    found.extend(check_references(tree.data, env))
    return document, found


def _placed(tree: Tree, found: list[Finding], source: str) -> list[Problem]:
    """The problems in the order of the file, without those that only follow from another problem of the same value."""
    blamed: set[Loc] = set()
    placed: list[Problem] = []
    for (line, column), loc, message in tree.problems:
        placed.append(Problem(source, line, column, path_text(loc), message))
        blamed.add(loc)
    for loc, of_key, message in _known_paths(tree, found):
        if loc not in blamed:
            line, column = tree.position(loc, key=of_key)
            placed.append(Problem(source, line, column, path_text(loc), message))
    return sorted(set(placed))


def _known_paths(tree: Tree, found: list[Finding]) -> Iterator[Finding]:
    """The findings with paths as in the file: pydantic adds parts where a single value stands for a list or mapping."""
    for finding in found:
        real = finding.loc
        while real and real not in tree.values and finding.message != MISSING:
            real = real[:-1]
        yield finding._replace(loc=real)
