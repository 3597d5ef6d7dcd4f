"""A reload while a request waits to be picked for."""

from __future__ import annotations

import socket

import pytest

from gateway.api.core import activate
from gateway.app import adopt
from gateway.epp import addresses
from gateway.policy.load import parse_policy
from gateway.upstream import prefill
from tests.epp.dataplane import destination, held_behind, one_endpoint, picker


async def test_a_request_decided_anew_gives_its_first_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """RELOAD-05: its pool went while its prompt was held, and with it the address of the engine that it was for."""
    monkeypatch.setattr(prefill, "SLACK", 1e6)
    monkeypatch.setattr(addresses, "LOOK_SECONDS", 0.01)
    resolved, resolve = list[object](), socket.getaddrinfo

    def seen(host: str, port: int, *more: object, **rest: object) -> object:
        resolved.append(port)
        return resolve(host, port, *more, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", seen)
    policy = one_endpoint(pool=", limits: {prefill: 300}", endpoint='"http://localhost:8000"')
    async with picker(policy) as running, running.exchange() as first, running.exchange() as second:
        endpoint = await held_behind(running, first, second)
        renamed = parse_policy(policy.replace("only", "renamed").replace("8000", "9000"), "policy.yaml", {})
        adopt(running.core, activate(renamed, 2, running.core.learned.routing))
        # The second look begins when the first has ended.
        await running.until(lambda: resolved.count(9000) > 1)
        await first.response_head(kind="text/event-stream")
        await first.answer()
        await first.response_body(b'data: {"choices": [{"delta": {"content": "."}}]}\n\n')

        assert destination(await second.answer()).endswith(":9000")
        assert (endpoint.in_flight, running.in_flight) == (1, 1)
