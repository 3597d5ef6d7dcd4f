"""Files that are no policy, and texts that are anything at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.load import MAX_BYTES, PolicyInvalid, Problem, load_policy, parse_policy

VALID = 'pools: {plain: {endpoints: ["http://a:1"]}}\nmodels: {m: {pools: [plain]}}\n'


def reason(path: Path) -> str:
    with pytest.raises(PolicyInvalid) as caught:
        load_policy(path, {})
    (problem,) = caught.value.problems
    return f"{problem.line}:{problem.column}: {problem.path}: {problem.message}"


class TestFiles:
    def test_a_missing_file_is_a_problem_of_the_file(self, tmp_path: Path) -> None:
        """The message names the file, without a traceback."""
        with pytest.raises(PolicyInvalid, match=r"none\.yaml:1:1: policy: no such file"):
            load_policy(tmp_path / "none.yaml", {})

    def test_a_directory_is_no_policy(self, tmp_path: Path) -> None:
        """A mount that is missing its file leaves a directory."""
        assert reason(tmp_path) == "1:1: policy: not a file"

    def test_a_pipe_does_not_block(self, tmp_path: Path) -> None:
        """Only regular files are opened."""
        os.mkfifo(tmp_path / "pipe")

        assert reason(tmp_path / "pipe") == "1:1: policy: not a file"

    def test_a_huge_file_is_refused_before_it_is_parsed(self, tmp_path: Path) -> None:
        """A wrong file name (a log, a model) costs neither time nor memory."""
        (tmp_path / "huge").write_bytes(b"#" * (MAX_BYTES + 1))

        assert reason(tmp_path / "huge") == "1:1: policy: larger than 256 KiB"

    def test_a_path_with_a_nul_is_no_file(self) -> None:
        """What the operating system refuses is a problem as well."""
        assert "cannot be read" in reason(Path("a\0b"))

    def test_a_byte_order_mark_is_fine(self, tmp_path: Path) -> None:
        """Editors on Windows write one."""
        (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + VALID.encode())

        assert load_policy(tmp_path / "bom.yaml", {}).models["m"].pools == ("plain",)

    def test_the_version_is_the_hash_of_the_bytes(self, tmp_path: Path) -> None:
        """`sha256sum` of the file tells an operator which replica has which policy."""
        (tmp_path / "p.yaml").write_text(VALID)

        assert load_policy(tmp_path / "p.yaml", {}).version_hash == hashlib.sha256(VALID.encode()).hexdigest()[:12]


def parse(content: str | bytes) -> None:
    problems: tuple[Problem, ...] | None = None
    try:
        parse_policy(content, "any.yaml", {"A": "1"})
    except PolicyInvalid as error:
        problems = error.problems

    assert problems is None or problems
    assert all(problem.line >= 1 and problem.column >= 1 for problem in problems or ())


scalars = st.one_of(
    st.sampled_from(["plain", "mtp", "m", "off", "2s", "${A}", "${B}", "${", "http://a:1", "no", "", "<<", "*x", "&x"]),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
)
NAMES = [
    "version", "pools", "models", "routing", "rules", "when", "prefer", "require", "task", "choose", "model", "aliases",
    "access", "keys", "env", "sha256", "name", "endpoints", "url", "speculative", "tokens", "timeouts", "idle",
    "output_tokens", "below", "header", "schema", "tools", "language", "operator_key", "defaults", "plain", "mtp", "m",
]  # fmt: skip
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=25,
)


class TestAnything:
    @settings(max_examples=150, deadline=None)
    @given(st.text(st.characters(codec=None), max_size=60) | st.binary(max_size=60))
    def test_any_text_is_a_policy_or_invalid(self, content: str | bytes) -> None:
        """No text raises anything but `PolicyInvalid`."""
        parse(content)

    @settings(max_examples=150, deadline=None)
    @given(st.text("-:[]{}&*!|>'\"%@`#,? \n\t<ab1.~", max_size=40))
    def test_any_punctuation_is_a_policy_or_invalid(self, content: str) -> None:
        """Texts made of YAML's own signs reach every corner of its grammar."""
        parse(content)

    @settings(max_examples=150, deadline=None)
    @given(trees)
    def test_any_tree_is_a_policy_or_invalid(self, tree: object) -> None:
        """Right names with wrong values at wrong places."""
        parse(_yaml(tree))

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(["pools", "models", "routing", "access", "server", "mtp", "defaults"]), trees)
    def test_any_section_is_a_policy_or_invalid(self, name: str, tree: object) -> None:
        """A good policy with one section replaced by anything."""
        parse(f"{VALID}{name}: {_yaml(tree)}\n")


def _yaml(tree: object) -> str:
    """Flow style with plain scalars, so that they get the types that YAML gives them."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {_yaml(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(_yaml, tree)) + "]"
    if isinstance(tree, str):
        return f'"{tree}"' if "$" in tree else tree
    return json.dumps(tree)
