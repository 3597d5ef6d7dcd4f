"""The README is under test: what it names exists, what exists is named, and its examples run."""

from __future__ import annotations

import argparse
import ast
import doctest
import json
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.cli import parser
from gateway.explain import main as explain
from gateway.metrics import Metrics
from gateway.policy.load import parse_policy
from gateway.settings import Settings, env_name
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.gateways import gateway
from tests.servers import serve_in_thread

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
NAME = re.compile(r"`(gateway_[a-z_]+)`")


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


def metric_table() -> dict[str, set[str]]:
    """The labels of each metric in the README's table."""
    section = README.partition("## Metrics")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`gateway_.*?) \| ?(.*?) ?\|$", section, re.MULTILINE)
    return {name: set(filter(None, labels.split(", "))) for names, labels in rows for name in NAME.findall(names)}


def test_labels_of_metrics_are_as_the_readme_says() -> None:
    """Names of labels are public, too."""
    registry = CollectorRegistry()
    Metrics(registry)
    told = metric_table()
    labels = {
        name: set(getattr(collector, "_labelnames", ()))
        for collector, names in registry._collector_to_names.items()
        for name in names
        if name in told
    }

    assert labels == {name: told[name] for name in labels}
    assert len(labels) >= 20


def test_metrics_of_rules_and_dashboards_are_in_the_readme() -> None:
    """Who writes an alert of their own finds what ours are made of."""
    files = [ROOT / "deploy/prometheus/rules.yaml", *(ROOT / "deploy/grafana/dashboards").glob("*.json")]
    used = {name for text in files for name in re.findall(r"\bgateway_[a-z_]+", text.read_text("utf-8"))}

    assert {re.sub("_(bucket|count|sum)$", "", name) for name in used} - set(metric_table()) == set()


def test_the_answer_headers_of_the_readme_are_those_of_its_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines below the `curl` say where that request goes under the default policy, and roughly how long it is."""
    (block,) = [block for block in blocks("bash") if block.startswith("curl -i")]
    (body,) = re.findall(r"-d '(.*)'", block)
    told = dict(re.findall(r"# x-gateway-([a-z-]+): (\S+)", block))
    (tmp_path / "request.json").write_text(body, "utf-8")
    policy, request = ROOT / "policies/default.yaml", tmp_path / "request.json"
    explain(argparse.Namespace(policy=str(policy), request=str(request), json=True))
    found = json.loads(capsys.readouterr().out)

    assert told["pool"] == found["decision"]["pool"]
    assert told["reason"] == found["decision"]["reason"]
    assert told["task"] == found["estimate"]["task"]
    assert int(told["predicted-output-tokens"]) == pytest.approx(found["estimate"]["output_tokens"], rel=0.25)


def test_every_policy_is_in_the_readme() -> None:
    """The table of examples is whole."""
    assert [p.name for p in sorted((ROOT / "policies").glob("*.yaml")) if f"`{p.name}`" not in README] == []


def names_in(module: Path) -> set[str]:
    """What a module defines at top level, and the methods of its classes as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if hasattr(part, "name")}
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_every_module_is_on_the_map() -> None:
    """A newcomer finds each package, and each module beside them, in the README's tables."""
    section = README.partition("## How a request travels")[2].partition("\n## ")[0]
    modules = [path.name for path in (ROOT / "gateway").glob("*.py") if not path.name.startswith("__")]
    packages = [f"{path.parent.name}/" for path in (ROOT / "gateway").glob("*/__init__.py")]

    assert [name for name in sorted(modules + packages) if f"`{name}" not in section] == []


def test_the_map_leads_to_names_that_exist() -> None:
    """Each question of the table "where to look" is answered by modules and names of today."""
    section = README.partition("Where to look for one behaviour")[2].partition("**Words.**")[0]
    rows = re.findall(r"^\| (.+\?) \| (.+) \|$", section, re.MULTILINE)
    lost = []
    for question, answer in rows:
        for module, names in re.findall(r"`([a-z_/]+\.py)`((?:,? `[A-Za-z_.]+`)*)", answer):
            known = names_in(ROOT / "gateway" / module)
            lost += [(question, module, name) for name in re.findall(r"`(.+?)`", names) if name not in known]

    assert lost == []
    assert len(rows) >= 15


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_links_and_paths_of_the_readme_lead_somewhere() -> None:
    """Each anchor is a heading of the page, and each file of the repository that it links or names is there."""
    anchors = {slug(heading) for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)}
    links = re.findall(r"\]\((.+?)\)", README)
    named = re.findall(r"\b(?:deploy|policies|tests)/[\w./-]*\w", README)
    files = [link for link in links if not link.startswith("#")] + named

    assert [link for link in links if link.startswith("#") and link[1:] not in anchors] == []
    assert [path for path in files if not (ROOT / path).exists()] == []
    assert len(links) >= 10
    assert len(named) >= 10


def test_the_policies_of_the_readme_load() -> None:
    """What people copy works."""
    for text in blocks("yaml"):
        assert parse_policy(text, "README.md", {}).models


def with_examples() -> list[str]:
    """The modules whose docstrings show an example."""
    paths = [path for path in sorted((ROOT / "gateway").rglob("*.py")) if ">>> " in path.read_text("utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


@pytest.mark.parametrize("module", with_examples())
def test_the_examples_of_docstrings_hold(module: str) -> None:
    """What a docstring shows is what the code gives."""
    result = doctest.testmod(import_module(module))

    assert (result.failed, result.attempted > 0) == (0, True)


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
