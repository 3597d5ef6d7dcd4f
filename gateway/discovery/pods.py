"""Endpoints from the Kubernetes API: the pods of a label selector that are ready and not about to stop.

List once, then watch from the list's resourceVersion: the server sends each change as a line of JSON. After a watch
that ended or broke, the next one continues from the last version received, bookmarks included; if that is too old
(410), the list is read again. A watch lasts a minute at most, so that a silently dead connection is noticed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import httpx
import orjson

from gateway.discovery.cluster import CONNECT_SECONDS, Cluster, Unreachable
from gateway.discovery.found import SHORTEST_WAIT, Address, Factor, Listener, Sleep, backoff
from gateway.policy.schema import Pods

WATCH_SECONDS = 60
SILENCE_SECONDS = WATCH_SECONDS + 15.0
PAGE = 500
MAX_LINE_BYTES = 4 * 1024 * 1024
GONE = 410


class _Expired(Exception):
    """The version to go on from is too old."""


async def follow_pods(wanted: Pods, listener: Listener, cluster: Cluster, sleep: Sleep, factor: Factor) -> None:
    """See `found.Follow`."""
    view = _View(wanted, listener, cluster)
    failures = 0
    client: httpx.AsyncClient | None = None
    try:
        while True:
            try:
                if client is None:
                    client = await cluster.client()
                await view.advance(client)
                failures = 0
            except _Expired:
                view.version = None
            except (Unreachable, httpx.HTTPError, httpx.StreamError) as error:
                failures += 1
                listener.failed(str(error) if isinstance(error, Unreachable) else type(error).__name__)
                # A new client reads the CA anew.
                if client is not None:
                    await client.aclose()
                client = None
            # Also after a watch that ended in good order: a server that ends each at once is not hammered.
            await sleep((backoff(failures) if failures else SHORTEST_WAIT) * factor())
    finally:
        if client is not None:
            await client.aclose()


@dataclass(slots=True)
class _View:
    """The pods as last reported."""

    wanted: Pods
    listener: Listener
    cluster: Cluster
    version: str | None = None
    """The resourceVersion to watch from; None before a list."""
    urls: dict[str, str] = field(default_factory=dict)
    """Where each ready pod serves, by the pod's name."""

    async def advance(self, client: httpx.AsyncClient) -> None:
        """Reads the list if it is due, then watches once. Raises Unreachable, _Expired, and httpx's errors."""
        namespace = self.wanted.namespace or await self.cluster.namespace()
        path = f"/api/v1/namespaces/{namespace}/pods"
        if self.version is None:
            await self._list(client, path)
        await self._watch(client, path)

    async def _list(self, client: httpx.AsyncClient, path: str) -> None:
        urls: dict[str, str] = {}
        parameters = {"labelSelector": self.wanted.selector, "limit": str(PAGE)}
        while True:
            answer = await client.get(path, params=parameters, headers=await self._headers())
            _check(answer.status_code)
            page = _object(answer.content)
            for pod in _rows(page):
                if url := self._url(pod):
                    urls[_name(pod)] = url
            about = _mapping(page.get("metadata"))
            if not about.get("continue"):
                break
            parameters["continue"] = str(about["continue"])
        self.urls, self.version = urls, str(about.get("resourceVersion") or "")
        self._tell()

    async def _watch(self, client: httpx.AsyncClient, path: str) -> None:
        parameters = {
            "labelSelector": self.wanted.selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version or "",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        headers = await self._headers()
        patience = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        async with client.stream("GET", path, params=parameters, headers=headers, timeout=patience) as answer:
            _check(answer.status_code)
            # What was known goes on being so, whatever failed before.
            self._tell()
            async for line in _lines(answer.aiter_bytes()):
                self._take(_object(line))

    def _take(self, event: Mapping[str, Any]) -> None:
        """One change."""
        kind, pod = event.get("type"), _mapping(event.get("object"))
        if kind == "ERROR":
            _check(int(pod.get("code") or 500))
        elif kind in ("ADDED", "MODIFIED", "DELETED"):
            url = self._url(pod) if kind != "DELETED" else None
            if url is None:
                self.urls.pop(_name(pod), None)
            else:
                self.urls[_name(pod)] = url
            self._tell()
        if version := _mapping(pod.get("metadata")).get("resourceVersion"):
            self.version = str(version)

    def _tell(self) -> None:
        self.listener.found(tuple(sorted(Address(url) for url in set(self.urls.values()))))

    def _url(self, pod: Mapping[str, Any]) -> str | None:
        """Where the pod serves, if it is ready."""
        status = _mapping(pod.get("status"))
        conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or () if isinstance(c, dict)}
        leaving = _mapping(pod.get("metadata")).get("deletionTimestamp") is not None
        if leaving or status.get("phase") != "Running" or conditions.get("Ready") != "True":
            return None
        try:
            address = ip_address(str(status.get("podIP")))
        except ValueError:
            return None
        return f"http://{f'[{address}]' if address.version == 6 else address}:{self.wanted.port}"

    async def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {await self.cluster.token()}", "accept": "application/json"}


def _check(status: int) -> None:
    if status == GONE:
        raise _Expired
    if status != 200:
        why = {401: "the token is refused", 403: "the service account may not list and watch pods"}.get(status)
        raise Unreachable(f"the Kubernetes API answers {status}" + (f": {why}" if why else ""))


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Splits at line feeds only: other line ends may be part of a JSON string."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > MAX_LINE_BYTES:
            raise Unreachable("the Kubernetes API sends a line without end")


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        return _mapping(orjson.loads(text))
    except orjson.JSONDecodeError:
        raise Unreachable("the Kubernetes API does not answer in JSON") from None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _rows(page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    items = page.get("items")
    return [_mapping(item) for item in items] if isinstance(items, list) else []


def _name(pod: Mapping[str, Any]) -> str:
    return str(_mapping(pod.get("metadata")).get("name"))
