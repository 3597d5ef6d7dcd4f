"""The rules for Prometheus: by its own tools, by their tests, and against what the gateway really exports."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.observed import RULES, exposed, labels_of, loaded, metrics_of, tool

FOLDER = RULES.parent
TESTS = sorted((FOLDER / "tests").glob("*.yaml"))
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
ALL = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in ALL if "alert" in rule]


def promtool(*words: str) -> None:
    done = subprocess.run([tool("promtool"), *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_configurations_are_valid() -> None:
    """`promtool check`, as an operator would run it."""
    promtool("check", "rules", str(RULES))
    for config in FOLDER.glob("*.yml"):
        promtool("check", "config", str(config))
        assert yaml.safe_load(config.read_text("utf-8"))["rule_files"] == [RULES.name]


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should(file: Path) -> None:
    """`promtool test rules`: series in, alerts out."""
    promtool("test", "rules", str(file))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    """Who is woken at night needs all three; and each alert is seen to fire in a test."""
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "action"}
    assert all(len(text) > 20 for text in rule["annotations"].values())
    firing = f'ALERTS{{alertname="{rule["alert"]}", alertstate="firing", '
    assert any(firing in file.read_text("utf-8") for file in TESTS)


def test_the_checklist_is_complete() -> None:
    """The four figures, saturation, errors, endpoints, policy, Redis, the estimator and first tokens."""
    names = {rule["alert"] for rule in ALERTS}

    assert names >= {
        "GatewayMtpAcceptanceLow",
        "GatewayMtpPositionDecay",
        "GatewayMtpLengthOutOfRange",
        "GatewayMtpGainLow",
        "GatewayPoolSaturated",
        "GatewayErrorRatioHigh",
        "GatewayEndpointDown",
        "GatewayPolicyReloadFailed",
        "GatewayStateLost",
        "GatewayEstimatorDrift",
        "GatewayTtftBurnsFast",
    }


async def test_rules_use_what_the_gateway_exports(tmp_path: Path) -> None:
    """A metric or a label that does not exist would make an alert that never fires."""
    async with loaded(tmp_path) as url, httpx.AsyncClient(trust_env=False) as client:
        page = ""
        while "gateway_mtp_acceptance_rate{" not in page:
            page = (await client.get(f"{url}/metrics")).text
    known = exposed(page)
    recorded = {rule["record"] for rule in ALL if "record" in rule}

    for rule in ALL:
        assert metrics_of(rule["expr"]) - recorded - {"up"} <= set(known), rule
        for metric, label in labels_of(rule["expr"]):
            if known.get(metric):
                assert label in known[metric], (metric, label)
