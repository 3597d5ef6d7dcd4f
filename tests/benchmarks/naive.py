"""The proxy that everybody writes first: a FastAPI route that forwards with one shared httpx client.

python -m tests.benchmarks.naive --port 8082 --upstream http://127.0.0.1:9001
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse


def build(upstream: str) -> FastAPI:
    """The app. Connections are unlimited: httpx's default of 100 would measure a queue."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(base_url=upstream, timeout=None, limits=limits)
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        if not body.get("stream"):
            answer = await client.post("/v1/chat/completions", json=body)
            return JSONResponse(answer.json(), answer.status_code)
        streaming = await client.send(client.build_request("POST", "/v1/chat/completions", json=body), stream=True)

        async def relay() -> AsyncIterator[bytes]:
            try:
                async for chunk in streaming.aiter_raw():
                    yield chunk
            finally:
                await streaming.aclose()

        return StreamingResponse(relay(), streaming.status_code, media_type="text/event-stream")

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="FastAPI and httpx, as one writes it without measuring.")
    parser.add_argument("--port", type=int, default=8082)
    parser.add_argument("--upstream", default="http://127.0.0.1:9001")
    options = parser.parse_args()
    uvicorn.run(build(options.upstream), port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
