"""The Compose profiles with real engines, and what they run; the default is in test_compose.py."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.deployments.render import render
from gateway.policy.load import load_policy
from gateway.types import PoolKind
from tests.deployments.commands import recipe_for

TOP = Path(__file__).resolve().parents[2]
DOCUMENT: dict[str, Any] = yaml.safe_load((TOP / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
SPLITS = ("1-3", "2-2", "3-1")
ENGINES = sorted(name for name, service in SERVICES.items() if service["image"].startswith("vllm/"))
GATEWAYS = ("gateway-g4", "gateway-spark")
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+):-([^}]*)\}")


def in_profile(name: str) -> set[str]:
    return {service for service, about in SERVICES.items() if name in about.get("profiles", ())}


def flags(script: Path) -> list[str]:
    """The words after `vllm serve` of a recipe's script."""
    text = script.read_text("utf-8").replace("\\\n", " ")
    return text.partition("exec vllm serve ")[2].split()


def test_each_profile_has_its_services() -> None:
    """A profile brings what it needs and nothing of another."""
    assert in_profile("g4") == {"gateway-g4", "vllm-0", "vllm-1", "vllm-2", "vllm-3", "prometheus-gpu"}
    assert in_profile("spark") == {"gateway-spark", "vllm-spark-plain", "vllm-spark-mtp", "prometheus-gpu"}
    assert in_profile("monitoring") == {"grafana"}


def test_a_gateway_needs_nothing_of_the_default() -> None:
    """`up gateway-g4` starts its own engines and Redis, and no simulated back end."""
    for name in GATEWAYS:
        (profile,) = SERVICES[name]["profiles"]
        assert set(SERVICES[name]["depends_on"]) == (in_profile(profile) & set(ENGINES)) | {"redis"}
        assert {wait["condition"] for wait in SERVICES[name]["depends_on"].values()} == {"service_healthy"}


@pytest.mark.parametrize("name", sorted(set(SERVICES) - set(ENGINES)))
def test_services_but_engines_can_do_no_more_than_they_need(name: str) -> None:
    """Whatever the profile: a numeric non-root user, a read-only root, no capabilities, loopback ports."""
    service = SERVICES[name]

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+:-\d+\}:\d+", port) for port in service.get("ports", []))


@pytest.mark.parametrize("name", ENGINES)
def test_engines_are_confined(name: str) -> None:
    """An engine has no capability, publishes nothing, and does not reach Redis or the published network."""
    service = SERVICES[name]

    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "ports" not in service
    assert set(service["networks"]) == {"backends", "downloads"}


@pytest.mark.parametrize("name", ENGINES)
def test_engines_count_as_starting_while_they_load(name: str) -> None:
    """The healthcheck allows half an hour for the model to load, on the port that the engine is told."""
    check = SERVICES[name]["healthcheck"]

    assert check["start_period"] == "30m"
    assert int(check["timeout"].rstrip("s")) < int(check["interval"].rstrip("s"))
    assert "127.0.0.1:8000/health" in check["test"][-1]


@pytest.mark.parametrize("name", ENGINES)
def test_engines_keep_what_they_download_and_compile(name: str) -> None:
    """Every cache lies on the named volume, so that a restart takes seconds and not minutes."""
    environment = SERVICES[name]["environment"]
    caches = {"HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}

    assert "vllm-cache:/cache" in SERVICES[name]["volumes"]
    assert all(environment[variable].startswith("/cache/") for variable in caches)


def test_each_slice_is_one_container() -> None:
    """Four engines, four devices, one each; and no container chooses among several by CUDA_VISIBLE_DEVICES."""
    devices = []
    for number in range(4):
        service = SERVICES[f"vllm-{number}"]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        devices += device["device_ids"]
        assert service["environment"]["SLICE"] == str(number)
        assert "CUDA_VISIBLE_DEVICES" not in service["environment"]
    assert devices == [f"${{G4_SLICE_{number}:-0:{number}}}" for number in range(4)]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("g4/plain.sh", "--slice 1g.24gb --plain"),
        ("g4/mtp.sh", "--slice 1g.24gb"),
        ("spark/plain.sh", "--slice dgx-spark --share 0.4 --concurrency 16 --plain"),
        ("spark/mtp.sh", "--slice dgx-spark --share 0.4 --concurrency 16 --k 3"),
    ],
)
def test_scripts_are_what_recipe_prints(script: str, words: str) -> None:
    """The engines' scripts are `gateway recipe E4B` with these options, and nobody edited them since."""
    printed = render(recipe_for(["E4B", *words.split()]), "shell")

    assert (TOP / "deploy" / script).read_text("utf-8") == printed


def test_both_spark_engines_fit_at_once() -> None:
    """The two shares of the one GPU's memory leave a fifth to the system."""
    shares = [
        float(words[words.index("--gpu-memory-utilization") + 1])
        for words in (flags(TOP / f"deploy/spark/{kind}.sh") for kind in ("plain", "mtp"))
    ]

    assert sum(shares) <= 0.8


def started(tmp_path: Path, split: str | None, number: str) -> subprocess.CompletedProcess[str]:
    """What serve.sh does for a slice, with a stand-in for vllm that prints its arguments."""
    stand_in = tmp_path / "vllm"
    stand_in.write_text('#!/bin/sh\necho "$@"\n', "utf-8")
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLICE": number}
    if split is not None:
        environment["SPLIT"] = split
    return subprocess.run(
        ["sh", str(TOP / "deploy/g4/serve.sh")], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("split", SPLITS)
def test_the_split_is_the_same_to_engines_and_policy(split: str, tmp_path: Path) -> None:
    """For each G4_SPLIT, a slice drafts exactly where the gateway's policy has it in the MTP pool, as deep."""
    policy = load_policy(TOP / f"deploy/g4/policies/split-{split}.yaml", {})
    seen = {}
    for pool in policy.pools.values():
        for endpoint in pool.endpoints:
            host = urlsplit(endpoint.url).hostname or ""
            told = started(tmp_path, split, host.removeprefix("vllm-")).stdout
            seen[host] = pool.kind
            assert ("--speculative-config" in told) == (pool.kind is PoolKind.MTP)
            assert "--served-model-name gemma-4-e4b" in told
            if pool.speculative:
                assert f'"num_speculative_tokens":{pool.speculative.tokens}' in told

    assert set(seen) == in_profile("g4") & set(ENGINES)
    assert sum(kind is PoolKind.PLAIN for kind in seen.values()) == int(split[0])


@pytest.mark.parametrize(("split", "number"), [("4-0", "0"), ("2", "0"), ("", "9"), ("2-2", "x")])
def test_a_wrong_split_starts_nothing(split: str, number: str, tmp_path: Path) -> None:
    """A split or a slice that does not exist ends with status 2 and a sentence."""
    done = started(tmp_path, split or None, number)

    assert done.returncode == 2
    assert "must be" in done.stderr
    assert done.stdout == ""


def test_every_split_has_its_policy() -> None:
    """The gateway's policy file is chosen by the variable that the engines get."""
    command = " ".join(SERVICES["gateway-g4"]["command"])
    files = {path.name for path in (TOP / "deploy/g4/policies").iterdir()}

    assert "split-${G4_SPLIT:-2-2}.yaml" in command
    assert files == {f"split-{split}.yaml" for split in SPLITS}


def test_the_spark_policy_names_its_engines() -> None:
    """Kinds, depth and addresses of the Spark policy are those of its two engines."""
    policy = load_policy(TOP / "deploy/spark/policy.yaml", {})
    hosts = {
        pool.kind: [urlsplit(endpoint.url).netloc for endpoint in pool.endpoints] for pool in policy.pools.values()
    }
    (depth,) = [pool.speculative.tokens for pool in policy.pools.values() if pool.speculative]

    assert hosts == {PoolKind.PLAIN: ["vllm-spark-plain:8000"], PoolKind.MTP: ["vllm-spark-mtp:8000"]}
    assert f'"num_speculative_tokens":{depth}' in (TOP / "deploy/spark/mtp.sh").read_text("utf-8")


def test_the_example_environment_explains_every_variable() -> None:
    """.env.example has each variable of the compose file with its default, below a comment of its own.

    Never beside one: Compose takes a comment after an empty value for the value.
    """
    lines = (TOP / ".env.example").read_text("utf-8").splitlines()
    told = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]", line))
    used = dict(VARIABLE.findall((TOP / "docker-compose.yml").read_text("utf-8")))

    assert told == used
    for above, line in pairwise(lines):
        if re.match(r"[A-Z]", line):
            assert above.startswith(("# ", "G4_SLICE_"))


def test_prometheus_finds_every_real_engine() -> None:
    """The names that gpu.yml looks up are the services of the profiles, on networks that Prometheus is in."""
    config = yaml.safe_load((TOP / "deploy/prometheus/gpu.yml").read_text("utf-8"))
    names = {name for job in config["scrape_configs"] for sd in job["dns_sd_configs"] for name in sd["names"]}

    assert names == {*ENGINES, *GATEWAYS}
    for name in names:
        assert set(SERVICES["prometheus-gpu"]["networks"]) & set(SERVICES[name]["networks"])


HEAD = (TOP / "docker-compose.yml").read_text("utf-8").partition("\nname:")[0]
NOTES = (TOP / "deploy/OPERATIONS.md").read_text("utf-8")


def starts(text: str) -> list[tuple[set[str], set[str]]]:
    """Of each `docker compose ... up` in a text: what Compose starts, and the services named."""
    found = []
    for line in re.findall(r"^(?:# +)?docker compose (.* ?up .*?)(?:  .*)?$", text, re.MULTILINE):
        words = line.split()
        named = {word for word in words[words.index("up") + 1 :] if not word.startswith("-")}
        profiles = {words[at + 1] for at, word in enumerate(words) if word == "--profile"}
        all_of_them = {n for n, s in SERVICES.items() if not s.get("profiles") or profiles & set(s["profiles"])}
        waiting, started = list(named or all_of_them), set()
        while waiting:
            name = waiting.pop()
            started.add(name)
            waiting += [other for other in SERVICES[name].get("depends_on", {}) if other not in started]
        found.append((started, named))
    return found


def test_grafana_is_started_with_a_prometheus_that_reads_the_gateway() -> None:
    """`up gateway-g4` starts neither, and `--profile monitoring` adds nothing to services that are named; so the words
    on real engines name both."""
    assert [named for started, named in starts(HEAD) if "grafana" in started] == [
        {"gateway-g4", "prometheus-gpu", "grafana"},
        set(),
    ]
    assert [named for started, named in starts(NOTES) if "grafana" in started] == [{"prometheus-gpu", "grafana"}]
    for started, _ in (*starts(HEAD), *starts(NOTES)):
        assert ("grafana" in started) <= bool(started & {"prometheus", "prometheus-gpu"})


def test_grafana_is_provisioned_from_what_is_mounted() -> None:
    """Its provisioning folder is in the mount, and its data source is the variable that the compose file sets."""
    source, target, mode = SERVICES["grafana"]["volumes"][0].split(":")
    inside = Path(SERVICES["grafana"]["environment"]["GF_PATHS_PROVISIONING"]).relative_to(target)
    kinds = {path.name for path in (TOP / source / inside).iterdir()}
    sources = yaml.safe_load((TOP / source / inside / "datasources/prometheus.yaml").read_text("utf-8"))
    (data,) = sources["datasources"]

    assert mode == "ro"
    assert {"datasources", "dashboards"} <= kinds
    assert data["url"].removeprefix("$") in SERVICES["grafana"]["environment"]


@pytest.mark.parametrize("profile", ["g4", "spark", "monitoring"])
def test_compose_takes_the_file(profile: str) -> None:
    """`docker compose config` accepts every profile with an empty environment, where there is a docker-compose."""
    if not any((Path(folder) / "docker-compose").is_file() for folder in os.get_exec_path()):
        pytest.skip("no docker-compose here")
    done = subprocess.run(
        ["docker-compose", "-f", "docker-compose.yml", "--env-file", "/dev/null", "--profile", profile, "config", "-q"],
        cwd=TOP, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout + done.stderr) == (0, "")
