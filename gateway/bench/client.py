"""The benchmark client: sends streamed requests to one endpoint and returns each one's times and counts as a `Row`.

It uses the gateway's own connector, whose CPU cost is small enough not to distort the times. Times are seconds of a
monotonic clock.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gateway.bench.rows import Reading, Row, whole
from gateway.errors import GatewayError
from gateway.telemetry.identity import parse_models, parse_version
from gateway.telemetry.spec_decode import Acceptance, acceptance, counts_of
from gateway.telemetry.vllm import PageReader, Snapshot
from gateway.upstream.client import Headers, Timeouts
from gateway.upstream.connect import connect

_SCALE = re.compile(rb"\+simulated\.x([0-9.e+]+)")
TIMEOUTS = Timeouts(connect=5.0, first_byte=600.0, idle=300.0)


class BenchError(Exception):
    """A measurement is impossible; the message is one line and names the remedy."""


class UsageError(BenchError):
    """The command-line options are wrong or contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to send requests, and under which label to report them."""

    label: str
    """As in the tables: `plain`, `mtp`, `k=2`, ..."""
    url: str
    model: str = ""
    """Empty: the only model that the endpoint serves."""
    key: str | None = field(default=None, repr=False)
    pool: str = ""
    """Pool to request from a gateway: a name, `plain` or `mtp`. Empty: no gateway, or its own choice."""
    settle: float = 0.0
    """Seconds to wait until a gateway has scraped its back ends' counters again."""


@dataclass(frozen=True, slots=True)
class About:
    """What an endpoint reported about itself."""

    model: str
    version: str | None
    simulated: bool
    time_scales: tuple[float, ...] = ()
    """Speed-ups of simulated engines over their hardware, where reported."""

    @property
    def label(self) -> str:
        """A suffix for the name of a simulated side in reports."""
        told = " and ".join(f"{scale:g}" for scale in self.time_scales)
        return f", {told} times as fast as its profile" if told else ""


class Endpoint:
    """A connection to a target."""

    def __init__(self, target: Target, clock: Callable[[], float]) -> None:
        """Does not connect yet. Raises BenchError for an invalid URL."""
        self.target = target
        self.about = About(target.model, None, False)
        self._clock = clock
        self._pages = PageReader()
        url = target.url.rstrip("/").removesuffix("/v1")
        try:
            self._origin = connect(url, keep_alive=3.0)
        except ValueError as error:
            raise BenchError(f"{target.label}: {error}; give an address as http://127.0.0.1:8000") from error
        self._headers: Headers = [(b"accept-encoding", b"identity"), (b"user-agent", b"gateway-bench")]
        if target.key:
            self._headers.append((b"authorization", b"Bearer " + target.key.encode()))

    async def open(self) -> Endpoint:
        """Connects and reads model, version and whether it is simulated. Raises BenchError."""
        about = f"{self.target.label} ({self.target.url})"
        try:
            status, body = await self._get("/v1/models")
        except GatewayError as error:
            raise BenchError(f"{about}: {error}; start the server or correct the address") from error
        if status in (401, 403):
            raise BenchError(f"{about}: the key is not accepted; give --key or set OPENAI_API_KEY")
        served = [model.name for model in parse_models(body)] if status == 200 else []
        if not served and not self.target.model:
            raise BenchError(f"{about}: no list of models there (status {status}); is it an OpenAI-compatible server?")
        model = self.target.model
        if not model and len(served) > 1:
            raise BenchError(f"{about}: serves {', '.join(served[:8])}; choose one with --model")
        if model and served and model not in served:
            raise BenchError(f"{about}: no model {model!r}; it serves {', '.join(served[:8])} (--model)")
        self.about = About(model or served[0], *await self._version())
        return self

    async def _version(self) -> tuple[str | None, bool, tuple[float, ...]]:
        """(version, whether it is simulated, its time scales); for a gateway, simulation and scales of its back
        ends."""
        pages: list[bytes] = []
        for path in ("/version", "/gateway/pools"):
            try:
                status, body = await self._get(path)
            except GatewayError:
                continue
            if status == 200:
                pages.append(body)
        version = parse_version(pages[0]) if pages else None
        scales = {float(found) for page in pages for found in _SCALE.findall(page)}
        return version, any(b"simulated" in page for page in pages), tuple(sorted(scales))

    async def ready(self) -> bool:
        """Whether `/health` answers 200."""
        try:
            return (await self._get("/health"))[0] == 200
        except GatewayError:
            return False

    async def ask(
        self,
        body: Mapping[str, Any],
        *,
        tag: str = "",
        due: float | None = None,
        seen: Callable[[float], None] | None = None,
    ) -> Row:
        """Sends one streamed chat request. Failures of the back end are in the row's `error`; none is raised.

        `due` is the clock time from which latency counts: in an open loop a late sender must not hide a wait.
        `seen` is called with the clock time of each chunk on arrival.
        """
        sent = self._clock()
        reading = Reading(self._clock, seen)
        full = {"model": self.about.model, "stream": True, "stream_options": {"include_usage": True}, **body}
        headers = [*self._headers, (b"content-type", b"application/json")]
        if self.target.pool:
            headers.append((b"x-gateway-pool", self.target.pool.encode()))
        error = None
        try:
            answer = await self._origin.send(b"POST", b"/v1/chat/completions", headers, orjson.dumps(full), TIMEOUTS)
            error = await reading.read(answer) or reading.elsewhere(self.target.pool)
        except GatewayError as failure:
            error = failure.code
        row = reading.row(self.target.label, tag, sent if due is None else due, error)
        # A gateway that has just started does not know its back ends' versions yet, but their answers show it.
        if row.simulated and not self.about.simulated:
            self.about = replace(self.about, simulated=True)
        return row

    async def counters(self) -> dict[str, float]:
        """Speculative-decoding counters since the engine's start, of this model where labelled; empty without any."""
        if self.target.settle:
            await asyncio.sleep(self.target.settle)
        try:
            status, page = await self._get("/metrics")
        except GatewayError:
            return {}
        return _summed(self._pages.read(page, 0.0), self.about.model) if status == 200 else {}

    async def drafts(self) -> bool | None:
        """Whether the engine drafts, by its metrics; None where these do not tell, as a gateway's sums over pools."""
        if self.target.pool:
            return None
        try:
            status, page = await self._get("/metrics")
        except GatewayError:
            return None
        return self._pages.read(page, 0.0).drafting if status == 200 else None

    async def aclose(self) -> None:
        await self._origin.aclose()

    async def _get(self, path: str) -> tuple[int, bytes]:
        answer = await self._origin.send(b"GET", path.encode(), self._headers, b"", TIMEOUTS)
        try:
            return answer.status, await whole(answer)
        finally:
            answer.close()


def _summed(page: Snapshot, model: str) -> dict[str, float]:
    readings = [r for r in page.readings if r.drafting]
    own = [r for r in readings if r.key.model == model]
    sums: dict[str, float] = {}
    for reading in own or readings:
        for name, value in reading.counters.items():
            if name.startswith(("draft", "accepted")):
                sums[name] = sums.get(name, 0.0) + value
    return sums


def accepted(rows: list[Row], before: Mapping[str, float], after: Mapping[str, float]) -> Acceptance | None:
    """Acceptance over `rows`: from the answers' own counts if all have them, else from the counters' difference."""
    samples = [row.spec for row in rows if not row.error]
    if samples and all(samples):
        sums: dict[str, float] = {}
        for sample in samples:
            for name, value in counts_of(sample).items() if sample else ():
                sums[name] = sums.get(name, 0.0) + value
        return acceptance(sums)
    return acceptance({name: value - before.get(name, 0.0) for name, value in after.items()})
