"""Fixtures: connectors of both kinds, on both event loops that the gateway runs on, and places to connect to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop

from gateway.upstream.client import Connector
from gateway.upstream.connect import connect
from tests.stub import Stub

LoopFactories = dict[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> LoopFactories:
    """Transports differ between the loops in what they report and when, so connectors meet both."""
    if item.path.name.startswith("test_connectors"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    async with Stub() as server:
        yield server


Open = Callable[..., Connector]


@pytest.fixture(params=["lean", "httpx"])
async def open_connector(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Makes connectors of one kind: `open_connector(url, **options of connect)`."""
    opened: list[Connector] = []

    def make(url: str, **options: object) -> Connector:
        connector = connect(url, via=request.param, **options)  # type: ignore[arg-type]
        opened.append(connector)
        return connector

    yield make
    for connector in opened:
        await connector.aclose()


@pytest.fixture
async def connector(open_connector: Open, stub: Stub) -> Connector:
    return open_connector(stub.url)


@pytest.fixture
def refused() -> Iterator[str]:
    """A URL that refuses connections for as long as the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
