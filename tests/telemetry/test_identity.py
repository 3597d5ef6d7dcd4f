"""Who a back end says it is, and what a page is fetched with."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.telemetry.fetch import FetchFailed
from gateway.telemetry.identity import Identity, ServedModel, parse_models, parse_version
from tests.servers import serve
from tests.telemetry.scraping import answering, connector_fetch, httpx_fetch


@pytest.mark.parametrize("fetch", [httpx_fetch, connector_fetch])
async def test_no_server_is_a_reason(fetch: Any) -> None:
    """A refused connection is a failure with a word for it, not an exception of the client's."""
    async with serve(answering({}), lifespan="off") as url:
        pass
    async with fetch() as pages:
        with pytest.raises(FetchFailed, match=r"ConnectError|connect_failed"):
            await pages.get(url, "/metrics", None, 2.0)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"data":{}}', b'{"data":[1,{"id":5},{}]}', b"\xff"])
def test_an_identity_of_nonsense_is_empty(body: bytes) -> None:
    """Any answer to `/version` and `/v1/models` is read, or not, without an error."""
    assert (parse_version(body), parse_models(body)) == (None, ())


def test_an_unknown_name_gets_the_shortest_context() -> None:
    """A gate on the context length never lets through more than some model here can take."""
    models = (ServedModel("a", None, None, 4096), ServedModel("b", None, "a", 8192), ServedModel("c", None, None, None))

    assert Identity(None, models).context_length("b") == 8192
    assert Identity(None, models).context_length("x") == 4096
    assert Identity().context_length("x") is None
