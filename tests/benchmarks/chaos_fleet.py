"""The processes of the chaos run: simulated back ends, a redis-server, and one gateway of several workers."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import redis

from tests.benchmarks.chaos_backend import MODEL
from tests.benchmarks.process import ROOT, Child, bound_to_parent, free_ports, listens, python_module
from tests.redis_server import RedisServer

PLAIN, MTP = 3, 3
BACKENDS = PLAIN + MTP
KEY = "chaos-clients-key"
START_SECONDS = 60.0


class Backend:
    """One simulated back end in a process of its own, so that signals to it are real."""

    def __init__(self, number: int, port: int, folder: Path, scale: float) -> None:
        self.number = number
        self.port = port
        self.k = 0 if number < PLAIN else 2
        self.journal = folder / f"backend-{number}.journal"
        self._log = folder / f"backend-{number}.log"
        self._scale = scale
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        arguments = ["--port", self.port, "--k", self.k, "--scale", self._scale, "--journal", self.journal]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                python_module("tests.benchmarks.chaos_backend", *map(str, arguments)),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                preexec_fn=bound_to_parent(signal.SIGKILL),
            )

    def wait(self) -> None:
        """Until it listens. Raises RuntimeError."""
        wait_until(lambda: listens(self.port), f"back end {self.number} does not listen; see {self._log}")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, which a stopped process obeys too."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def faults(self, switches: Mapping[str, Any]) -> None:
        """Replaces all fault switches; an empty mapping heals."""
        httpx.post(f"{self.url}/sim/faults", json=dict(switches), timeout=60, trust_env=False).raise_for_status()

    def open_requests(self) -> int:
        stats = httpx.get(f"{self.url}/sim/stats", timeout=60, trust_env=False).json()
        return int(stats["running"]) + int(stats["waiting"]) + int(stats["open"])


class Fleet:
    """Everything that the clients talk to. Leaving the context ends all of it."""

    def __init__(self, folder: Path, *, workers: int, scale: float, settings: str) -> None:
        """`settings`: the policy's `defaults`, in flow style."""
        self.folder = folder
        self.policy = folder / "policy.yaml"
        self.log = folder / "gateway.log"
        ports = free_ports(BACKENDS + 1)
        self.port = ports[BACKENDS]
        self.backends = [Backend(number, ports[number], folder, scale) for number in range(BACKENDS)]
        self.redis = RedisServer()
        self._workers = workers
        self._settings = settings
        self._stack = ExitStack()
        self._gateway: Child | None = None

    @property
    def urls(self) -> list[str]:
        return [backend.url for backend in self.backends]

    @property
    def gateway_pid(self) -> int:
        assert self._gateway is not None
        return self._gateway.pid

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self.redis)
            for backend in self.backends:
                self._stack.callback(backend.kill)
                backend.start()
            for backend in self.backends:
                backend.wait()
            self.write_policy(self.text())
            options = ["--policy", self.policy, "--port", self.port, "--workers", self._workers]
            options += ["--redis-url", self.redis.url, "--log-level", "warning"]
            self._gateway = Child(
                python_module("gateway", "serve", *map(str, options)),
                self.log,
                environment={"CHAOS_KEY": KEY},
            )
            self._stack.enter_context(self._gateway)
            self._gateway.wait_until(lambda: listens(self.port) and self._ready(), START_SECONDS)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/ready", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def text(self, *, weights: Sequence[int] = (1,) * BACKENDS, without: int | None = None, rule: str = "") -> str:
        """A policy: the back ends with these weights, perhaps without one of them, and perhaps a rule."""
        rows = [
            f'{{url: "{url}", weight: {weight}}}' if number != without else None
            for number, (url, weight) in enumerate(zip(self.urls, weights, strict=True))
        ]
        plain = ", ".join(row for row in rows[:PLAIN] if row)
        mtp = ", ".join(row for row in rows[PLAIN:] if row)
        return f"""version: 1
server: {{grace: 10s}}
defaults: {self._settings}
pools:
  plain: {{endpoints: [{plain}]}}
  mtp: {{endpoints: [{mtp}], speculative: {{method: mtp, tokens: 2}}}}
models:
  {MODEL}: {{pools: [plain, mtp], architecture: dense}}
routing: {{objective: expected_time, rules: [{rule}]}}
access:
  keys: [{{name: chaos, env: CHAOS_KEY, requests_per_minute: 1000000, tokens_per_minute: 1000000000, in_flight: 20000}}]
"""

    def write_policy(self, text: str) -> None:
        """Replaces the file as configuration tools do: beside it, then renamed over."""
        draft = self.policy.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.policy)

    def in_flight(self) -> int:
        """The sum of the in-flight gauges, over all workers."""
        page = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=20, trust_env=False).text
        return round(sum(float(x.rpartition(" ")[2]) for x in page.splitlines() if x.startswith("gateway_in_flight{")))

    def redis_counters(self) -> int:
        """Requests in flight as all workers' views in Redis tell it, by endpoint and by key, added up."""
        with redis.Redis(port=self.redis.port) as client:
            blobs = client.hgetall("gateway:views")
        assert isinstance(blobs, dict)
        total = 0
        for blob in blobs.values():
            view = json.loads(blob[16:])
            total += sum(count for count, _ in view["endpoints"].values()) + sum(view["keys"].values())
        return total

    def tracebacks(self) -> int:
        """Failures inside the gateway, as its log shows them."""
        return self.log.read_text(errors="replace").count("Traceback (most recent call last)")


def wait_until(holds: Callable[[], bool], problem: str, patience: float = START_SECONDS) -> None:
    """Polls. Raises RuntimeError with the problem when patience ends."""
    until = time.monotonic() + patience
    while not holds():
        if time.monotonic() > until:
            raise RuntimeError(problem)
        time.sleep(0.05)


def settings_text(first_byte: float) -> str:
    """What the policy sets besides its pools, as the operator of a service with short answers would; all else is the
    default. Seconds."""
    return (
        f"{{timeouts: {{first_byte: {first_byte:g}s, idle: 10s, total: 2m}}, health: {{interval: 2s}}, "
        "retry: {attempts: 4, budget: 0.5}, breaker: {stall: 5s}}"
    )
