"""The README is under test: what it names exists, what exists is named, and its examples run."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.cli import parser
from gateway.metrics import Metrics
from gateway.policy.load import parse_policy
from gateway.settings import Settings, env_name
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.gateways import gateway
from tests.servers import serve_in_thread

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_every_command_is_in_the_readme() -> None:
    """A verb that nobody can find does not exist."""
    actions = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))

    missing = [verb for action in actions for verb in action.choices if f"`gateway {verb}`" not in README]
    assert missing == []


def test_every_setting_is_in_the_readme() -> None:
    """Each option stands with its environment variable."""
    for row in fields(Settings):
        assert f"`--{row.name.replace('_', '-')}`" in README
        assert f"`{env_name(row.name)}`" in README


def test_every_metric_is_in_the_readme_and_the_other_way_round() -> None:
    """Names of metrics are public."""
    registry = CollectorRegistry()
    Metrics(registry)
    exported = {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}
    section = README.partition("## Metrics")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(gateway_[a-z_]+)`", section))

    assert exported - named == set()


def test_every_policy_is_in_the_readme() -> None:
    """The table of examples is whole."""
    assert [p.name for p in sorted((ROOT / "policies").glob("*.yaml")) if f"`{p.name}`" not in README] == []


def test_the_policies_of_the_readme_load() -> None:
    """What people copy works."""
    for text in blocks("yaml"):
        assert parse_policy(text, "README.md", {}).models


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.split("messages")[0][-40:])
async def test_the_python_examples_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The examples, as they stand but for the port, with the real SDK."""
    import asyncio

    settings = SimSettings(served_names=("gemma-4-e4b",), time_scale=200)
    with serve_in_thread(create_app(settings)) as back_end:
        policy = f'version: 1\npools: {{p: {{endpoints: ["{back_end}"]}}}}\nmodels: {{gemma-4-e4b: {{pools: [p]}}}}'
        async with gateway(policy) as running:
            port = running.url.rpartition(":")[2]
            await asyncio.to_thread(exec, code.replace("8080", port) + "\nclient.close()", {})

    assert len(capsys.readouterr().out.strip()) > 3
