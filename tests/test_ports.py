"""The ports that tests choose before they are bound."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests.ports import BUS, bindable, free_port, outgoing


def test_no_port_twice_and_none_that_a_connection_could_take() -> None:
    """Two hundred of them are free, differ, and are outside of the range for outgoing connections."""
    ports = [free_port() for _ in range(200)]
    first, last = outgoing()

    assert len(set(ports)) == 200
    assert first < 11_000 or not [port for port in ports if first <= port <= last]
    assert all(map(bindable, ports))


def test_a_second_port_beside_is_free_as_well() -> None:
    """A Redis cluster's bus has its port 10,000 above."""
    port = free_port(beside=BUS)

    assert bindable(port)
    assert bindable(port + BUS)
    assert outgoing()[0] < 21_000 or port + BUS < outgoing()[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "0.0.0.0"])
def test_a_port_with_a_listener_is_not_bindable_and_one_with_an_ended_connection_is(host: str) -> None:
    """TIME_WAIT is on the server's side here, where a bind without SO_REUSEADDR fails."""
    port = free_port()
    with socket.create_server((host, port)) as server:
        assert not bindable(port)
        with socket.create_connection((host, port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""

    assert bindable(port)
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind((host, port))


@pytest.mark.parametrize("beside", [0, BUS])
def test_children_get_others(beside: int) -> None:
    """Ten processes of one parent, twenty ports each, without a word between them; also with second ports."""
    program = f"from tests.ports import free_port; print(*(free_port(beside={beside}) for _ in range(20)))"
    children = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."})
        for _ in range(10)
    ]
    told = [port for child in children for port in child.communicate()[0].split()]

    assert len(told) == len(set(told)) == 200
