"""Ports for what must know its port before it binds it: child processes, and addresses where nothing may listen.

Why not "bind port 0, look, close": the system gives such a port from the range that it also takes the ports of outgoing
connections from. Between the look and the use any connection of any program may get it, and the bind fails with
"Address already in use"; rarely, so in a suite of thousands of tests some day. These ports are outside of that range:
only who asks for one by its number gets it. A server that binds port 0 itself and tells what it got needs none of this.

Parallel processes begin at places far apart, by the golden section of their ids: ids that follow each other, as those
of a suite and its children do, are the furthest from each other. Each port is checked just before it is handed out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_LOWEST = 10_000
"""Below are the ports that programs have by habit, as databases and development servers do."""
_ROOM = 1_000
"""Ports that are enough for a process."""
BUS = 10_000
"""How far above its port a Redis cluster's node has a second one. So much room is left above where there is room: a
process that had to skip ports for want of it would come to where others are."""
_DEFAULT_RANGE = (32_768, 60_999)
_GOLDEN = 0.618033988749895


def free_port(*, beside: int = 0) -> int:
    """A port that nobody listens on at any IPv4 address; no two calls of a process get the same one.

    `beside`: a distance, at most `BUS`, at which the server binds a second port; that one is free as well. Raises
    RuntimeError when the process has used all of them up.
    """
    for port in _untried(os.getpid()):
        if bindable(port) and bindable(port + beside):
            return port
    raise RuntimeError("no port is left outside of the range for outgoing connections")


def outgoing() -> tuple[int, int]:
    """The first and the last port that the system gives to outgoing connections and to whoever binds port 0."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return _DEFAULT_RANGE
    return int(first), int(last)


def bindable(port: int) -> bool:
    """Whether a server can listen on the port now. As servers do it, with SO_REUSEADDR: connections that ended a short
    while ago (TIME_WAIT) hold a port back from everybody else."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError:
            return False
    return True


@cache
def _untried(process: int) -> Iterator[int]:
    """Each port once. By process, so that a forked child does not walk on where its parent does."""
    first, last = outgoing()
    ports = range(_LOWEST, first - BUS)
    if len(ports) < _ROOM:
        ports = range(_LOWEST, first)
    if len(ports) < _ROOM:
        ports = range(last + 1, 65_536) if last < 64_000 else range(1_024, max(first, _LOWEST))
    start = int(len(ports) * (process * _GOLDEN % 1))
    return iter([*ports[start:], *ports[:start]])
