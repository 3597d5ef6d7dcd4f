"""What `docker compose up` promises and a reader of the files can check without an engine: no profile, no GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway import __version__
from gateway.cli import parser
from gateway.policy.load import load_policy
from gateway.policy.schema import Policy
from gateway.types import PoolKind

TOP = Path(__file__).resolve().parents[2]
Service = dict[str, Any]


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((TOP / "docker-compose.yml").read_text("utf-8"))
    return loaded


def services() -> dict[str, Service]:
    """Those that start without a profile."""
    return {name: service for name, service in compose()["services"].items() if "profiles" not in service}


def policy() -> Policy:
    return load_policy(TOP / "policies/default.yaml", {})


def words(service: Service) -> list[str]:
    """The command line after the program's name; the image's entrypoint is the program."""
    return [*service.get("entrypoint", ["gateway"])[1:], *service["command"]]


def option(service: Service, name: str) -> str | None:
    given = words(service)
    return given[given.index(name) + 1] if name in given else None


def final_stage() -> list[str]:
    """The Dockerfile's instructions after its last FROM, with continued lines joined."""
    text = (TOP / "deploy/docker/Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    start = max(at for at, line in enumerate(lines) if line.startswith("FROM "))
    return [line for line in lines[start + 1 :] if line and not line.startswith("#")]


each_service = pytest.mark.parametrize("name", sorted(services()))


@each_service
def test_a_service_can_do_no_more_than_it_needs(name: str) -> None:
    """A service runs as a numeric non-root user, on a read-only root, without capabilities or ways to gain them."""
    service = services()[name]

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]


@each_service
def test_a_service_writes_to_memory_only(name: str) -> None:
    """A service mounts files of the repository read-only, and every place that it may write to has a size."""
    service = services()[name]

    assert all(volume.startswith("./") and volume.endswith(":ro") for volume in service.get("volumes", []))
    assert all("size=" in mount for mount in service["tmpfs"])


@each_service
def test_only_loopback_is_published(name: str) -> None:
    """A published port is bound to 127.0.0.1, and has a default so that no .env is needed."""
    for port in services()[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+:-\d+\}:\d+", port)


def test_every_variable_has_a_default() -> None:
    """The compose file needs no .env: no variable in it is without a default."""
    text = (TOP / "docker-compose.yml").read_text("utf-8")

    assert re.findall(r"\$(?!\{[A-Z0-9_]+:-)", text) == []


def test_gateway_and_prometheus_alone_are_published() -> None:
    """Back ends and Redis are on internal networks alone, and publish nothing."""
    networks = compose()["networks"]
    published = {name for name, service in services().items() if "ports" in service}
    inside = {name for name, s in services().items() if all(networks[n].get("internal") for n in s["networks"])}

    assert published == {"gateway", "prometheus"}
    assert inside == set(services()) - published


def test_redis_is_reached_by_the_gateway_alone() -> None:
    """Only the gateway shares a network with Redis."""
    (network,) = services()["redis"]["networks"]

    assert {name for name, service in services().items() if network in service["networks"]} == {"gateway", "redis"}


@each_service
def test_images_are_pinned(name: str) -> None:
    """An image has a full version as its tag; our own has this version's."""
    image, _, tag = services()[name]["image"].partition(":")

    assert tag == __version__ if image == "mtp-gateway" else re.fullmatch(r"v?\d+\.\d+\.\d+(-\w+)?", tag)


@each_service
def test_a_service_tells_its_health(name: str) -> None:
    """A service has a healthcheck that cannot outlast its interval; ours ask their own port."""
    service = services()[name]
    check = service["healthcheck"]

    assert int(check["timeout"].rstrip("s")) < int(check["interval"].rstrip("s"))
    if service["image"].startswith("mtp-gateway:"):
        url = urlsplit(service["environment"]["HEALTHCHECK_URL"])
        assert (url.hostname, str(url.port)) == ("127.0.0.1", option(service, "--port"))
        assert url.path == ("/ready" if name == "gateway" else "/health")
    else:
        assert check["test"]


def test_the_gateway_starts_after_what_it_needs_is_healthy() -> None:
    """The gateway waits until all back ends and Redis are healthy, Prometheus until the gateway is."""
    waits = {name: s["depends_on"] for name, s in services().items() if "depends_on" in s}

    assert set(waits) == {"gateway", "prometheus"}
    assert set(waits["gateway"]) == set(services()) - {"gateway", "prometheus"}
    assert all(needed == {"condition": "service_healthy"} for w in waits.values() for needed in w.values())


def test_the_gateway_has_time_to_finish() -> None:
    """OPS-01: the engine kills the gateway only after the policy's grace has passed."""
    assert int(services()["gateway"]["stop_grace_period"].rstrip("s")) > policy().server.grace
    assert "STOPSIGNAL SIGTERM" in final_stage()


def test_the_policy_is_mounted_as_a_directory() -> None:
    """RELOAD-02: a policy saved by rename is seen, since its directory is mounted and not the file."""
    (mount,) = services()["gateway"]["volumes"]
    source, target, _ = mount.split(":")

    assert (TOP / source).is_dir()
    assert option(services()["gateway"], "--policy") == f"{target}/default.yaml"
    assert (TOP / source / "default.yaml").is_file()


def test_the_policy_names_the_back_ends() -> None:
    """The default policy's endpoints are the simulated back ends: name, port, served model and speculation agree."""
    sims = {name: s for name, s in services().items() if words(s)[0] == "sim"}
    (model,) = (m for m in policy().models.values() if m.pools)
    seen = set()

    for pool in (policy().pools[name] for name in model.pools):
        for endpoint in pool.endpoints:
            url = urlsplit(endpoint.url)
            assert url.hostname
            seen.add(url.hostname)
            sim = sims[url.hostname]
            assert option(sim, "--port") == str(url.port)
            assert option(sim, "--served-name") == (pool.model or model.name)
            assert (option(sim, "--speculative") == "mtp") == (pool.kind is PoolKind.MTP)
            assert option(sim, "--k") == (str(pool.speculative.tokens) if pool.speculative else None)
            assert option(sim, "--host") == "0.0.0.0"
    assert seen == set(sims)
    assert len(sims) == 4


def test_the_commands_are_ones_that_the_program_takes() -> None:
    """Each command line of our image in the compose file is one that the program's own parser accepts."""
    ours = [s for s in services().values() if s["image"].startswith("mtp-gateway:")]

    assert [parser().parse_args(words(service)).verb is not None for service in ours] == [True] * 5


def test_prometheus_scrapes_what_exists() -> None:
    """Every scraped address is a service and its port, in a network that Prometheus is in; all five are scraped."""
    config = yaml.safe_load((TOP / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    targets = [t for job in config["scrape_configs"] for group in job["static_configs"] for t in group["targets"]]
    near = set(services()["prometheus"]["networks"])

    for target in targets:
        name, _, port = target.partition(":")
        assert option(services()[name], "--port") == port
        assert near & set(services()[name]["networks"])
    assert len(set(targets)) == len(targets) == 5


def test_prometheus_labels_back_ends_with_their_pool() -> None:
    """The pool label of a scraped back end is the policy's pool that holds it."""
    config = yaml.safe_load((TOP / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    labelled = {
        (group["labels"]["pool"], f"http://{target}")
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
        if "labels" in group
    }

    assert labelled == {(pool.name, endpoint.url) for pool in policy().pools.values() for endpoint in pool.endpoints}


def test_the_image_runs_as_nobody_in_particular() -> None:
    """The final stage ends as a numeric non-root user, the one of the compose file."""
    users = [line.removeprefix("USER ") for line in final_stage() if line.startswith("USER ")]

    assert users[-1] == services()["gateway"]["user"]


def test_the_final_image_builds_nothing() -> None:
    """The final stage runs no command, so it holds no compiler, package cache or build input; it has a healthcheck."""
    words = [line.split()[0] for line in final_stage()]

    assert "RUN" not in words
    assert "HEALTHCHECK" in words
    assert [line for line in final_stage() if line.startswith("COPY") and "--from=build" not in line] == []


def test_the_image_is_labelled_with_this_version() -> None:
    """The version label's default is the program's version, and the base image has a full version."""
    text = (TOP / "deploy/docker/Dockerfile").read_text("utf-8")

    assert f"ARG VERSION={__version__}\n" in text
    assert re.search(r"^ARG BASE=python:3\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)


def test_the_build_context_is_the_program_alone() -> None:
    """The build context leaves out everything that is not named, such as .env and .git."""
    lines = (TOP / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]

    assert rules[0] == "*"
    assert {rule for rule in rules if rule.startswith("!")} == {"!pyproject.toml", "!README.md", "!LICENSE", "!gateway"}
