"""How the Helm chart's parts hang together in a cluster: selectors, scaling, network, monitoring, and Helm itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from gateway.metrics import Metrics
from tests.deploy import chart
from tests.deploy.chart import CHART
from tests.deploy.manifests import FILES, MANIFESTS, chosen, each, gateway, of_kind, pod, workloads


def selectors(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Every object that chooses pods, with what it chooses by."""
    for found in MANIFESTS[name]:
        spec, title = found.get("spec", {}), f"{found['kind']} {found['metadata']['name']}"
        if found["kind"] == "Service":
            yield title, spec["selector"]
        elif found["kind"] in {"PodDisruptionBudget", "Deployment", "StatefulSet"}:
            yield title, spec["selector"]["matchLabels"]


@each
def test_each_selector_chooses_one_workload(name: str) -> None:
    """Services, budgets and workloads choose the pods of exactly one workload, of their own name."""
    for title, labels in selectors(name):
        assert chosen(name, labels) == [title.split()[1]], title


@each
def test_every_part_has_a_disruption_budget(name: str) -> None:
    """A drained node takes one gateway, or one engine of a pool, at a time."""
    parts = set(workloads(name)) - {"mtp-gateway-redis"}

    assert set(of_kind(name, "PodDisruptionBudget")) == parts


@each
def test_gateways_spread_over_nodes(name: str) -> None:
    """Zones and nodes are spread over, and an update takes none away before another is ready."""
    deployment = of_kind(name, "Deployment")["mtp-gateway"]
    keys = [spread["topologyKey"] for spread in pod(deployment)["topologySpreadConstraints"]]

    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


@each
def test_the_gateways_number_follows_load(name: str) -> None:
    """The autoscaler owns the number of gateways, by CPU and, where it is asked for, by requests in flight."""
    scaler = of_kind(name, "HorizontalPodAutoscaler")["mtp-gateway"]["spec"]
    kinds = [metric["type"] for metric in scaler["metrics"]]

    assert "replicas" not in of_kind(name, "Deployment")["mtp-gateway"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "mtp-gateway"
    assert kinds == (["Resource", "Pods"] if name == "full" else ["Resource"])


def test_the_pool_in_front_of_which_requests_wait_grows() -> None:
    """KEDA scales each engine set by what waits for it, up to as many engines as the pool's maxReplicas."""
    engines, scaled = of_kind("full", "StatefulSet"), of_kind("full", "ScaledObject")

    assert set(scaled) == set(engines)
    for name, scaler in scaled.items():
        spec = scaler["spec"]
        (trigger,) = spec["triggers"]
        assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name}
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 4)
        assert "replicas" not in engines[name]["spec"]
        assert f'vllm:num_requests_waiting{{namespace="default",service="{name}"}}' in trigger["metadata"]["query"]
        assert f'pool="{name.removeprefix("mtp-gateway-")}"' in trigger["metadata"]["query"]
        assert trigger["metricType"] == "AverageValue"


def test_metrics_that_scale_exist() -> None:
    """Every metric of ours that an autoscaler reads is one that the gateway has."""
    registry = CollectorRegistry()
    Metrics(registry)
    ours = {family.name for family in registry.collect()}
    read = set(re.findall(r"\bgateway_\w+", FILES["full"]))

    assert read == {"gateway_in_flight", "gateway_prefill_waiting", "gateway_waiting"}
    assert read <= ours


@each
def test_the_network_is_closed(name: str) -> None:
    """Engines and Redis are reached by the gateway alone (and scraped), and no part may call out freely."""
    rules = of_kind(name, "NetworkPolicy")

    for title, rule in rules.items():
        assert rule["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert chosen(name, rule["spec"]["podSelector"]["matchLabels"])
        for opening in [*rule["spec"]["ingress"], *rule["spec"]["egress"]]:
            assert opening["ports"], title
    (to_engines,) = rules["mtp-gateway-vllm"]["spec"]["ingress"]
    pods = [peer["podSelector"]["matchLabels"] for peer in to_engines["from"] if "podSelector" in peer]
    assert [chosen(name, labels) for labels in pods] == [["mtp-gateway"]]
    if "mtp-gateway-redis" in rules:
        (to_redis,) = rules["mtp-gateway-redis"]["spec"]["ingress"]
        assert [chosen(name, peer["podSelector"]["matchLabels"]) for peer in to_redis["from"]] == [["mtp-gateway"]]
        assert rules["mtp-gateway-redis"]["spec"]["egress"] == []


@pytest.mark.skipif(not chart.has_helm(), reason="no Helm here")
def test_the_gateway_may_be_let_out_to_a_collector() -> None:
    """`networkPolicy.egress` is added to what the gateway may reach, and to nobody else's: a collector of traces."""
    way = {"ports": [{"port": 4318}], "to": [{"namespaceSelector": {"matchLabels": {"name": "observability"}}}]}
    made = chart.documents({"networkPolicy": {"egress": [way]}})
    rules = {found["metadata"]["name"]: found["spec"]["egress"] for found in made if found["kind"] == "NetworkPolicy"}

    assert [name for name, ways in rules.items() if way in ways] == ["mtp-gateway-gateway"]


def test_an_existing_redis_and_secret_are_used() -> None:
    """With a Redis and keys of one's own, the chart makes neither, and no secret stands in a manifest."""
    redis = next(one for one in gateway("full")["env"] if one["name"] == "GATEWAY_REDIS_URL")

    assert redis["valueFrom"]["secretKeyRef"] == {"name": "gateway-redis", "key": "url"}
    assert gateway("full")["envFrom"] == [{"secretRef": {"name": "gateway-keys"}}]
    assert of_kind("full", "Secret") == {}
    assert "mtp-gateway-redis" not in workloads("full")
    assert "mtp-gateway-redis" in workloads("default")


def test_monitors_find_their_services() -> None:
    """Each ServiceMonitor chooses services that exist, by a port that they have."""
    found = set()
    for monitor in of_kind("full", "ServiceMonitor").values():
        labels = monitor["spec"]["selector"]["matchLabels"]
        (endpoint,) = monitor["spec"]["endpoints"]
        for name, service in of_kind("full", "Service").items():
            if labels.items() <= service["metadata"]["labels"].items():
                found.add(name)
                assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert found == {"mtp-gateway", "mtp-gateway-e4b-plain", "mtp-gateway-e4b-mtp"}


def test_jobs_have_the_names_that_rules_and_dashboards_ask_for() -> None:
    """`job="gateway"` in an alert or a panel is the job that a ServiceMonitor makes of the gateway's Service.

    Without `jobLabel` the operator names a job after its Service, and `GatewayDown` would watch nothing.
    """
    deploy = CHART.parents[1]
    files = [deploy / "prometheus/rules.yaml", *sorted((deploy / "grafana/dashboards").glob("*.json"))]
    asked = {job for file in files for job in re.findall(r'job=\\?"(\w+)', file.read_text("utf-8"))}
    made = {
        service["metadata"]["labels"].get(monitor["spec"].get("jobLabel"))
        for monitor in of_kind("full", "ServiceMonitor").values()
        for service in of_kind("full", "Service").values()
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    }

    assert asked == {"gateway"}
    assert made == {"gateway", "vllm"}


def test_scraping_leaves_the_gateways_labels_as_they_are() -> None:
    """The operator labels what it scrapes with the port's name as `endpoint`, and would rename the gateway's own label
    of that name to `exported_endpoint`: an alert by endpoint would see one endpoint called `http`."""
    operators = {"job", "instance", "namespace", "service", "pod", "container", "endpoint", "node"}
    registry = CollectorRegistry()
    Metrics(registry)
    ours = {label for collector in registry._collector_to_names for label in getattr(collector, "_labelnames", ())}
    (scraped,) = of_kind("full", "ServiceMonitor")["mtp-gateway-gateway"]["spec"]["endpoints"]
    dropped = {rule["regex"] for rule in scraped["relabelings"] if rule["action"] == "labeldrop"}

    assert ours & operators == {"endpoint"}
    assert dropped == ours & operators


def test_the_rules_of_the_chart_are_the_repositorys() -> None:
    """The chart carries the repository's rules for Prometheus by a link, and not a copy that would grow old."""
    link = CHART / "files/rules.yaml"

    assert link.is_symlink()
    assert link.resolve() == CHART.parents[1] / "prometheus/rules.yaml"


@pytest.mark.skipif(not chart.has_helm(), reason="no Helm here")
def test_the_rules_become_a_resource() -> None:
    """PrometheusRule has every rule as it is written."""
    written = yaml.safe_load((CHART / "files/rules.yaml").read_text("utf-8"))["groups"]
    made = chart.documents({"monitoring": {"enabled": True}})
    (rule,) = [found for found in made if found["kind"] == "PrometheusRule"]

    assert rule["spec"]["groups"] == written


@each
@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="no Kubernetes schemas here")
def test_manifests_are_what_kubernetes_takes(name: str) -> None:
    """Every manifest of Kubernetes' own kinds passes its strict schema, oldest and newest release that is supported."""
    validate: Any = import_module("kubernetes_validate").validate
    known = [found for found in MANIFESTS[name] if not re.match(r"keda|monitoring", found["apiVersion"])]

    assert len(known) > 10
    for found in known:
        for version in ("1.29", "1.33"):
            validate(found, version, strict=True)


@each
@pytest.mark.skipif(not chart.has_helm(), reason="no Helm here")
def test_helm_renders_what_is_committed(name: str) -> None:
    """Helm itself makes the committed manifests of the chart."""
    assert chart.manifests(name) == FILES[name]


@pytest.mark.parametrize(
    ("words", "defaults", "limit"),
    [
        (["--max-num-batched-tokens", "2048"], {}, 3072),
        (["--max-num-batched-tokens=2048"], {}, 3072),
        (["--max-num-batched-tokens", "2k"], {}, None),
        ([], {}, None),
        (["--max-num-batched-tokens", "2048"], {"limits": {"prefill": 0}}, None),
    ],
)
@pytest.mark.skipif(not chart.has_helm(), reason="no Helm here")
def test_the_limit_on_prompts_follows_the_engines_arguments(
    words: list[str], defaults: dict[str, Any], limit: int | None
) -> None:
    """1.5 steps; left alone where the arguments do not tell a step's size, or the policy says a limit for all."""
    made = chart.documents(
        {
            "pools": [
                {
                    "name": "p",
                    "model": "m",
                    "resource": "nvidia.com/gpu",
                    "tag": "v1",
                    "args": ["m", *words],
                    "replicas": 1,
                }
            ],
            "models": {"m": {}, "gemma-4-e4b": None},
            "policy": {"defaults": defaults},
        }
    )
    (text,) = [found["data"]["policy.yaml"] for found in made if found["metadata"]["name"] == "mtp-gateway-policy"]

    assert yaml.safe_load(text)["pools"]["p"].get("limits") == (limit and {"prefill": limit})


@pytest.mark.parametrize(
    "values",
    [
        {"models": {"gemma-4-31b": {"architecture": "dense"}}},
        {"pools": []},
        {
            "pools": [
                {"name": "E4B", "model": "m", "resource": "nvidia.com/gpu", "tag": "v1", "args": ["m"], "replicas": 1}
            ]
        },
        {"replicas": 0},
        {"discovery": {"by": "guessing"}},
    ],
)
@pytest.mark.skipif(not chart.has_helm(), reason="no Helm here")
def test_values_that_cannot_work_are_refused(values: dict[str, Any]) -> None:
    """A model that no pool serves, no pools, a name that Kubernetes refuses, no gateways: Helm says so."""
    with pytest.raises(RuntimeError):
        chart.documents(values)
