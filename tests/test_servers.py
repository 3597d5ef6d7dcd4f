"""The test helper itself: servers that listen when they say so, and are gone afterwards."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.servers import serve, serve_in_thread


async def hello(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_a_served_app_answers_and_is_gone_after_the_block() -> None:
    """Inside the block the app answers; after it the port refuses."""
    async with httpx.AsyncClient() as client:
        async with serve(hello) as base_url:
            answer = await client.get(base_url)

        assert answer.text == "hello"
        with pytest.raises(httpx.ConnectError):
            await client.get(base_url)


def test_a_threaded_server_serves_a_synchronous_client() -> None:
    """The threaded form works without an event loop in the test."""
    with serve_in_thread(hello) as base_url:
        assert httpx.get(base_url).text == "hello"
