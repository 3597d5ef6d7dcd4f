"""A simulated engine in a real one's place before the gateway: the second card of `gpu_arms` where there is only one.

    python -m tests.benchmarks.gpu_twin --port 9003 --model gemma-4-e4b --profile h200/e4b [--k 2]

`gateway sim` with what tells a real engine with random weights from it: answers run to `max_tokens`, and a request
takes `--front` seconds for HTTP, template and tokenizer before the engine has it. It has a CUDA graph for every batch,
as its profile has.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import orjson
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from gateway.simulate.served import FRONT, KV_TOKENS, SEATS

PATH = "/v1/chat/completions"


def fronted(app: ASGIApp, front: float) -> ASGIApp:
    """The app behind `front` seconds, asked for answers of their greatest length."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await app(scope, receive, send)
            return
        whole = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            whole += message.get("body", b"")
            if not message.get("more_body"):
                break
        body = orjson.dumps({**orjson.loads(whole), "ignore_eos": True})
        await asyncio.sleep(front)
        await app(scope, _again(body, receive), send)

    return serve


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once, then what else comes."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def more() -> Message:
        return left.pop() if left else await receive()

    return more


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--profile", default="h200/e4b")
    parser.add_argument("--k", type=int, default=0, help="tokens that it drafts (0: a plain engine)")
    parser.add_argument(
        "--front", type=float, default=FRONT, metavar="S", help="seconds before the engine (%(default)s)"
    )
    options = parser.parse_args(argv)
    settings = SimSettings(
        model=options.model,
        port=options.port,
        k=options.k,
        profile=options.profile,
        max_model_len=4096,
        max_num_seqs=SEATS,
        kv_tokens=KV_TOKENS,
    )
    uvicorn.run(fronted(create_app(settings), options.front), port=options.port, access_log=False, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
