"""A server on loopback that speaks the list and watch protocol of the Kubernetes API, for pods of one namespace."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gateway.discovery.cluster import Cluster

TOKEN, NAMESPACE = "token-of-a-test", "models"
Pod = dict[str, Any]


def pod(name: str, address: str | None, *, ready: bool = True, leaving: bool = False, phase: str = "Running") -> Pod:
    about: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "labels": {"app": "vllm"}}
    if leaving:
        about["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    # What ends a line elsewhere may stand in a string of JSON.
    about["annotations"] = {"note": "one\u2028two\u0085three"}
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {"metadata": about, "status": {"phase": phase, "podIP": address, "conditions": conditions}}


@dataclass(slots=True)
class Api:
    """Use as `async with Api(folder) as api`; `api.cluster` is the way to it."""

    folder: Path
    pods: dict[str, Pod] = field(default_factory=dict)
    version: int = 100
    oldest: int = 0
    """Watches from before this version are too old."""
    late_gone: bool = True
    """Whether that is said by an event, and not by the status."""
    status: int = 200
    """What every request gets."""
    page: int = 1000
    lists: int = 0
    watched_from: list[int] = field(default_factory=list)
    selectors: set[str] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _history: list[tuple[int, str, Pod]] = field(default_factory=list)
    _watchers: set[asyncio.StreamWriter] = field(default_factory=set)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def cluster(self) -> Cluster:
        assert self._server is not None
        return Cluster(f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}", self.folder)

    async def __aenter__(self) -> Api:
        (self.folder / "token").write_text(TOKEN)
        (self.folder / "namespace").write_text(NAMESPACE)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut(everything=True)
        await self._server.wait_closed()

    def put(self, changed: Pod) -> None:
        """A pod that is new, or other than before."""
        name = changed["metadata"]["name"]
        kind = "MODIFIED" if name in self.pods else "ADDED"
        self.pods[name] = changed
        self._happened(kind, changed)

    def delete(self, name: str) -> None:
        self._happened("DELETED", self.pods.pop(name))

    def bookmark(self) -> None:
        self.version += 10
        self._send(self.version, "BOOKMARK", {"metadata": {}})

    def forget(self) -> None:
        """Only the present is known from now on."""
        self.version += 1
        self.oldest = self.version
        self._history.clear()

    def cut(self, *, everything: bool = False) -> None:
        """Ends the watches amid their answers."""
        for writer in self._open if everything else self._watchers:
            writer.transport.abort()

    async def until_watched(self, times: int) -> None:
        async with asyncio.timeout(60):
            while len(self.watched_from) < times or not self._watchers:
                self.news.clear()
                await self.news.wait()

    def _happened(self, kind: str, changed: Pod) -> None:
        self.version += 1
        self._history.append((self.version, kind, changed))
        self._send(self.version, kind, changed)

    def _send(self, version: int, kind: str, changed: Pod) -> None:
        for writer in self._watchers:
            self._write_event(writer, version, kind, changed)

    def _write_event(self, writer: asyncio.StreamWriter, version: int, kind: str, changed: Pod) -> None:
        stamped = {**changed, "metadata": {**changed["metadata"], "resourceVersion": str(version)}}
        line = json.dumps({"type": kind, "object": stamped}, ensure_ascii=False).encode() + b"\n"
        # Cut anywhere, as chunks are.
        for piece in (line[:7], line[7:]):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                    await self._answer(head, reader, writer)
        finally:
            self._open.discard(writer)
            self._watchers.discard(writer)
            writer.close()

    async def _answer(self, head: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(head[0].split(" ")[1])
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        self.selectors.add(query.get("labelSelector", ""))
        if f"authorization: Bearer {TOKEN}" not in head and f"Authorization: Bearer {TOKEN}" not in head:
            _whole(writer, 401, {"code": 401})
        elif target.path != f"/api/v1/namespaces/{NAMESPACE}/pods" or self.status != 200:
            _whole(writer, self.status if self.status != 200 else 404, {"code": self.status})
        elif query.get("watch") == "true":
            await self._watch(int(query["resourceVersion"]), reader, writer)
        else:
            self._list(int(query.get("continue", "0")), writer)

    def _list(self, start: int, writer: asyncio.StreamWriter) -> None:
        self.lists += start == 0
        rows = list(self.pods.values())
        about = {"resourceVersion": str(self.version)}
        if start + self.page < len(rows):
            about["continue"] = str(start + self.page)
        _whole(writer, 200, {"metadata": about, "items": rows[start : start + self.page]})

    async def _watch(self, since: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.watched_from.append(since)
        gone = since < self.oldest
        if gone and not self.late_gone:
            _whole(writer, 410, {"code": 410})
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if gone:
            self._write_event(writer, since, "ERROR", {"metadata": {}, "kind": "Status", "code": 410})
            writer.write(b"0\r\n\r\n")
            return
        for version, kind, changed in self._history:
            if version > since:
                self._write_event(writer, version, kind, changed)
        self._watchers.add(writer)
        self.news.set()
        await reader.read()


def _whole(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    head = f"HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
