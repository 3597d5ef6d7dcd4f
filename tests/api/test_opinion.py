"""The second opinion: asked when it can pay, never waited for too long, never the reason that a request fails."""

from __future__ import annotations

import pytest

from gateway.api.opinion import FAILURES
from tests.answers import hang, reply
from tests.gateways import gateway, two_pools
from tests.raw_client import Answer, ask, chat
from tests.stub import Answer as Script
from tests.stub import Stub

VAGUE = chat("zxcv qwer asdf")
"""Nothing here says how long the answer will be."""


def says(length: object) -> Script:
    return reply({"choices": [{"message": {"content": length}}]})


def policy_for(classifier: Stub, back_end: Stub, below: float, timeout: str) -> str:
    """A MoE model, where drafting is a close call whose loss grows with the length."""
    pools = two_pools(back_end.url, back_end.url).replace("dense", "moe")
    settings = f'{{url: "{classifier.url}", model: tiny, below_confidence: {below}, timeout: {timeout}}}'
    return f"{pools}second_opinion: {settings}\n"


async def asked(classifier: Stub, back_end: Stub, body: object, below: float = 1.0) -> Answer:
    async with gateway(policy_for(classifier, back_end, below, "2s")) as running:
        # The stakes must exceed what asking is known to cost; a fresh desk assumes half of its time limit.
        desk = running.core.active.opinion
        assert desk is not None
        desk.cost = 0.0
        return await ask(running.url, body)


@pytest.mark.parametrize(("length", "pool"), [("a few words", "plain"), ("several pages", "mtp")])
async def test_its_word_becomes_the_expected_length(length: str, pool: str) -> None:
    """An unsure estimate gives way to the classifier's."""
    async with Stub(says(length)) as classifier, Stub(reply({"choices": []})) as back_end:
        got = await asked(classifier, back_end, VAGUE)

        assert got.header("x-gateway-pool") == pool
        assert classifier.requests[0].json()["model"] == "tiny"  # type: ignore[index]


async def test_a_sure_estimate_is_not_doubted() -> None:
    """A cap settles the question; nobody is asked."""
    async with Stub(says("a page")) as classifier, Stub(reply({"choices": []})) as back_end:
        await asked(classifier, back_end, chat("Yes or no?", max_tokens=1), below=0.9)

        assert classifier.requests == []


@pytest.mark.parametrize(
    "answer", [says("nonsense"), says(7), reply({}, 500), reply([1]), hang], ids=["word", "type", "500", "list", "hang"]
)
async def test_whatever_goes_wrong_the_request_is_served(answer: Script) -> None:
    """A classifier that fails costs its time limit at most, and after a few failures nothing."""
    async with (
        Stub(answer) as classifier,
        Stub(reply({"choices": []})) as back_end,
        gateway(policy_for(classifier, back_end, 1.0, "60ms")) as running,
    ):
        desk = running.core.active.opinion
        assert desk is not None
        desk.cost = 0.0
        statuses = [(await ask(running.url, VAGUE)).status for _ in range(FAILURES + 3)]

        assert statuses == [200] * (FAILURES + 3)
        assert running.counted("gateway_second_opinions_total", result="failed") == FAILURES
        assert running.counted("gateway_second_opinions_total", result="answered") == 0
        assert running.in_flight == 0
