"""The load generator: one process, raw asyncio on httptools, which checks every answer.

    python -m tests.benchmarks.load '{"port": 8080, "connections": 32, "seconds": 3, ...}'     (fields: `Job`)

Requests are a closed loop: each connection sends its next request when the last one is answered, or, with `pace_s`,
no sooner than that long after the last was sent. Streams are started evenly over their own length, so that they do
not tick together, and start again when they end. After `warmup_s` it notes the CPU time of the target's processes
and starts to count; whatever ends inside the window counts. The result is one JSON object on stdout, `Result`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from array import array
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import httptools
import uvloop

from tests.benchmarks import wire
from tests.benchmarks.process import cpu_seconds, family
from tests.benchmarks.stats import percentile


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement of one target."""

    port: int
    connections: int
    seconds: float = 3.0
    requests: int | None = None
    """End after this many answers, even before `seconds`."""
    at_least: int = 0
    """Go on past `seconds`, at most four times as long, until this many answers are in: slow targets need it."""
    warmup_s: float = 0.5
    body_bytes: int = 1000
    headers: dict[str, str] = field(default_factory=dict)
    stream: dict[str, int] | None = None
    """Fields of `wire.StreamShape`; None asks for whole answers."""
    pace_s: float = 0.0
    answer_bytes: int | None = None
    """The exact length of a good answer's body; None where a target may write the JSON anew."""
    target_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Times in milliseconds. For streams `latency` is the way to the upstream and back of the first token."""

    completed: int
    errors: dict[str, int]
    window_s: float
    latency_p50: float
    latency_p99: float
    latency_max: float
    tokens: int
    delay_p50: float
    delay_p99: float
    delay_max: float
    target_cpu_s: float
    load_cpu_s: float


class Run:
    """What all connections of a job share: the window, the samples, the errors."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.shape = wire.StreamShape(**job.stream) if job.stream else None
        self.request = wire.post("127.0.0.1", job.port, wire.chat_body(job.body_bytes, self.shape), job.headers)
        self.number = time.time_ns() % 10**15
        self.loop = asyncio.get_running_loop()
        self.counting = False
        self.ended = asyncio.Event()
        self.latencies = array("q")
        self.delays = array("q")
        self.errors: Counter[str] = Counter()

    def next_request(self) -> list[bytes]:
        self.number += 1
        return self.request.parts(self.number)

    def answered(self, latency_ns: int) -> None:
        if self.counting:
            self.latencies.append(latency_ns)
            if self.job.requests is not None and len(self.latencies) >= self.job.requests:
                self.ended.set()

    def failed(self, what: str) -> None:
        """Errors of the warm-up count as well: a target has no licence to fail there."""
        if not self.ended.is_set():
            self.errors[what] += 1


class Client(asyncio.Protocol):
    """One connection that sends a request, waits for its answer, checks it and goes on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.transport: asyncio.Transport | None = None
        self.sent_ns = 0
        self.waiting = False
        self.body = bytearray()
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.waiting:
            self.run.failed("connection closed before the answer's end")
        if not self.run.ended.is_set():
            # A target that cuts connections gets a pause instead of a storm.
            self.run.loop.call_later(0.2 if self.waiting else 0.0, reconnect, self.run, type(self))

    def send(self) -> None:
        if self.run.ended.is_set() or self.transport is None:
            return
        self.waiting = True
        self.body.clear()
        self.sent_ns = time.monotonic_ns()
        self.transport.writelines(self.run.next_request())

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.run.failed("not HTTP")
            self.waiting = False
            if self.transport is not None:
                self.transport.abort()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        now = time.monotonic_ns()
        self.waiting = False
        status = self.parser.get_status_code()
        wrong = f"status {status}" if status != 200 else self.fault()
        if wrong is None:
            self.run.answered(self.latency_ns(now))
        else:
            self.run.failed(wrong)
        if not self.parser.should_keep_alive():
            if self.transport is not None:
                self.transport.close()
            return
        rest = self.run.job.pace_s - (now - self.sent_ns) / 1e9
        if wrong is not None:
            rest = max(rest, 0.01)
        if rest > 0:
            self.run.loop.call_later(rest, self.send)
        else:
            self.send()

    def fault(self) -> str | None:
        """What is wrong with a finished answer of status 200."""
        expected = self.run.job.answer_bytes
        if expected is not None and len(self.body) != expected:
            return f"body of {len(self.body)} bytes instead of {expected}"
        return None if wire.SENTINEL.encode() in self.body else "not the upstream's answer"

    def latency_ns(self, now: int) -> int:
        return now - self.sent_ns


class StreamClient(Client):
    """The same for streams: keeps only what a token's stamp needs, never the text."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.seen = 0
        self.first_ns = 0

    def send(self) -> None:
        self.seen = 0
        self.first_ns = 0
        super().send()

    def on_body(self, body: bytes) -> None:
        now = time.monotonic_ns()
        self.body += body
        end = 0
        for stamp in wire.STAMP.finditer(self.body):
            end = stamp.end()
            written = int(stamp[1])
            if self.seen == 0 and stamp[2] is not None:
                self.first_ns = (int(stamp[2]) - self.sent_ns) + (now - written)
            self.seen += 1
            if self.run.counting:
                self.run.delays.append(now - written)
        # The rest may hold half a stamp, or the end mark.
        del self.body[: max(end, len(self.body) - 512)]

    def fault(self) -> str | None:
        assert self.run.shape is not None
        if self.seen != self.run.shape.tokens:
            return f"{self.seen} of {self.run.shape.tokens} tokens"
        if self.first_ns == 0:
            return "first token without its arrival time"
        return None if b"data: [DONE]" in self.body else "stream without [DONE]"

    def latency_ns(self, now: int) -> int:
        return self.first_ns


def reconnect(run: Run, kind: type[Client]) -> None:
    """Opens a connection in the background; a refusal is an error and is tried again."""

    async def connect() -> None:
        try:
            await run.loop.create_connection(lambda: kind(run), "127.0.0.1", run.job.port)
        except OSError as error:
            run.failed(f"connect: {error.strerror or error}")
            run.loop.call_later(0.2, reconnect, run, kind)

    if not run.ended.is_set():
        task = run.loop.create_task(connect())
        task.add_done_callback(lambda done: done.exception())


async def measure(job: Job) -> Result:
    """Runs the job to its end. Errors are in the result, none is raised."""
    run = Run(job)
    kind = StreamClient if run.shape else Client
    ramp = run.shape.tokens * run.shape.interval_us / 1e6 if run.shape else 0.0
    for place in range(job.connections):
        run.loop.call_later(place * ramp / job.connections, reconnect, run, kind)
    await asyncio.sleep(job.warmup_s + ramp)
    pids = family(job.target_pid) if job.target_pid is not None else []
    cpu, load_cpu, start = cpu_seconds(pids), time.process_time(), time.monotonic()
    run.counting = True
    for patience in (job.seconds, *([job.seconds / 10] * 30)):
        try:
            async with asyncio.timeout(patience):
                await run.ended.wait()
        except TimeoutError:
            if len(run.latencies) >= job.at_least:
                break
    run.ended.set()
    run.counting = False
    window = time.monotonic() - start
    target_cpu, load_used = cpu_seconds(pids) - cpu, time.process_time() - load_cpu
    latencies, delays = sorted(run.latencies), sorted(run.delays)
    return Result(
        completed=len(latencies),
        errors=dict(run.errors),
        window_s=window,
        latency_p50=percentile(latencies, 0.5) / 1e6,
        latency_p99=percentile(latencies, 0.99) / 1e6,
        latency_max=percentile(latencies, 1.0) / 1e6,
        tokens=len(delays),
        delay_p50=percentile(delays, 0.5) / 1e6,
        delay_p99=percentile(delays, 0.99) / 1e6,
        delay_max=percentile(delays, 1.0) / 1e6,
        target_cpu_s=target_cpu,
        load_cpu_s=load_used,
    )


def main() -> None:
    fields: dict[str, Any] = json.loads(sys.argv[1])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asdict(uvloop.run(measure(Job(**fields))))))


if __name__ == "__main__":
    main()
