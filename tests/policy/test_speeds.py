"""Profiles that pools name: built-in hardware, or a file beside the policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.load import PolicyInvalid, load_policy
from gateway.routing.router import Router

PROFILE = """
hardware:
  ours:
    source: invented
    acceptance: {prose: [0.5, 0.2], math: [0.6], code: [0.7], json: [0.3]}
    models:
      e4b: {decode: {base: 10, position: 1}, prefill: {fixed: 20, stall: 5, tokens_per_second: 9000}}
"""


def policy(folder: Path, profile: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(
        "version: 1\n"
        f'pools: {{p: {{endpoints: ["http://127.0.0.1:1"], profile: {profile}}}}}\n'
        "models: {anything: {pools: [p], architecture: moe}}\n",
        "utf-8",
    )
    return path


def test_a_pool_takes_its_speed_from_a_file_beside_the_policy(tmp_path: Path) -> None:
    """A file about one model describes the pool's model, whatever its name."""
    (tmp_path / "mine.yaml").write_text(PROFILE, "utf-8")
    loaded = load_policy(policy(tmp_path, "mine.yaml"), {})
    router = Router(loaded)

    assert [curve.profile.name for curve in router.state.curves] == ["ours/e4b"]


def test_a_reload_without_other_speeds_keeps_what_was_learned(tmp_path: Path) -> None:
    """The same file gives the same profile, and so the same curve."""
    (tmp_path / "mine.yaml").write_text(PROFILE, "utf-8")
    path = policy(tmp_path, "mine.yaml")
    router = Router(load_policy(path, {}))
    before = list(router.state.curves)
    Router(load_policy(path, {}), router.state)

    assert list(router.state.curves) == before


@pytest.mark.parametrize(
    ("profile", "content", "message"),
    [
        ("mine.yaml", None, "no such profile file beside the policy"),
        ("mine.yaml", "hardware: 3", "profile file: "),
        ("mine.yaml", "\xff\xfe", "not UTF-8"),
        ("mine.yaml", PROFILE + PROFILE.replace("hardware:\n  ours", "  more"), "keep one in the file"),
        ("h20", None, "did you mean `h200`?"),
        ("h200/9b", None, "no model '9b'"),
    ],
)
def test_a_wrong_profile_is_an_error_of_the_policy(
    tmp_path: Path, profile: str, content: str | None, message: str
) -> None:
    """It has its line and column, and no policy is loaded that could not be used."""
    if content is not None:
        (tmp_path / "mine.yaml").write_bytes(content.encode("latin-1"))

    with pytest.raises(PolicyInvalid) as caught:
        load_policy(policy(tmp_path, profile), {})
    [problem] = caught.value.problems

    assert (problem.line, problem.path) == (2, "pools.p.profile")
    assert message in problem.message
