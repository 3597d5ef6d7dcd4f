"""The programs of the hosts run: nginx, three gateways, Redis and simulated back ends, each on a host of its own."""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import redis

from tests.benchmarks.hosts_network import Network
from tests.benchmarks.process import ROOT, python_module
from tests.redis_server import redis_binary

MODEL = "m"
GATEWAYS = ("gateway-1", "gateway-2", "gateway-3")
PLAIN, MTP = ("plain-1", "plain-2"), ("mtp-1", "mtp-2")
SPARE = "plain-3"
"""A back end that joins while everything runs."""
HOSTS = ("client", "proxy", "redis", *GATEWAYS, *PLAIN, *MTP, SPARE)
POLICY = f"""version: 1
server: {{grace: 30s}}
defaults: {{health: {{interval: 1s}}, retry: {{attempts: 3, budget: 0.5}}}}
pools:
  plain: {{endpoints: [{{dns: "http://plain.pools:8000", refresh: 500ms}}]}}
  mtp: {{endpoints: [{{dns: "http://mtp.pools:8000", refresh: 500ms}}], speculative: {{method: mtp, tokens: 2}}}}
models:
  {MODEL}: {{pools: [plain, mtp], architecture: dense}}
"""
NGINX = """user root;
worker_processes 1;
error_log error.log warn;
pid nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include {config};
}}
"""
CONFIG = ROOT / "deploy/nginx/mtp-gateway.conf"
WITHIN = 60.0


class Missing(Exception):
    """A program that the run needs is not here."""


class Program:
    """One program on one host: started, told to stop, started anew."""

    def __init__(self, network: Network, host: str, argv: Sequence[str], log: Path) -> None:
        self.host = host
        self._argv = network.command(host, argv)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

    def stop(self) -> int:
        """SIGTERM, and the exit status that follows."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(WITHIN)
        self._process = None
        return status

    def end(self) -> None:
        """At once, whatever it is at."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class Fleet:
    """Everything, started and ready. This thread is on the host `client` within the context."""

    def __init__(self, folder: Path, scale: float) -> None:
        if shutil.which("nginx") is None:
            raise Missing("there is no nginx: apt-get install nginx-light")
        self.folder = folder
        self.network = Network(HOSTS)
        (folder / "policy.yaml").write_text(POLICY)
        (folder / "nginx.conf").write_text(NGINX.format(config=CONFIG))
        address = self.network.address
        serve = ["--policy", str(folder / "policy.yaml"), "--redis-url", f"redis://{address('redis')}:6379/0"]
        serve += ["--port", "8080", "--log-level", "info"]
        sim = ["--port", "8000", "--served-name", MODEL, "--time-scale", str(scale), "--shutdown-timeout", "30"]
        commands: dict[str, list[str]] = {
            "redis": [redis_binary(), "--bind", address("redis"), "--protected-mode", "no", "--save", ""],
            "proxy": ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"],
            **{host: python_module("gateway", "serve", "--host", address(host), *serve) for host in GATEWAYS},
        }
        for host in (*PLAIN, *MTP, SPARE):
            drafts = ["--speculative", "mtp", "--k", "2"] if host in MTP else []
            commands[host] = python_module("gateway", "sim", "--host", address(host), *sim, *drafts)
        self.programs = {
            host: Program(self.network, host, argv, folder / f"{host}.log") for host, argv in commands.items()
        }
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"http://{self.network.address('proxy')}"

    def __enter__(self) -> Self:
        with self._stack:
            before = self._stack.enter_context(Path("/proc/self/ns/net").open())
            self._stack.enter_context(self.network)
            self.network.resolve({"plain.pools": PLAIN, "mtp.pools": MTP})
            self.network.enter("client")
            self._stack.callback(_back_to, before.fileno())
            for host in ("redis", *PLAIN, *MTP, *GATEWAYS):
                self._start(host)
            for host in GATEWAYS:
                self.wait(partial(self.ready, host, len(PLAIN)), f"{host} is not ready")
            # nginx resolves its upstreams once, at its start.
            self._start("proxy")
            self.wait(lambda: self._answers(f"{self.url}/health"), "nginx does not answer")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _start(self, host: str) -> None:
        self._stack.callback(self.programs[host].end)
        self.programs[host].start()

    def start_spare(self) -> None:
        self._start(SPARE)
        self.wait(lambda: self._answers(f"http://{self.network.address(SPARE)}:8000/health"), f"{SPARE} is not well")

    def ready(self, gateway: str, endpoints: int, pool: str = "plain") -> bool:
        """Whether it says so, knows the other two, and has so many endpoints up in that pool."""
        base = f"http://{self.network.address(gateway)}:8080"
        try:
            answer = httpx.get(f"{base}/ready", timeout=5, trust_env=False)
            if answer.status_code != 200 or answer.json()["state"]["replicas"] != len(GATEWAYS):
                return False
            pools = httpx.get(f"{base}/gateway/pools", timeout=5, trust_env=False).json()["pools"]
        except httpx.TransportError:
            return False
        rows = next(row["endpoints"] for row in pools if row["pool"] == pool)
        return len(rows) == endpoints and all(row["up"] for row in rows)

    def served(self, host: str) -> int:
        """Requests that the gateways have sent to this back end since their own starts."""
        url = f"http://{self.network.address(host)}:8000"
        total = 0
        for gateway in GATEWAYS:
            base = f"http://{self.network.address(gateway)}:8080"
            pools = httpx.get(f"{base}/gateway/pools", timeout=5, trust_env=False).json()["pools"]
            total += sum(row["started"] for pool in pools for row in pool["endpoints"] if row["url"] == url)
        return total

    def left_over(self) -> dict[str, int]:
        """What is still counted as running, by who counts it."""
        found = {"gateways": 0, "redis": 0, "back ends": 0}
        for gateway in GATEWAYS:
            page = httpx.get(f"http://{self.network.address(gateway)}:8080/metrics", timeout=20, trust_env=False).text
            names = ("gateway_in_flight{", "gateway_waiting{")
            found["gateways"] += round(sum(float(x.split()[-1]) for x in page.splitlines() if x.startswith(names)))
        with redis.Redis(host=self.network.address("redis")) as client:
            blobs = client.hgetall("gateway:views")
        assert isinstance(blobs, dict)
        for blob in blobs.values():
            view = json.loads(blob[16:])
            found["redis"] += sum(count for count, _ in view["endpoints"].values()) + sum(view["keys"].values())
        for host in (*PLAIN, *MTP):
            stats = httpx.get(f"http://{self.network.address(host)}:8000/sim/stats", timeout=10, trust_env=False).json()
            found["back ends"] += int(stats["running"]) + int(stats["waiting"]) + int(stats["open"])
        return found

    def wait(self, holds: Callable[[], bool], problem: str) -> None:
        """Raises RuntimeError with the problem when it lasts too long."""
        until = time.monotonic() + WITHIN
        while not holds():
            if time.monotonic() > until:
                raise RuntimeError(f"{problem}; see {self.folder}")
            time.sleep(0.1)

    def _answers(self, url: str) -> bool:
        try:
            return httpx.get(url, timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False


def _back_to(namespace: int) -> None:
    ctypes.CDLL(None).setns(namespace, 0)
