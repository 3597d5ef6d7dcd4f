"""The rendered manifests, and small questions to them, for the chart's tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.deploy.chart import KUBERNETES, RENDERED, Document

FILES = {name: (KUBERNETES / f"{name}.yaml").read_text("utf-8") for name in RENDERED}
MANIFESTS: dict[str, list[Document]] = {name: list(yaml.safe_load_all(text)) for name, text in FILES.items()}
each = pytest.mark.parametrize("name", sorted(RENDERED))


def of_kind(name: str, kind: str) -> dict[str, Document]:
    return {found["metadata"]["name"]: found for found in MANIFESTS[name] if found["kind"] == kind}


def workloads(name: str) -> dict[str, Document]:
    return {**of_kind(name, "Deployment"), **of_kind(name, "StatefulSet")}


def pod(workload: Document) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def chosen(name: str, labels: Mapping[str, str]) -> list[str]:
    """Workloads whose pods these labels choose."""
    return [
        found
        for found, workload in workloads(name).items()
        if labels.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
    ]


def gateway(name: str) -> dict[str, Any]:
    (container,) = pod(of_kind(name, "Deployment")["mtp-gateway"])["containers"]
    found: dict[str, Any] = container
    return found
