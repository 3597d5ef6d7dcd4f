"""Recipes as text."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.deployments.recipe import Recipe
from gateway.deployments.render import FORMS, render
from tests.deployments.commands import recipe_for

MTP = recipe_for(["E4B", "--slice", "1g.24gb", "--k", "2"])


def parsed(recipe: Recipe, form: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render(recipe, form)))


@pytest.mark.parametrize("form", FORMS)
def test_the_sum_is_shown(form: str) -> None:
    """Every form begins with the memory table and the notes, as comments."""
    head = [line.removeprefix("# ") for line in render(MTP, form).splitlines() if line.startswith("# ")]
    rows = MTP.memory.rows

    assert [line.startswith(row.what) for line, row in zip(head[1:], rows, strict=False)] == [True] * len(rows)
    assert f"{MTP.memory.total:.2f} GiB" in head[1 + len(rows)]
    assert all(any(note in line for line in head) for note in MTP.notes)


def test_the_shell_script_runs_the_recipe(tmp_path: Path) -> None:
    """A shell that runs the script gives vLLM exactly the recipe's arguments and environment."""
    told = tmp_path / "told"
    stand_in = tmp_path / "vllm"
    stand_in.write_text(f"""#!/bin/sh
env > {told}.env
for word; do printf '%s\\n' "$word"; done > {told}
""")
    stand_in.chmod(0o755)
    subprocess.run(
        ["/bin/sh"], input=render(MTP, "shell"), env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, text=True, check=True
    )

    assert told.read_text("utf-8").splitlines() == ["serve", *MTP.arguments]
    environment = dict(line.split("=", 1) for line in Path(f"{told}.env").read_text("utf-8").splitlines())
    assert dict(MTP.environment).items() <= environment.items()


def test_the_compose_service_is_the_recipe() -> None:
    """The service runs the arguments on one device, and counts as starting while the model loads."""
    (document,) = parsed(MTP, "compose")
    (service,) = document["services"].values()

    assert service["entrypoint"] == ["vllm", "serve"]
    assert service["command"] == MTP.arguments
    assert service["image"] == "vllm/vllm-openai:v0.33.0"
    assert service["healthcheck"]["start_period"] == "20m"
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert len(device["device_ids"]) == 1
    assert service["volumes"] == ["vllm-cache:/cache"]
    assert "vllm-cache" in document["volumes"]


def test_the_manifests_are_the_recipe() -> None:
    """A StatefulSet of one slice a pod, found through a headless service, with minutes to load its model."""
    service, engines = parsed(MTP, "kubernetes")
    pod = engines["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert container["args"] == MTP.arguments
    assert container["resources"]["limits"] == {"nvidia.com/mig-1g.24gb": 1}
    assert service["spec"]["clusterIP"] == "None"
    assert engines["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == engines["spec"]["selector"]["matchLabels"]
    assert engines["spec"]["selector"]["matchLabels"] == engines["spec"]["template"]["metadata"]["labels"]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1200
    shutdown = int(MTP.arguments[MTP.arguments.index("--shutdown-timeout") + 1])
    assert pod["terminationGracePeriodSeconds"] > shutdown
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {"shm"} | {claim["metadata"]["name"] for claim in engines["spec"]["volumeClaimTemplates"]}


def test_the_chart_entry_is_the_recipe() -> None:
    """An entry for the chart's pools carries arguments, resource and draft tokens."""
    (document,) = parsed(MTP, "helm")
    (pool,) = document["pools"]

    assert pool["args"] == MTP.arguments
    assert pool["name"] == "e4b-mtp"
    assert pool["draftTokens"] == 2
    (plain,) = parsed(recipe_for(["E4B", "--slice", "1g.24gb", "--plain"]), "helm")[0]["pools"]
    assert "draftTokens" not in plain


def test_json_survives_the_shell() -> None:
    """The speculative configuration is one word of JSON in every form."""
    for form in FORMS:
        text = render(MTP, form)
        assert json.loads(text[text.index('{"method"') : text.index("}'", text.index('{"method"')) + 1])
