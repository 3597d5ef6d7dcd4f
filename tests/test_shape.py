"""The shape of the code, as limits: a wish is no limit, a test is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "gateway").rglob("*.py"))

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_stay_small(file: Path) -> None:
    """A file is read in one sitting and a function on one screen."""
    source = file.read_text("utf-8")
    long = [f.name for f in functions(ast.parse(source)) if (f.end_lineno or 0) - f.lineno >= MAX_FUNCTION_LINES]

    assert source.count("\n") <= MAX_FILE_LINES
    assert long == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_module_has_global_state(file: Path) -> None:
    """Nothing is rebound from a function; what changes is owned by an object that `build` made."""
    tree = ast.parse(file.read_text("utf-8"))

    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_module_says_what_it_is(file: Path) -> None:
    """The head of a module is its documentation."""
    source = file.read_text("utf-8")

    assert not source.strip() or ast.get_docstring(ast.parse(source))


def test_folders_are_one_deep() -> None:
    """`gateway/area/module.py` and no deeper."""
    assert all(len(file.relative_to(ROOT / "gateway").parts) <= 2 for file in FILES)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda file: str(file.relative_to(ROOT))
)
def test_every_test_says_what_it_shows(file: Path) -> None:
    """A test's docstring is one sentence of behaviour."""
    tests = [f for f in functions(ast.parse(file.read_text("utf-8"))) if f.name.startswith("test_")]

    assert [test.name for test in tests if not ast.get_docstring(test)] == []
