"""The operator's notes name things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.cli import parser
from gateway.policy.load import parse_policy

TOP = Path(__file__).resolve().parents[2]
NOTES = (TOP / "deploy/OPERATIONS.md").read_text("utf-8")


def test_files_that_the_notes_name_exist() -> None:
    """Every path of the repository in the notes is there."""
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", NOTES))

    assert len(named) > 5
    assert [path for path in sorted(named) if not (TOP / path).exists()] == []


def test_alerts_that_the_notes_name_exist() -> None:
    """The notes' table has a row for every alert of the rules, and for no other."""
    rules = yaml.safe_load((TOP / "deploy/prometheus/rules.yaml").read_text("utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    named = set(re.findall(r"`(Gateway[A-Z]\w+)`", NOTES))

    assert named == alerts


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"`gateway ([a-z]+)", NOTES))))
def test_commands_that_the_notes_name_exist(verb: str) -> None:
    """Every verb in the notes is one of the program's."""
    with pytest.raises(SystemExit) as caught:
        parser().parse_args([verb, "--help"])
    assert caught.value.code == 0


def test_values_that_the_notes_name_exist() -> None:
    """The chart's values in the notes are the chart's."""
    values = (TOP / "deploy/helm/mtp-gateway/values.yaml").read_text("utf-8")

    assert all(
        name in values for name in ("maxReplicas", "preStopSeconds", "inFlight", "draftTokens", "downloads", "by: dns")
    )


def test_the_policy_in_the_notes_is_one() -> None:
    """What people copy has sources that the gateway takes."""
    (text,) = re.findall(r"```yaml\n(.*?)```", NOTES, re.DOTALL)
    policy = parse_policy(text + "models: {m: {pools: [e4b-plain, e4b-mtp]}}\n", "notes", {})

    assert [str(pool.sources[0].where) for pool in policy.pools.values()] == [
        "http://vllm-plain.models.svc:8000",
        "pods app=vllm,mtp=yes in models",
    ]


def test_what_one_replica_carries_is_what_the_readme_measured() -> None:
    """Both documents tell the same run: CPU of a token, and of a request, and the late first tokens."""
    readme = (TOP / "README.md").read_text("utf-8")
    (row,) = re.findall(r"^\| \*\*this gateway\*\* \|.*$", readme, re.MULTILINE)
    per_token = sorted(map(int, re.findall(r"(\d+) us", row)))
    per_thousand = [float(number) for number in row.split("|")[2].split("/")]
    (late,) = re.findall(r"p99 added TTFT (\d+) ms at 200", readme)

    assert f"{per_token[0]} to {per_token[-1]} us each" in NOTES
    assert f"{late} ms at p99" in NOTES
    (low, high) = re.findall(r"\| ([\d,]+) to ([\d,]+) requests a CPU second", NOTES)[0]
    assert [int(low.replace(",", "")), int(high.replace(",", ""))] == [
        round(1000 / max(per_thousand), -1),
        round(1000 / min(per_thousand), -1),
    ]
