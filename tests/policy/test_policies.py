"""Every policy that ships is valid and says what it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.policy.describe import warnings
from gateway.policy.load import load_policy
from gateway.types import PoolKind

POLICIES = Path(__file__).parent.parent.parent / "policies"
ENV = {"INTERACTIVE_KEY": "one", "BATCH_KEY": "two"}
NAMES = sorted(path.name for path in POLICIES.glob("*.yaml"))


def test_the_promised_policies_ship() -> None:
    """The default and five examples."""
    promised = {"default", "static-threshold", "latency", "moe-aware", "agents-with-tools", "batch-at-night"}

    assert promised <= {name.removesuffix(".yaml") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_policy_loads_without_warnings(name: str) -> None:
    """Each loads as it is, has both kinds of pool for each model, and begins with its purpose."""
    policy = load_policy(POLICIES / name, ENV)

    assert warnings(policy) == []
    for model in policy.models.values():
        assert model.choose or {policy.pools[pool].kind for pool in model.pools} == set(PoolKind)
    assert (POLICIES / name).read_text("utf-8").startswith(("# Purpose: ", "# The policy that"))


def test_the_default_policy_says_the_defaults() -> None:
    """What default.yaml shows as a default is the default: without these lines only rules change."""
    full = load_policy(POLICIES / "default.yaml", ENV)

    assert full.defaults == type(full.defaults)()
    assert full.server == type(full.server)()
    assert replace(full.routing, rules=()) == type(full.routing)()
    assert full.mtp == type(full.mtp)()
    assert full.logging == type(full.logging)()
