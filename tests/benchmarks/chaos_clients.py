"""The clients of the chaos run: many at one time, each with one request after another on a connection of its own.

A share of the requests is left on purpose at a random point: before the headers, in the middle of a stream, or while
a whole answer is waited for; half of those with a close and half with a reset.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import orjson

from tests.benchmarks.chaos_answers import Judged, Kind, Received, Verdict, judge

KINDS: Sequence[Kind] = (
    Kind("label", "Answer with one word: is the sky blue?", 3, stream=False),
    Kind("short", "次の文を一文で要約してください。梅雨が明けて、街路樹の緑が濃くなった。", 12, stream=True),
    Kind("reply", "Write a short reply to a customer whose parcel is late.", 40, stream=False),
    Kind("long", "Explain in detail how a suspension bridge carries its load.", 110, stream=True),
    Kind("code", "Write a Python function that merges two sorted lists, with comments.", 70, stream=True),
)


LEARNING_PATIENCE = 300.0
"""Seconds for an answer of a back end that is slowed down as far as can be and has nothing else to do."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Where a client goes away: after so many seconds, or after so many bytes of the answer."""

    seconds: float | None = None
    received: int | None = None
    reset: bool = False


STAYS = Leave()


@dataclass(frozen=True, slots=True)
class Record:
    """One request, once it is over. Times are of the monotonic clock."""

    marker: str
    kind: str
    started: float
    ended: float
    judged: Judged
    first_byte: float | None

    @property
    def seconds(self) -> float:
        return self.ended - self.started


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    model: str
    key: str
    """Sent as a bearer token; empty for none."""
    patience: float
    """Seconds after which a client takes its request for hung."""
    host: str = "127.0.0.1"


async def ask(target: Target, marker: str, kind: Kind, leave: Leave = STAYS) -> Received:
    """Sends one request and reads what comes until the answer's end, the connection's, or the client's leaving."""
    received = Received()
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(target.patience if leave.seconds is None else leave.seconds):
            reader, writer = await asyncio.open_connection(target.host, target.port, limit=1 << 20)
            writer.write(_wire(target, marker, kind))
            await _read(reader, received, leave)
    except TimeoutError:
        received.left = leave.seconds is not None
        received.note = f"nothing more within {target.patience:g} s"
    except (OSError, asyncio.IncompleteReadError) as error:
        received.note = f"the connection was lost ({type(error).__name__})"
    finally:
        received.ended = time.monotonic()
        if writer is not None:
            if leave.reset:
                writer.transport.abort()
            writer.close()
    return received


def _wire(target: Target, marker: str, kind: Kind) -> bytes:
    body = kind.body(target.model)
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"host: {target.host}:{target.port}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-id: {marker}",
    ]
    if target.key:
        lines.append(f"authorization: Bearer {target.key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def _read(reader: asyncio.StreamReader, received: Received, leave: Leave) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    received.status = int(head.split(b" ", 2)[1])
    if b"\r\ntransfer-encoding: chunked" not in head:
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        try:
            received.body = await reader.readexactly(length)
        except asyncio.IncompleteReadError as short:
            received.body = short.partial
            raise
        received.first_byte = time.monotonic()
        received.whole = True
        return
    pieces: list[bytes] = []
    size = 0
    try:
        while (line := await reader.readline()) and (length := int(line, 16)):
            pieces.append((await reader.readexactly(length + 2))[:-2])
            size += length
            if received.first_byte is None:
                received.first_byte = time.monotonic()
            if leave.received is not None and size >= leave.received:
                received.left = True
                return
        received.whole = bool(line) and await reader.readline() == b"\r\n"
    finally:
        received.body = b"".join(pieces)


def draw_leave(rng: Random, share: float, kind: Kind) -> Leave:
    """Whether and where this request's client goes away."""
    if rng.random() >= share:
        return STAYS
    reset = rng.random() < 0.5
    if kind.stream and rng.random() < 0.5:
        return Leave(received=rng.randint(1, kind.tokens * 200), reset=reset)
    return Leave(seconds=rng.choice((0.02, 0.3, 2.0)) * rng.random(), reset=reset)


class Crowd:
    """`count` clients at one time until `stop` is set; every request's record is kept."""

    def __init__(self, target: Target, expected: Mapping[str, str], rng: Random, *, leaving: float) -> None:
        self.records: list[Record] = []
        self.running = 0
        self.stop = asyncio.Event()
        self._target = target
        self._expected = expected
        self._rng = rng
        self._leaving = leaving
        self._sent = 0

    async def run(self, count: int, prefix: str, kinds: Sequence[Kind] = KINDS, pause: float = 0.05) -> None:
        """Starts the clients over a few seconds. Returns when the last one has its last answer."""

        async def client(number: int) -> None:
            await asyncio.sleep(number / count * min(5.0, count / 50))
            while not self.stop.is_set():
                record = await self.one(prefix, self._rng.choice(kinds))
                # A client that is refused comes back after a while, as SDKs do.
                refused = record.judged.verdict in (Verdict.FAILED, Verdict.PASSED)
                await asyncio.sleep((0.5 if refused else pause) * (0.5 + self._rng.random()))

        await asyncio.gather(*(client(number) for number in range(count)))

    async def one(self, prefix: str, kind: Kind) -> Record:
        self._sent += 1
        marker = f"{prefix}-{self._sent}"
        leave = draw_leave(self._rng, self._leaving, kind)
        started = time.monotonic()
        self.running += 1
        try:
            received = await ask(self._target, marker, kind, leave)
        finally:
            self.running -= 1
        judged = judge(kind, received, self._expected[kind.name])
        record = Record(marker, kind.name, started, received.ended, judged, received.first_byte)
        self.records.append(record)
        return record


async def learn_answers(port: int, model: str, host: str = "127.0.0.1") -> dict[str, str]:
    """The text of each kind's answer, by the kind's name, as a back end gives it. Raises RuntimeError."""
    target = Target(port, model, "", LEARNING_PATIENCE, host)

    async def text(kind: Kind) -> str:
        whole = Kind(kind.name, kind.prompt, kind.tokens, stream=False)
        received = await ask(target, f"learn-{kind.name}", whole)
        if received.status != 200:
            raise RuntimeError(f"a back end answered {received.status}: {received.body!r} {received.note}")
        return str(orjson.loads(received.body)["choices"][0]["message"]["content"])

    texts = await asyncio.gather(*(text(kind) for kind in KINDS))
    return {kind.name: found for kind, found in zip(KINDS, texts, strict=True)}
