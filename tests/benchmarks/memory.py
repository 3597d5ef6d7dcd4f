"""Whether the gateway's memory stays flat: over many requests, over one long stream, and per open stream.

    python -m tests.benchmarks.memory [--json] [--target gateway] [--requests 100000] [--stream-mb 100] [--streams 5000]

Three parts, each against a fresh process; RSS of the process tree is sampled a hundred times a second.

1. Requests at 32 connections. The first fifth warms caches and the allocator; flat means that what follows adds
   less than 5 MB. The slope is the least-squares line through the rest.
2. One stream of many megabytes, once to a reader that takes all there is and once to one that takes 20 MB a second
   from an upstream that is faster: a proxy without back-pressure would hold the difference. Flat means that the peak
   stays within 5 MB of the start, whatever the length.
3. Open streams, one token a second each: memory per stream is the growth over the process before them; token
   delays are arrival minus the stamp in the token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from tests.benchmarks import wire
from tests.benchmarks.load import Job, Result
from tests.benchmarks.overhead import finish_load, start_load
from tests.benchmarks.peers import DEFAULT_DIR
from tests.benchmarks.process import Cores, StartFailed, family, rss_bytes
from tests.benchmarks.stats import middle, slope
from tests.benchmarks.targets import TARGETS, Running, running, upstream

_FLAT_MB = 5.0
_WARM = 0.2
_PAD = 4096
_SLOW_BYTES_PER_S = 20_000_000


@dataclass(slots=True)
class Series:
    """RSS in MB over seconds since the start of the sampling."""

    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def start(self) -> float:
        return self.points[0][1]

    @property
    def peak(self) -> float:
        return max(mb for _, mb in self.points)

    def after(self, share: float) -> list[tuple[float, float]]:
        """The points after the first `share` of the time."""
        begin = self.points[-1][0] * share
        return [point for point in self.points if point[0] >= begin]

    def thinned(self, count: int = 20) -> list[tuple[float, float]]:
        step = max(1, len(self.points) // count)
        return [(round(at, 2), round(mb, 2)) for at, mb in self.points[::step]]


@contextmanager
def sampled(pid: int) -> Iterator[Series]:
    """Fills the series from a thread of its own until the context ends."""
    series, ended, began, pids = Series(), threading.Event(), time.monotonic(), family(pid)

    def sample() -> None:
        while True:
            series.points.append((time.monotonic() - began, rss_bytes(pids) / 1e6))
            if ended.wait(0.01):
                return

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield series
    finally:
        ended.set()
        thread.join()


def _pid(target: Running) -> int:
    assert target.pid is not None, "a direct connection has no process"
    return target.pid


def many_requests(target: Running, count: int, cores: Cores) -> dict[str, Any]:
    """RSS while `count` requests pass."""
    job = Job(target.port, 32, 3600.0, count, headers=target.headers, answer_bytes=target.answer_bytes)
    with sampled(_pid(target)) as series:
        result = finish_load(start_load(job, cores))
    rest = series.after(_WARM)
    growth = middle([mb for _, mb in rest[-50:]]) - middle([mb for _, mb in rest[:50]])
    per_1000 = slope(rest) * 1000 * series.points[-1][0] / max(1, result.completed)
    return {
        "requests": result.completed,
        "errors": result.errors,
        "rss_start_mb": series.start,
        "rss_peak_mb": series.peak,
        "growth_after_warmup_mb": growth,
        "kb_per_1000_requests": per_1000 * 1000,
        "flat": growth <= _FLAT_MB and not result.errors,
        "series": series.thinned(),
    }


class Reader(asyncio.Protocol):
    """Asks for one stream and throws it away, no faster than it is told to."""

    def __init__(self, request: bytes, limit: float | None) -> None:
        self._request, self._limit = request, limit
        self._began = time.monotonic()
        self._transport: asyncio.Transport | None = None
        self._tail = b""
        self.received = 0
        self.whole = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self._tail = (self._tail + data)[-64:]
        if b"[DONE]" in self._tail and self._tail.endswith(b"0\r\n\r\n"):
            self.whole = True
            self._finish()
        elif self._limit is not None and self._transport is not None:
            ahead = self.received / self._limit - (time.monotonic() - self._began)
            if ahead > 0.01:
                self._transport.pause_reading()
                asyncio.get_running_loop().call_later(ahead, self._transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def long_stream(target: Running, megabytes: int, limit: float | None) -> dict[str, Any]:
    """RSS while one stream of `megabytes` passes to a reader of `limit` bytes a second."""
    shape = wire.StreamShape(megabytes * 1_000_000 // _PAD, 0, _PAD)
    request = b"".join(wire.post("127.0.0.1", target.port, wire.chat_body(1000, shape), target.headers).parts(1))

    async def read() -> Reader:
        loop = asyncio.get_running_loop()
        transport, reader = await loop.create_connection(lambda: Reader(request, limit), "127.0.0.1", target.port)
        try:
            await asyncio.wait_for(reader.ended, 600)
        finally:
            transport.close()
        return reader

    with sampled(_pid(target)) as series:
        reader = asyncio.run(read())
    return {
        "received_mb": reader.received / 1e6,
        "whole": reader.whole,
        "seconds": series.points[-1][0],
        "rss_start_mb": series.start,
        "rss_peak_mb": series.peak,
        "growth_mb": series.peak - series.start,
        "flat": reader.whole and series.peak - series.start <= _FLAT_MB,
        "series": series.thinned(),
    }


def open_streams(target: Running, count: int, cores: Cores) -> dict[str, Any]:
    """Memory and token delays with `count` streams open at once."""
    shape = wire.StreamShape(15, 1_000_000)
    job = Job(target.port, count, 5.0, warmup_s=2.0, headers=target.headers, stream=asdict(shape))
    with sampled(_pid(target)) as series:
        result: Result = finish_load(start_load(job, cores))
    return {
        "streams": count,
        "errors": result.errors,
        "tokens": result.tokens,
        # A stream is silent for one interval before its first token.
        "tokens_expected": round(count * result.window_s * shape.tokens / (shape.tokens + 1)),
        "kb_per_stream": (series.peak - series.start) * 1000 / count,
        "token_delay_p50_ms": result.delay_p50,
        "token_delay_p99_ms": result.delay_p99,
        "token_delay_max_ms": result.delay_max,
        "rss_start_mb": series.start,
        "rss_peak_mb": series.peak,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Memory of the gateway over requests, a long stream, open streams.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--target", default="gateway", choices=[name for name in TARGETS if name != "direct"])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--stream-mb", type=int, default=100)
    parser.add_argument("--streams", type=int, default=5_000)
    parser.add_argument("--peers-dir", type=Path, default=DEFAULT_DIR)
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    cores, console = Cores.split(), Console(stderr=True)
    parts: dict[str, Callable[[Running], dict[str, Any]]] = {
        "requests": lambda target: many_requests(target, options.requests, cores),
        "long_stream": lambda target: long_stream(target, options.stream_mb, None),
        "long_stream_slow_reader": lambda target: long_stream(target, options.stream_mb, _SLOW_BYTES_PER_S),
        "open_streams": lambda target: open_streams(target, options.streams, cores),
    }
    outcome: dict[str, dict[str, Any]] = {}
    try:
        with upstream(cores.load) as upstreams:
            for name, part in parts.items():
                console.print(name, style="dim")
                with running(TARGETS[options.target], upstreams, options.peers_dir, cores.target) as target:
                    outcome[name] = part(target)
    except StartFailed as error:
        print(f"{options.target}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(outcome, indent=1) if options.json else _text(options.target, outcome))
    failed = any(part.get("errors") or part.get("flat") is False for part in outcome.values())
    return 1 if failed else 0


def _text(target: str, outcome: dict[str, dict[str, Any]]) -> str:
    lines = [f"# Memory of {target}"]
    for name, part in outcome.items():
        lines += ["", f"## {name}", ""]
        for key, value in part.items():
            if key == "series":
                lines.append("- RSS MB at seconds: " + ", ".join(f"{at:.1f}: {mb:.1f}" for at, mb in value))
            else:
                lines.append(f"- {key}: {value:,.2f}" if isinstance(value, float) else f"- {key}: {value}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
