"""Hosts that are network namespaces of this machine: each with an address and a name of its own, on one bridge.

The bridge is in a namespace too, and none of them has a way out, so that nothing but these hosts can be reached. Names
are resolved by a hosts file for each (`/etc/netns/NAME/hosts`, which `ip netns exec` mounts), edited while they run:
that is the network's DNS. Needs root and `ip`. Everything is taken away in the end, also after a failure or a signal.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

NETWORK = "10.213.77"
CLONE_NEWNET = 0x40000000
HOSTS_FILES = Path("/etc/netns")
NAMESPACES = Path("/var/run/netns")


class NoNetwork(Exception):
    """Namespaces can't be made here; the message says what is missing."""


class Network:
    """Hosts by name, `network.address(name)` each. Leaving the context takes them away."""

    def __init__(self, hosts: Sequence[str]) -> None:
        # A host's place in the list gives its address; the process's number makes its namespace's name unique.
        self._numbers = {host: number for number, host in enumerate(hosts, start=1)}
        self._stack = ExitStack()
        self._names: dict[str, list[str]] = {}

    def address(self, host: str) -> str:
        return f"{NETWORK}.{self._numbers[host]}"

    def namespace(self, host: str) -> str:
        return f"gwb{os.getpid()}-{host}"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """The command line of a program on that host, which also gets the host's name."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]
        return ["ip", "netns", "exec", self.namespace(host), *named, *argv]

    def __enter__(self) -> Self:
        for program in ("ip", "unshare", "hostname"):
            if shutil.which(program) is None:
                raise NoNetwork(f"there is no `{program}` (iproute2, util-linux, hostname)")
        if os.geteuid() != 0:
            raise NoNetwork("network namespaces need root")
        with self._stack:
            self._make("switch")
            self._ip("-n", self.namespace("switch"), "link", "add", "bridge", "type", "bridge")
            self._ip("-n", self.namespace("switch"), "link", "set", "bridge", "up")
            for host in self._numbers:
                self._make(host)
                self._connect(host)
            self.resolve({})
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def resolve(self, names: Mapping[str, Sequence[str]]) -> None:
        """From now on these names, besides the hosts' own, have the addresses of these hosts."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.address(host)} {host}" for host in self._numbers]
        lines += [f"{self.address(host)} {name}" for name, hosts in names.items() for host in hosts]
        text = ("\n".join(lines) + "\n").encode()
        for host in self._numbers:
            # In place: the file is mounted by its inode.
            file = os.open(HOSTS_FILES / self.namespace(host) / "hosts", os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(file, text, 0)
                os.ftruncate(file, len(text))
            finally:
                os.close(file)

    def enter(self, host: str) -> None:
        """Makes this thread one of the host's: its sockets are there from now on. Raises NoNetwork."""
        with (NAMESPACES / self.namespace(host)).open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise NoNetwork(f"setns: {os.strerror(ctypes.get_errno())}")

    def _make(self, host: str) -> None:
        name = self.namespace(host)
        self._ip("netns", "add", name)
        self._stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        folder = HOSTS_FILES / name
        folder.mkdir(parents=True)
        self._stack.callback(_remove, folder)

    def _connect(self, host: str) -> None:
        name, port = self.namespace(host), f"port{self._numbers[host]}"
        switch = self.namespace("switch")
        self._ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
        self._ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        self._ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("-n", name, "link", "set", device, "up")

    def _ip(self, *words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoNetwork(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if HOSTS_FILES.exists() and not any(HOSTS_FILES.iterdir()):
        HOSTS_FILES.rmdir()
