"""A recipe as text: a shell script, a Compose service, Kubernetes manifests, or an entry for the Helm chart's values.

The memory table and the notes come first, as comments, so that the text can be saved as it is printed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from gateway.deployments.memory import Memory
from gateway.deployments.recipe import Recipe

CACHE = "/cache"
"""Where an engine keeps what it downloads and compiles. Without it, a restart takes minutes longer."""

CACHE_ENVIRONMENT: Mapping[str, str] = {
    "HF_HOME": f"{CACHE}/huggingface",
    "VLLM_CACHE_ROOT": f"{CACHE}/vllm",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "VLLM_NO_USAGE_STATS": "1",
}
_STOP_SECONDS = 60
"""Longer than --shutdown-timeout, so that running answers can finish."""


def render(recipe: Recipe, form: str) -> str:
    """The recipe's text in one of `FORMS`. Raises KeyError for another form."""
    return FORMS[form](recipe)


def memory_table(found: Memory) -> list[str]:
    """The memory's items and their sum, as lines of text."""
    lines = [f"{row.what:<10}{row.gib:7.2f} GiB  {row.how}" for row in found.rows]
    spare = found.budget - found.total
    verdict = f"{spare:.2f} GiB spare for more cache" if found.fits else f"{-spare:.2f} GiB too much"
    return [*lines, f"{'sum':<10}{found.total:7.2f} GiB  of {found.budget:.2f} GiB that vLLM may use: {verdict}"]


def engine_name(recipe: Recipe) -> str:
    """A name for the service or the pool, such as `vllm-gemma-4-e4b-mtp`."""
    kind = "mtp" if recipe.mtp else "plain"
    return "vllm-" + recipe.wish.served_name.lower().replace("_", "-").replace(".", "-").replace("/", "-") + f"-{kind}"


def _head(recipe: Recipe) -> str:
    wish = recipe.wish
    kind = f"MTP, k={wish.load.draft_tokens}" if recipe.mtp else "plain"
    lines = [f"{wish.model.name}, {kind}, on {wish.place.name}, vLLM {wish.version}", *memory_table(recipe.memory)]
    lines += [f"note: {note}" for note in recipe.notes]
    return "".join(f"# {' '.join(line.split()) if line.startswith('note') else line}\n" for line in lines)


def _shell(recipe: Recipe) -> str:
    words = [shlex.quote(recipe.target)]
    words += [" ".join((flag[0], *map(shlex.quote, flag[1:]))) for flag in recipe.flags]
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in recipe.environment)
    return "#!/bin/sh\n" + _head(recipe) + exports + "exec vllm serve " + " \\\n  ".join(words) + "\n"


def _image(recipe: Recipe) -> str:
    return f"vllm/vllm-openai:v{recipe.wish.version}"


def _compose(recipe: Recipe) -> str:
    port = recipe.wish.port
    probe = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/health', timeout=4)"
    service = {
        "image": _image(recipe),
        "entrypoint": ["vllm", "serve"],
        "command": recipe.arguments,
        "environment": {**CACHE_ENVIRONMENT, **dict(recipe.environment)},
        "volumes": [f"vllm-cache:{CACHE}"],
        "shm_size": "4g",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "restart": "unless-stopped",
        "stop_grace_period": f"{_STOP_SECONDS}s",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", probe],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "20m",
        },
        "deploy": {
            "resources": {
                "reservations": {
                    "devices": [{"driver": "nvidia", "device_ids": ["${SLICE:-0:0}"], "capabilities": ["gpu"]}]
                }
            }
        },
    }
    return _head(recipe) + _yaml({"services": {engine_name(recipe): service}, "volumes": {"vllm-cache": {}}})


def _kubernetes(recipe: Recipe) -> str:
    name, port = engine_name(recipe), recipe.wish.port
    labels = {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": name}
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    environment = {**CACHE_ENVIRONMENT, **dict(recipe.environment)}
    container = {
        "name": "vllm",
        "image": _image(recipe),
        "command": ["vllm", "serve"],
        "args": recipe.arguments,
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "ports": [{"name": "http", "containerPort": port}],
        "resources": {"limits": {recipe.wish.place.resource: 1}},
        "startupProbe": {**probe, "failureThreshold": 120},
        "readinessProbe": probe,
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 5},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "cache", "mountPath": CACHE}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "terminationGracePeriodSeconds": _STOP_SECONDS,
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}],
    }
    claim = {
        "metadata": {"name": "cache"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"clusterIP": "None", "selector": labels, "ports": [{"name": "http", "port": port}]},
    }
    engines = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "serviceName": name,
            "replicas": 1,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [claim],
        },
    }
    return _head(recipe) + "---\n".join(map(_yaml, (service, engines)))


def _helm(recipe: Recipe) -> str:
    return _head(recipe) + _yaml({"pools": [pool_values(recipe)]})


def pool_values(recipe: Recipe) -> dict[str, Any]:
    """An entry of `pools` in the chart's values."""
    wish = recipe.wish
    values: dict[str, Any] = {
        "name": engine_name(recipe).removeprefix("vllm-gemma-4-"),
        "model": wish.served_name,
        "resource": wish.place.resource,
        "tag": f"v{wish.version}",
        "profile": wish.place.profile,
    }
    if recipe.mtp:
        values["draftTokens"] = wish.load.draft_tokens
    return {**values, "environment": dict(recipe.environment), "args": recipe.arguments}


def _yaml(document: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=200, allow_unicode=True)
    return text


FORMS: Mapping[str, Callable[[Recipe], str]] = {
    "shell": _shell,
    "compose": _compose,
    "kubernetes": _kubernetes,
    "helm": _helm,
}
