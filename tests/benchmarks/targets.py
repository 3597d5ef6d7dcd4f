"""What is measured: the gateway, a direct connection, yardsticks of our own, and other routers.

Every router stands in front of the same two upstream ports, has logging off, one worker, and otherwise its defaults.
"""

from __future__ import annotations

import http.client
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.benchmarks import wire
from tests.benchmarks.peers import PEERS
from tests.benchmarks.process import ROOT, Child, free_ports, listens, python_module


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target is to run: its port, the upstreams, a folder for its files, the installed peers."""

    port: int
    upstreams: tuple[str, ...]
    folder: Path
    peers_dir: Path

    def peer(self, name: str, program: str) -> str:
        return str(self.peers_dir.resolve() / name / "bin" / program)

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True, slots=True)
class Target:
    """A program that forwards `/v1/chat/completions`."""

    name: str
    command: Callable[[Place], list[str]]
    headers: Callable[[Place], dict[str, str]] = lambda place: {}
    environment: dict[str, str] = field(default_factory=dict)
    transparent: bool = True
    """Whether a good answer's body has exactly the upstream's length."""
    peer: str | None = None
    patience: float = 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """A target that has answered a request."""

    target: Target
    port: int
    pid: int | None
    headers: dict[str, str]
    start_s: float
    """From the start of the program to its first good answer."""

    @property
    def answer_bytes(self) -> int | None:
        return len(wire.answer_body()) if self.target.transparent else None


def policy(upstreams: tuple[str, ...]) -> str:
    """The smallest policy with a plain and an MTP pool: every feature stays at its default."""
    return (
        "version: 1\npools:\n"
        f'  plain: {{endpoints: ["{upstreams[0]}"]}}\n'
        f'  mtp: {{endpoints: ["{upstreams[-1]}"], speculative: {{method: mtp, tokens: 2}}}}\n'
        f"models:\n  {wire.MODEL}: {{pools: [plain, mtp]}}\n"
    )


def _gateway(place: Place) -> list[str]:
    path = place.write("policy.yaml", policy(place.upstreams))
    return python_module("gateway", "serve", "--policy", path, "--port", str(place.port), "--workers", "1")


def _ours(module: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        name = f"tests.benchmarks.{module}"
        return python_module(name, "--port", str(place.port), "--upstream", place.upstreams[0])

    return command


def _litellm(place: Place) -> list[str]:
    models = "".join(
        f"- model_name: {wire.MODEL}\n  litellm_params:\n    model: openai/{wire.MODEL}\n"
        f"    api_base: {upstream}/v1\n    api_key: none\n"
        for upstream in place.upstreams
    )
    path = place.write("litellm.yaml", f"model_list:\n{models}litellm_settings:\n  telemetry: false\n")
    program = place.peer("litellm", "litellm")
    return [program, "--config", path, "--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1"]


def _vllm_router(routing: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        program, port, metrics = place.peer("vllm-router", "vllm-router"), str(place.port), str(free_ports(1)[0])
        return [program, "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics, "--log-level", "error",
                "--policy", routing, "--worker-urls", *place.upstreams]  # fmt: skip

    return command


def _sglang_router(place: Place) -> list[str]:
    program, metrics = place.peer("sglang-router", "python"), str(free_ports(1)[0])
    return [program, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(place.port),
            "--prometheus-port", metrics, "--log-level", "error", "--policy", "round_robin",
            "--worker-urls", *place.upstreams]  # fmt: skip


def _portkey(place: Place) -> list[str]:
    script = place.peers_dir.resolve() / "portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
    return [shutil.which("node") or "node", str(script), f"--port={place.port}", "--headless"]


def _production_stack(place: Place) -> list[str]:
    count = len(place.upstreams)
    return [place.peer("production-stack", "python"), "-m", "vllm_router.app", "--host", "127.0.0.1",
            "--port", str(place.port), "--service-discovery", "static", "--static-backends", ",".join(place.upstreams),
            "--static-models", ",".join([wire.MODEL] * count), "--routing-logic", "roundrobin",
            "--log-level", "error"]  # fmt: skip


TARGETS = {
    target.name: target
    for target in (
        Target("direct", lambda place: []),
        Target("gateway", _gateway),
        Target("prototype", _ours("prototype")),
        Target("fastapi-httpx", _ours("naive")),
        Target(
            "litellm",
            _litellm,
            environment={
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_LOG": "ERROR",
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            },
            transparent=False,
            peer="litellm",
            patience=180.0,
        ),
        Target("vllm-router", _vllm_router("round_robin"), peer="vllm-router"),
        Target("vllm-router-cache-aware", _vllm_router("cache_aware"), peer="vllm-router"),
        Target("sglang-router", _sglang_router, peer="sglang-router"),
        Target(
            "portkey",
            _portkey,
            headers=lambda place: {
                "x-portkey-provider": "openai",
                "x-portkey-custom-host": f"{place.upstreams[0]}/v1",
                "authorization": "Bearer none",
            },
            transparent=False,
            peer="portkey",
        ),
        Target("production-stack", _production_stack, peer="production-stack", patience=90.0),
    )
}


def versions(names: list[str], peers_dir: Path) -> dict[str, str]:
    """What each target is, and the libraries that ours stand on; "not installed" where that is so."""
    found = {}
    for name in names:
        peer = TARGETS[name].peer
        if peer is not None:
            found[name] = PEERS[peer].version(peers_dir) or "not installed"
    for library in ("mtp-gateway", "uvicorn", "uvloop", "httptools", "fastapi", "starlette", "httpx", "orjson"):
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def answers(port: int, headers: dict[str, str], exact: int | None) -> bool:
    """Whether one request through `port` comes back whole."""
    if not listens(port):
        return False
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        sending = {"content-type": "application/json", **headers}
        connection.request("POST", "/v1/chat/completions", wire.chat_body(1000), sending)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return answer.status == 200 and wire.SENTINEL.encode() in body and exact in (None, len(body))


@contextmanager
def upstream(cores: frozenset[int]) -> Iterator[tuple[str, ...]]:
    """The static upstream as a running process: the URLs of its plain and its MTP port."""
    ports = free_ports(2)
    with tempfile.TemporaryDirectory() as folder:
        command = python_module("tests.benchmarks.upstream", "--ports", *map(str, ports))
        with Child(command, Path(folder) / "log", cores) as child:
            child.wait_until(lambda: all(map(listens, ports)), 20.0)
            yield tuple(f"http://127.0.0.1:{port}" for port in ports)


@contextmanager
def running(
    target: Target, upstreams: tuple[str, ...], peers_dir: Path, cores: frozenset[int] = frozenset()
) -> Iterator[Running]:
    """Starts a target and waits for its first good answer. Raises StartFailed."""
    if target.name == "direct":
        yield Running(target, int(upstreams[0].rpartition(":")[2]), None, {}, 0.0)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Place(free_ports(1)[0], upstreams, Path(folder), peers_dir)
        headers = target.headers(place)
        # A peer sees neither our packages nor the user's settings.
        alone = target.peer is not None
        environment = {**target.environment, **({"HOME": folder} if alone else {})}
        child = Child(target.command(place), place.folder / "log", cores, environment, place.folder if alone else ROOT)
        exact = len(wire.answer_body()) if target.transparent else None
        with child:
            took = child.wait_until(lambda: answers(place.port, headers, exact), target.patience)
            yield Running(target, place.port, child.pid, headers, took)
