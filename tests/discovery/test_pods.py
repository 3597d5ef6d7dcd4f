"""Pods of Kubernetes as sources of endpoints, against a server that speaks list and watch."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import certifi
import pytest

from gateway.discovery.cluster import Cluster
from gateway.discovery.pods import follow_pods
from gateway.policy.schema import Pods
from tests.discovery.kubernetes import Api, pod
from tests.discovery.names import Heard, soon

WANTED = Pods(selector="app=vllm,mtp in (yes,on)", port=8000)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with Api(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def following(cluster: Cluster, wanted: Pods = WANTED) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(follow_pods(wanted, heard, cluster, soon, lambda: 1.0))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_only_ready_pods_count(api: Api) -> None:
    """A pod that is not ready, about to stop, finished or without an address is no endpoint; the selector is sent."""
    api.put(pod("a", "10.0.0.1"))
    api.put(pod("b", "10.0.0.2", ready=False))
    api.put(pod("c", "10.0.0.3", leaving=True))
    api.put(pod("d", "10.0.0.4", phase="Succeeded"))
    api.put(pod("e", None))
    api.put(pod("f", "fd00::6"))
    async with following(api.cluster) as heard:
        await heard.until_urls("http://10.0.0.1:8000", "http://[fd00::6]:8000")

        assert api.selectors == {"app=vllm,mtp in (yes,on)"}


async def test_changes_come_by_the_watch(api: Api) -> None:
    """Pods that come, get ready, begin to stop and go are followed, with one list only."""
    api.put(pod("a", "10.0.0.1"))
    async with following(api.cluster) as heard:
        await heard.until_urls("http://10.0.0.1:8000")
        await api.until_watched(1)
        api.put(pod("b", "10.0.0.2", ready=False))
        api.put(pod("b", "10.0.0.2"))
        await heard.until_urls("http://10.0.0.1:8000", "http://10.0.0.2:8000")
        api.put(pod("a", "10.0.0.1", leaving=True))
        await heard.until_urls("http://10.0.0.2:8000")
        api.put(pod("c", "10.0.0.3"))
        api.delete("b")
        await heard.until_urls("http://10.0.0.3:8000")

        assert api.lists == 1


async def test_a_cut_watch_goes_on_where_it_was(api: Api) -> None:
    """What happened meanwhile is heard from the last version on, a bookmark's included, without a second list."""
    async with following(api.cluster) as heard:
        await api.until_watched(1)
        api.put(pod("a", "10.0.0.1"))
        await heard.until_urls("http://10.0.0.1:8000")
        api.put(pod("a", "10.0.0.2"))
        api.bookmark()
        api.put(pod("b", "10.0.0.3"))
        await heard.until_urls("http://10.0.0.2:8000", "http://10.0.0.3:8000")
        last = api.version
        api.cut()
        api.put(pod("c", "10.0.0.4"))
        await api.until_watched(2)
        await heard.until_urls("http://10.0.0.2:8000", "http://10.0.0.3:8000", "http://10.0.0.4:8000")

        assert api.watched_from[1] == last
        assert api.lists == 1


@pytest.mark.parametrize("late", [True, False])
async def test_a_version_too_old_is_listed_anew(api: Api, late: bool) -> None:
    """410, as a status or as an event of the watch, leads to a new list, in which pods may be missing."""
    api.late_gone = late
    api.put(pod("a", "10.0.0.1"))
    api.put(pod("b", "10.0.0.2"))
    async with following(api.cluster) as heard:
        await heard.until_urls("http://10.0.0.1:8000", "http://10.0.0.2:8000")
        await api.until_watched(1)
        del api.pods["a"]
        api.forget()
        api.cut()
        await heard.until_urls("http://10.0.0.2:8000")

        assert api.lists == 2


async def test_a_long_list_comes_in_pages(api: Api) -> None:
    """Every page is asked for before anything is told."""
    api.page = 2
    for number in range(5):
        api.put(pod(f"p{number}", f"10.0.0.{number + 1}"))
    async with following(api.cluster) as heard:
        await heard.until_urls(*(f"http://10.0.0.{number + 1}:8000" for number in range(5)))

        assert heard.told[0] == heard.told[-1]


async def test_a_refusal_is_told_in_words(api: Api) -> None:
    """403 names the right that is missing; once it is granted the pods are found."""
    api.status = 403
    api.put(pod("a", "10.0.0.1"))
    async with following(api.cluster) as heard:
        await heard.until_failed("the Kubernetes API answers 403: the service account may not list and watch pods")
        api.status = 200
        await heard.until_urls("http://10.0.0.1:8000")


async def test_a_renewed_token_is_used(api: Api, tmp_path: Path) -> None:
    """The token is read for each request, for the cluster renews it."""
    (tmp_path / "token").write_text("an old one")
    api.put(pod("a", "10.0.0.1"))
    async with following(api.cluster) as heard:
        await heard.until_failed("the Kubernetes API answers 401: the token is refused")
        (tmp_path / "token").write_text("token-of-a-test\n")
        await heard.until_urls("http://10.0.0.1:8000")


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        (Cluster(None), "not within a Kubernetes cluster: KUBERNETES_SERVICE_HOST is not set"),
        (
            Cluster("http://127.0.0.1:9", Path("/nowhere")),
            "no namespace of a service account; the pod needs automountServiceAccountToken",
        ),
        (
            Cluster("https://127.0.0.1:9", Path("/nowhere")),
            "no ca.crt of a service account; the pod needs automountServiceAccountToken",
        ),
    ],
)
async def test_no_way_to_the_api_is_told_in_words(cluster: Cluster, why: str) -> None:
    """Outside a cluster, or without a service account, the operator is told what is missing."""
    async with following(cluster) as heard:
        await heard.until_failed(why)


def test_the_api_is_where_the_environment_says() -> None:
    """A pod finds the API by two variables; an IPv6 address gets its brackets."""
    assert Cluster.of({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).url == "https://10.0.0.1:443"
    v6 = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert Cluster.of(v6).url == "https://[fd00::1]:6443"
    assert Cluster.of({}).url is None


async def test_a_cluster_may_have_made_its_own_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are checked, but not for fields that a cluster's own CA may lack: newer Pythons would refuse it."""
    made, plain = [], ssl.create_default_context

    def strict(**given: Any) -> ssl.SSLContext:
        made.append(context := plain(**given))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    shutil.copyfile(certifi.where(), tmp_path / "ca.crt")
    monkeypatch.setattr(ssl, "create_default_context", strict)
    client = await Cluster("https://127.0.0.1:1", tmp_path).client()
    await client.aclose()
    assert [context.verify_mode for context in made] == [ssl.CERT_REQUIRED]
    assert not made[0].verify_flags & ssl.VERIFY_X509_STRICT
