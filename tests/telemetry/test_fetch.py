"""Pages over connectors: which connector, and for whom."""

from __future__ import annotations

from gateway.telemetry.fetch import ConnectorFetch
from gateway.upstream.client import Connector, Timeouts
from gateway.upstream.connect import connect
from tests.answers import reply
from tests.stub import Stub


async def test_another_name_is_another_connector() -> None:
    """An address that a reload found under another name is asked under that one: certificates are checked by it."""
    name: str | None = None
    made: list[str | None] = []

    def connect_to(url: str) -> Connector:
        made.append(name)
        return connect(url, host=name)

    async with Stub(reply({})) as stub:
        fetch = ConnectorFetch(connect_to, Timeouts(), lambda url: name)
        for found in ("old.example", "old.example", "new.example"):
            name = found
            await fetch.get(stub.url, "/version", None, 5.0)
        await fetch.aclose()

        assert made == ["old.example", "new.example"]
        assert [request.get(b"host") for request in stub.requests][-1] == b"new.example:%d" % stub.port
