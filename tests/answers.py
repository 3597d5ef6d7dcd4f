"""Ready-made answers for `tests.stub.Stub`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence

from tests.stub import Answer, Call


def raw(*pieces: bytes, then_close: bool = False) -> Answer:
    """These very bytes, a system call each."""

    async def answer(call: Call) -> None:
        await call.send(*pieces)
        if then_close:
            call.connection.close()

    return answer


def text(body: bytes, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """A whole answer with its Content-Length."""

    async def answer(call: Call) -> None:
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {status} Stub\r\ncontent-length: {len(body)}\r\n{fields}\r\n".encode()
        await call.send(head + body)

    return answer


def reply(value: object, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """A whole JSON answer."""
    return text(json.dumps(value).encode(), status, [("content-type", "application/json"), *headers])


def completion(prompt_tokens: int, completion_tokens: int) -> Answer:
    """A whole chat completion of the model `m` with this usage."""
    return reply(
        {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }
    )


def stream(*events: bytes, gate: asyncio.Event | None = None, gate_before: int = 1, finish: bool = True) -> Answer:
    """An SSE answer in HTTP chunks, one for each of `events` (raw bytes, line ends and all).

    With `gate`, waits for it before the event of index `gate_before`. Without `finish` it falls silent instead.
    """

    async def answer(call: Call) -> None:
        await call.head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        for index, event in enumerate(events):
            if gate is not None and index == gate_before:
                await gate.wait()
            await call.chunk(event)
        await (call.end() if finish else call.hang())

    return answer


def cut_stream(*events: bytes, with_reset: bool = False) -> Answer:
    """An SSE answer that is cut after its events, by FIN or by RST, before the zero chunk."""

    async def answer(call: Call) -> None:
        await call.head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        await call.chunk(*events)
        (call.connection.reset if with_reset else call.connection.close)()

    return answer


def until_close(body: bytes, headers: Iterable[tuple[str, str]] = ()) -> Answer:
    """A body without a length, ended by the connection's end."""

    async def answer(call: Call) -> None:
        await call.head(200, list(headers))
        await call.send(body)
        call.connection.close()

    return answer


def dribble(whole: bytes) -> Answer:
    """The bytes one at a time."""
    return raw(*(whole[i : i + 1] for i in range(len(whole))))


async def close(call: Call) -> None:
    """Closes before the first byte of an answer."""
    call.connection.close()


async def reset(call: Call) -> None:
    """Resets before the first byte of an answer."""
    call.connection.reset()


async def hang(call: Call) -> None:
    """Never answers; the connection's `closed` is set when the client gives up."""
    await call.hang()


class Flood:
    """An SSE answer of 256 times the same chunk, sent as fast as it is read; `stuck` once it is not."""

    def __init__(self, chunk: bytes) -> None:
        self.sent = 0
        self.stuck = asyncio.Event()
        self._chunk = chunk

    async def __call__(self, call: Call) -> None:
        await call.head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        for _ in range(256):
            sending = asyncio.ensure_future(call.chunk(self._chunk))
            if not (await asyncio.wait((sending,), timeout=1.0))[0]:
                self.stuck.set()
            await sending
            self.sent += 1
        await call.end()
