"""What the Helm chart runs, by the manifests rendered from it: the policy, the gateway, the engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.cli import parser
from gateway.deployments.recipe import STEPS_AHEAD
from gateway.policy.load import load_policy
from gateway.policy.schema import DnsName
from gateway.types import PoolKind
from tests.deploy.chart import RENDERED, digest
from tests.deploy.manifests import FILES, chosen, each, gateway, of_kind, pod, workloads
from tests.deployments.commands import recipe_for

ENVIRONMENT = {"ALPHA_KEY": "alpha-key-of-a-test", "OPERATOR_KEY": "operator-key-of-a-test"}


@pytest.fixture(params=sorted(RENDERED))
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any]:
    """The manifests' name, and the policy that they carry, as the gateway loads it."""
    text = of_kind(request.param, "ConfigMap")["mtp-gateway-policy"]["data"]["policy.yaml"]
    (tmp_path / "policy.yaml").write_text(text, "utf-8")
    return request.param, load_policy(tmp_path / "policy.yaml", ENVIRONMENT)


@each
def test_manifests_are_rendered_from_this_chart(name: str) -> None:
    """The manifests name the digest of the chart as it is now; else run `python -m tests.deploy.chart`."""
    assert FILES[name].splitlines()[0].endswith(f"chart: {digest(RENDERED[name])}")


def test_each_pool_of_the_policy_is_an_engine_set(policy: tuple[str, Any]) -> None:
    """Pools and StatefulSets are the same, of one kind and depth; the endpoints are found, so scaling edits nothing."""
    name, loaded = policy
    engines = of_kind(name, "StatefulSet")

    assert {f"mtp-gateway-{pool}" for pool in loaded.pools} == set(engines)
    for pool in loaded.pools.values():
        full = f"mtp-gateway-{pool.name}"
        (container,) = pod(engines[full])["containers"]
        arguments = " ".join(container["args"])
        (source,) = pool.sources
        assert pool.endpoints == ()
        if isinstance(source.where, DnsName):
            assert source.where == DnsName(f"http://{full}.default.svc:8000", 5.0)
            assert of_kind(name, "Service")[full]["spec"]["clusterIP"] == "None"
        else:
            labels = dict(part.split("=") for part in source.where.selector.split(","))
            assert (source.where.namespace, source.where.port) == ("default", 8000)
            assert chosen(name, labels) == [full]
        assert engines[full]["spec"]["serviceName"] == full
        assert ("--speculative-config" in arguments) == (pool.kind is PoolKind.MTP)
        if pool.speculative:
            assert f'"num_speculative_tokens":{pool.speculative.tokens}' in arguments
        assert container["args"][container["args"].index("--port") + 1] == "8000"


def test_prompts_ahead_of_an_engine_are_one_and_a_half_of_its_steps(policy: tuple[str, Any]) -> None:
    """The policy's limit follows the engines' arguments, which are the only place that knows a step's size."""
    name, loaded = policy
    for pool in loaded.pools.values():
        (container,) = pod(of_kind(name, "StatefulSet")[f"mtp-gateway-{pool.name}"])["containers"]
        step = int(container["args"][container["args"].index("--max-num-batched-tokens") + 1])
        assert pool.limits.prefill == STEPS_AHEAD * step


def test_models_are_served_under_the_policys_names(policy: tuple[str, Any]) -> None:
    """What an engine serves is the name that the policy sends."""
    name, loaded = policy
    for model in loaded.models.values():
        for pool in model.pools:
            (container,) = pod(of_kind(name, "StatefulSet")[f"mtp-gateway-{pool}"])["containers"]
            assert container["args"][container["args"].index("--served-model-name") + 1] == model.name


@pytest.mark.parametrize(("pool", "words"), [("e4b-plain", ["--plain"]), ("e4b-mtp", [])])
def test_engines_run_what_recipe_prints(pool: str, words: list[str]) -> None:
    """The chart's default engines are `gateway recipe E4B --slice 1g.24gb`, on that resource and version."""
    recipe = recipe_for(["E4B", "--slice", "1g.24gb", *words])
    (container,) = pod(of_kind("default", "StatefulSet")[f"mtp-gateway-{pool}"])["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}

    assert container["args"] == recipe.arguments
    assert container["image"] == f"vllm/vllm-openai:v{recipe.wish.version}"
    assert container["resources"]["limits"] == {recipe.wish.place.resource: 1}
    assert dict(recipe.environment).items() <= environment.items()
    assert "CUDA_VISIBLE_DEVICES" not in environment


@each
def test_the_gateway_starts_as_the_program_allows(name: str) -> None:
    """The container's arguments are a command line of ours, on the port that is probed."""
    container = gateway(name)

    assert parser().parse_args(container["args"]).verb is not None
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    assert container["args"][-2:] == ["--port", "8080"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}


def test_a_stopping_gateway_has_time_to_finish(policy: tuple[str, Any]) -> None:
    """OPS-01: the pod is killed only after the pause before the stop signal and the policy's grace."""
    name, loaded = policy
    pause = int(gateway(name)["lifecycle"]["preStop"]["exec"]["command"][1])

    assert pause >= 5
    assert (
        pod(of_kind(name, "Deployment")["mtp-gateway"])["terminationGracePeriodSeconds"] > pause + loaded.server.grace
    )


@each
def test_the_policy_is_mounted_as_a_directory(name: str) -> None:
    """RELOAD-02: the ConfigMap is a directory, whose link swap is seen; an edit restarts no pod."""
    deployment = of_kind(name, "Deployment")["mtp-gateway"]
    (mount,) = [mount for mount in gateway(name)["volumeMounts"] if mount["name"] == "policy"]

    assert "subPath" not in mount
    assert gateway(name)["args"][2] == f"{mount['mountPath']}/policy.yaml"
    assert "annotations" not in deployment["spec"]["template"]["metadata"]


@each
def test_pods_can_do_no_more_than_they_need(name: str) -> None:
    """No pod has a capability or a way to gain one; all but the engines are read-only non-root. Only a gateway that
    finds engines by the API has a token of it, which lets it list and watch pods and no more."""
    roles = [role["rules"] for role in of_kind(name, "Role").values()]
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    assert roles == ([[pods]] if name == "full" else [])
    for found, workload in workloads(name).items():
        spec = pod(workload)
        asks = name == "full" and found == "mtp-gateway"
        assert spec["automountServiceAccountToken"] is asks
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["resources"]["limits"]
            if workload["kind"] == "Deployment":
                assert container["securityContext"]["readOnlyRootFilesystem"] is True, found
                assert spec["securityContext"]["runAsNonRoot"] is True


@each
def test_engines_have_minutes_to_load(name: str) -> None:
    """Half an hour before an engine counts as failed, a volume for its caches, and a grace above its own."""
    for engine in of_kind(name, "StatefulSet").values():
        (container,) = pod(engine)["containers"]
        startup = container["startupProbe"]
        shutdown = int(container["args"][container["args"].index("--shutdown-timeout") + 1])
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        (claim,) = engine["spec"]["volumeClaimTemplates"]
        assert startup["periodSeconds"] * startup["failureThreshold"] == 1800
        assert pod(engine)["terminationGracePeriodSeconds"] > shutdown
        assert mounted[claim["metadata"]["name"]] == "/cache"
        assert engine["spec"]["podManagementPolicy"] == "Parallel"
