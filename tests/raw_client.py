"""A client on a raw socket: what went over the wire, byte by byte, and connections left at any point."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Answer:
    """One HTTP answer as it came. `body` has the transfer coding removed; `framing` is what was there before."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    framing: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> dict[str, object]:
        """The OpenAI error object, with all of its four fields."""
        inner = self.json()["error"]
        assert isinstance(inner, dict)
        assert set(inner) >= {"message", "type", "param", "code"}
        return inner


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(
        self, target: str, body: bytes, *, method: str = "POST", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        lines = [f"{method} {target} HTTP/1.1", "host: gateway", f"content-length: {len(body)}"]
        if not any(name.lower() == "content-type" for name, _ in headers):
            lines.append("content-type: application/json")
        lines += [f"{name}: {value}" for name, value in headers]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *rest = raw.decode("latin-1").split("\r\n")[:-2]
        pairs = [line.split(":", 1) for line in rest]
        return int(first.split()[1]), [(name, value.strip()) for name, value in pairs]

    async def chunk(self) -> bytes:
        """The next HTTP chunk of the body; b"" is the end chunk."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def answer(self) -> Answer:
        """The whole answer. Raises IncompleteReadError when the connection is cut within it."""
        return await self.rest(*await self.head())

    async def rest(self, status: int, headers: list[tuple[str, str]]) -> Answer:
        """What follows the head."""
        fields = {name.lower(): value for name, value in headers}
        if fields.get("transfer-encoding") == "chunked":
            pieces: list[bytes] = []
            framing = b""
            while True:
                line = await self.reader.readline()
                framing += line
                data = (await self.reader.readexactly(int(line, 16) + 2))[:-2]
                if not data:
                    return Answer(status, headers, b"".join(pieces), framing)
                pieces.append(data)
        return Answer(status, headers, await self.reader.readexactly(int(fields.get("content-length", "0"))), b"")

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Closes with RST."""
        transport = self.writer.transport
        assert isinstance(transport, asyncio.WriteTransport)
        transport.abort()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[RawClient]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=16_000_000)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        client.close()


async def ask(
    url: str,
    body: object,
    target: str = "/v1/chat/completions",
    *,
    method: str = "POST",
    headers: tuple[tuple[str, str], ...] = (),
) -> Answer:
    """One request on a connection of its own. `body` is bytes as they are, or JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with connected(url) as client:
        await client.send(target, raw, method=method, headers=headers)
        return await asyncio.wait_for(client.answer(), 60)


async def get(url: str, target: str) -> Answer:
    """A GET on a connection of its own."""
    return await ask(url, b"", target, method="GET")


def chat(content: object = "hi", **more: object) -> dict[str, object]:
    """A chat body for model `m`."""
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


async def counted(url: str, name: str, **labels: str) -> float:
    """On the page of metrics, a sample's sum over all label sets that hold these labels."""
    page = (await get(url, "/metrics")).body.decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
