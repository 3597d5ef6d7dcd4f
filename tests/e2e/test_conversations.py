"""Conversations: later turns go back to the endpoint that has their prefix cached."""

from __future__ import annotations

from contextlib import AsyncExitStack

from tests.answers import reply
from tests.gateways import gateway, one_pool
from tests.raw_client import ask
from tests.stub import Stub

USAGE = {"prompt_tokens": 900, "completion_tokens": 20}


async def test_the_turns_of_a_tool_loop_meet_one_endpoint() -> None:
    """ROUTE-07: of six endpoints one serves all five turns of a session, and another session may meet another."""
    async with AsyncExitStack() as stack:
        answer = reply({"choices": [{"finish_reason": "stop"}], "usage": USAGE})
        stubs = [await stack.enter_async_context(Stub(answer)) for _ in range(6)]
        running = await stack.enter_async_context(gateway(one_pool(*(stub.url for stub in stubs))))
        for session in ("a", "b", "c"):
            turns: list[dict[str, str]] = [{"role": "user", "content": "Read the file. " + "x" * 2000}]
            before = [len(stub.requests) for stub in stubs]
            for turn in range(5):
                headers = (("x-gateway-session", session),)
                got = await ask(running.url, {"model": "m", "messages": turns}, headers=headers)
                assert got.status == 200
                turns += [{"role": "assistant", "content": f"step {turn}"}, {"role": "user", "content": "Go on."}]

            served = [len(stub.requests) - n for stub, n in zip(stubs, before, strict=True)]
            assert sorted(served) == [0, 0, 0, 0, 0, 5]
