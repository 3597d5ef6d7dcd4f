"""What an engine's version means for its pool."""

from __future__ import annotations

import pytest

from gateway.policy.engines import disagreement, faults, release
from gateway.policy.load import PolicyInvalid, parse_policy
from gateway.policy.schema import Pool

TEXT = """
version: 1
pools:
  plain: {endpoints: ["http://a:1"]%s}
  mtp: {endpoints: ["http://b:1"], speculative: {method: mtp, tokens: 2}%s}
models: {m: {pools: [plain, mtp]}}
"""
OPEN = ", refuses: [min_p, logit_bias]"


def pools(plain: str = "", mtp: str = "") -> dict[str, Pool]:
    return dict(parse_policy(TEXT % (plain, mtp), "p.yaml", {}).pools)


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.33.0", (0, 33, 0)),
        ("v0.30", (0, 30)),
        ("0.32.1+cpu", (0, 32, 1)),
        ("0.34.0rc1", (0, 34, 0)),
        ("0.1.dev9876+gabcdef", None),
        ("nightly", None),
        ("", None),
    ],
)
def test_a_release_is_told_from_a_development_build(version: str, numbers: tuple[int, ...] | None) -> None:
    """The numbers of builds between releases mean nothing."""
    assert release(version) == numbers


def test_json_after_thinking_is_kept_from_old_engines_that_draft() -> None:
    """SPEC-02: an engine before 0.33 breaks it; by default the pool refuses it, else the operator is told."""
    found = pools(OPEN, OPEN)

    (fault,) = faults(found["mtp"], "0.32.1")
    assert "add structured_thinking" in fault
    assert not faults(found["mtp"], "0.33.0")
    assert not faults(found["mtp"], None)
    assert not faults(found["plain"], "0.32.1")
    assert not faults(pools()["mtp"], "0.32.1")


@pytest.mark.parametrize(
    ("stated", "told", "differ"),
    [("0.30", "0.30.2", False), ("0.30", "0.31.0", True), ("0.30.1", "0.30.2", True), ("0.30", "0.1.dev1+g1", False)],
)
def test_a_version_that_is_not_the_engines_is_said(stated: str, told: str, differ: bool) -> None:
    """As far as the policy states it; what is unknown agrees with anything."""
    found = pools(mtp=f', engine: {{vllm: "{stated}"}}')

    assert (disagreement(found["mtp"], told) is not None) is differ
    assert disagreement(found["mtp"], None) is None
    assert disagreement(found["plain"], told) is None


@pytest.mark.parametrize("value", ["0.30", '"latest"', '"0"'])
def test_what_is_no_version_is_an_error(value: str) -> None:
    """YAML-01: also 0.30 without quotes, which is the number 0.3."""
    with pytest.raises(PolicyInvalid, match="quotes"):
        pools(mtp=f", engine: {{vllm: {value}}}")
