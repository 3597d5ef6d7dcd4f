"""The Helm chart as plain manifests: `python -m tests.deploy.chart` renders deploy/kubernetes/*.yaml from it.

Needs the `helm` command, or the PyPI package helm-python-sdk (Helm's own Go code in a wheel). The manifests name the
digest of the chart that they were rendered from, so that a test without Helm finds an edit that was not rendered.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

TOP = Path(__file__).resolve().parents[2]
CHART = TOP / "deploy/helm/mtp-gateway"
KUBERNETES = TOP / "deploy/kubernetes"
RELEASE, NAMESPACE = "mtp-gateway", "default"
RENDERED = {"default": None, "full": KUBERNETES / "full.values.yaml"}
"""Manifests by name, with the values that they take beside the chart's own."""

Document = dict[str, Any]


def digest(values: Path | None) -> str:
    """Of the values and every file of the chart, but for the rules, which the rendered manifests leave out."""
    found = hashlib.sha256()
    files = sorted(path for path in CHART.rglob("*") if path.is_file() and path.parent.name != "files")
    for path in [*files, *([values] if values else [])]:
        found.update(path.relative_to(TOP).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def has_helm() -> bool:
    return shutil.which("helm") is not None or find_spec("helm_python") is not None


def documents(values: dict[str, Any]) -> list[Document]:
    """The chart's manifests with these values, by kind and name. Raises RuntimeError where Helm refuses."""
    if shutil.which("helm"):
        done = subprocess.run(
            ["helm", "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-"],
            input=yaml.safe_dump(values), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr)
        texts = [done.stdout]
    else:
        helm: Any = import_module("helm_python")
        try:
            with helm.Chart.load(str(CHART)) as chart:
                chart.validate_schema(values)
                rendered = chart.render(values, name=RELEASE, namespace=NAMESPACE)
        except helm.HelmError as error:
            raise RuntimeError(str(error)) from error
        texts = [text for name, text in rendered.items() if name.endswith(".yaml")]
    found = [document for text in texts for document in yaml.safe_load_all(text) if document]
    return sorted(found, key=lambda document: (document["kind"], document["metadata"]["name"]))


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable: the policy within its ConfigMap."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def manifests(name: str) -> str:
    """The text of one rendered file."""
    values = RENDERED[name]
    given = yaml.safe_load(values.read_text("utf-8")) if values else {}
    head = f"# Rendered from deploy/helm/mtp-gateway by `python -m tests.deploy.chart`. chart: {digest(values)}\n"
    return head + yaml.dump_all(documents(given), Dumper=_Dumper, sort_keys=False, width=160)


if __name__ == "__main__":
    if not has_helm():
        sys.exit("there is no Helm: install the helm command, or pip install helm-python-sdk")
    for name in RENDERED:
        (KUBERNETES / f"{name}.yaml").write_text(manifests(name), "utf-8")
