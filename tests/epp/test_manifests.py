"""What `deploy/epp` ships fits together, and fits the engines of `deploy/kubernetes` and the command."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import parser
from gateway.policy.load import load_policy, parse_policy
from gateway.policy.schema import Policy

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "epp/kubernetes.yaml").read_text("utf-8")))
ENGINES: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes/default.yaml").read_text("utf-8")))
EXT_PROC = "envoy.filters.http.ext_proc"


def one(kind: str, among: list[dict[str, Any]] = MANIFESTS) -> dict[str, Any]:
    (found,) = [document for document in among if document["kind"] == kind]
    return found


def policy() -> Policy:
    return parse_policy(one("ConfigMap")["data"]["policy.yaml"], "policy.yaml", {})


def envoy() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "epp/envoy.yaml").read_text("utf-8"))
    return found


def envoy_filter() -> dict[str, Any]:
    (chain,) = envoy()["static_resources"]["listeners"][0]["filter_chains"]
    filters = chain["filters"][0]["typed_config"]["http_filters"]
    (found,) = [row["typed_config"] for row in filters if row["name"] == EXT_PROC]
    return dict(found)


def test_the_pool_selects_the_engines_that_the_policy_names() -> None:
    """An endpoint that the InferencePool does not have could not be picked."""
    pool = one("InferencePool")["spec"]
    wanted = pool["selector"]["matchLabels"].items()
    sets = [found for found in ENGINES if found["kind"] == "StatefulSet"]
    chosen = [found for found in sets if wanted <= found["spec"]["template"]["metadata"]["labels"].items()]
    ports = {
        row["containerPort"] for found in chosen for row in found["spec"]["template"]["spec"]["containers"][0]["ports"]
    }
    services = {f"http://{found['spec']['serviceName']}.default.svc:8000" for found in chosen}

    assert ports == {row["number"] for row in pool["targetPorts"]}
    assert services == {
        getattr(source.where, "url", None) for found in policy().pools.values() for source in found.sources
    }


def test_the_pool_asks_this_picker() -> None:
    """Name and port of the reference are the Service's, whose target is the container's gRPC port."""
    reference, service = one("InferencePool")["spec"]["endpointPickerRef"], one("Service")
    container = one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    (port,) = [row for row in service["spec"]["ports"] if row["port"] == reference["port"]["number"]]
    target = {row["name"]: row["containerPort"] for row in container["ports"]}[port["targetPort"]]
    args = parser().parse_args(container["args"])

    assert reference["name"] == service["metadata"]["name"]
    assert args.port == target
    assert service["spec"]["selector"].items() <= one("Deployment")["spec"]["template"]["metadata"]["labels"].items()


def test_the_route_leads_to_the_pool() -> None:
    """And to the gateway that each data plane's file makes."""
    route = one("HTTPRoute")["spec"]
    (reference,) = route["rules"][0]["backendRefs"]
    assert reference["name"] == one("InferencePool")["metadata"]["name"]
    for name in ("envoy-gateway", "gke", "istio"):
        documents = list(yaml.safe_load_all((DEPLOY / f"epp/{name}.yaml").read_text("utf-8")))
        assert one("Gateway", documents)["metadata"]["name"] == route["parentRefs"][0]["name"]


def test_nobody_waits_longer_for_a_place_than_the_data_plane_waits_for_the_picker() -> None:
    """Envoy would answer in the picker's stead, and the place would go to nobody."""
    timeout = float(envoy_filter()["message_timeout"].removesuffix("s"))
    local = load_policy(DEPLOY / "epp/local.yaml", {})
    assert all(pool.limits.queue_wait < timeout for pool in local.pools.values())
    grace = one("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert policy().server.grace + 15 < grace


def test_envoys_back_ends_are_the_local_policys() -> None:
    """`override_host` takes only endpoints that the cluster has."""
    clusters = {row["name"]: row for row in envoy()["static_resources"]["clusters"]}

    def addresses(name: str) -> set[str]:
        rows = clusters[name]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        found = [row["endpoint"]["address"]["socket_address"] for row in rows]
        return {f"http://{row['address']}:{row['port_value']}" for row in found}

    local = load_policy(DEPLOY / "epp/local.yaml", {})
    assert addresses("engines") == {row.url for pool in local.pools.values() for row in pool.endpoints}
    assert addresses("picker") == {"http://127.0.0.1:9002"}
    assert envoy_filter()["failure_mode_allow"] is False


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="no Kubernetes schemas here")
def test_manifests_are_what_kubernetes_takes() -> None:
    """Every manifest of Kubernetes' own kinds passes its strict schema, oldest and newest release that is supported."""
    validate: Any = import_module("kubernetes_validate").validate
    known = [found for found in MANIFESTS if re.match(r"v1|apps|policy|networking\.k8s", found["apiVersion"])]
    assert len(known) > 5
    for found in known:
        for version in ("1.29", "1.33"):
            validate(found, version, strict=True)
