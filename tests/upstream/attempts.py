"""What the tests of the attempt loop share: answers of a back end, and how an opened answer is read to its end."""

from __future__ import annotations

from gateway.types import Result
from gateway.upstream.call import Opened
from gateway.upstream.pools import Pools
from tests.answers import reply, stream

EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
GOOD = stream(EVENT, DONE)
ERROR = b'data: {"error":{"message":"engine died","code":500}}\n\n'
WHOLE = reply({"choices": [{"message": {"content": "hi"}}]})


async def body_of(opened: Opened) -> bytes:
    """The rest of the answer; gives the lease back, as the relay does."""
    pieces = [opened.first or b""]
    while piece := await opened.response.read():
        pieces.append(piece)
    opened.lease.release(Result.OK)
    return b"".join(pieces)


def counts(pools: Pools) -> list[int]:
    """In flight, waiting and eligible, pool after pool: all 0 once nothing is left behind."""
    return [count for pool in pools for count in (pool.in_flight, pool.waiting, pool.eligible)]
