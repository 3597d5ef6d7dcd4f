"""`models.NAME.decisions`: off by default, a switch, and told where it cannot work."""

from __future__ import annotations

import pytest

from gateway.policy.describe import describe, warnings
from gateway.policy.load import PolicyInvalid, parse_policy
from gateway.policy.schema import Policy

POLICY = """
version: 1
pools:
  p: {{endpoints: ["http://a:1"]}}
  d: {{endpoints: ["http://b:1"], speculative: {{tokens: 2}}}}
models:
  m: {{pools: [{pools}], architecture: dense{more}}}
{models}"""


def read(more: str = "", pools: str = "p, d", models: str = "") -> Policy:
    return parse_policy(POLICY.format(more=more, pools=pools, models=models), "policy.yaml", {})


def test_it_is_off_unless_said() -> None:
    """An answer that is not decoded is never a surprise."""
    silent, said = read(), read(", decisions: true")

    assert (silent.models["m"].decisions, said.models["m"].decisions) == (False, True)
    assert describe(said)["models"]["m"]["decisions"] is True  # type: ignore[index]


@pytest.mark.parametrize(
    ("more", "models", "message"),
    [
        (", decisions: maybe", "", "policy.yaml:7:54: models.m.decisions: expected true or false, got text"),
        (", decision: true", "", "did you mean `decisions`?"),
        ("", "  auto: {choose: [{model: m}], decisions: true}", "belongs to the models that this one chooses among"),
    ],
)
def test_a_mistake_is_named_with_its_place(more: str, models: str, message: str) -> None:
    """One line that says where and what."""
    with pytest.raises(PolicyInvalid) as caught:
        read(more, models=models)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("more", "pools", "message"),
    [
        (", decisions: true, reasoning: always", "p, d", "always thinks, so that `decisions` never applies"),
        (", decisions: true", "d", "decisions read log probabilities, which all its pools refuse"),
    ],
)
def test_what_can_never_work_is_a_warning(more: str, pools: str, message: str) -> None:
    """Valid, but surely not meant."""
    found = warnings(read(more, pools))

    assert [line for line in found if message in line]
