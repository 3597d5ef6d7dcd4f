"""The client's `x-gateway-pool`: a name as people write it, and a hint that never costs an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import completion
from tests.gateways import gateway
from tests.raw_client import ask, chat
from tests.stub import Stub

GOOD = completion(3, 5)
ASKED = chat("Explain the tides in detail.")


def policy(url: str) -> str:
    return f"""
version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}}}
pools:
  e4b-plain: {{endpoints: ["{url}"]}}
  e4b-mtp: {{endpoints: ["{url}"], speculative: {{method: mtp, tokens: 2}}}}
  E4B-MTP: {{endpoints: ["{url}"], speculative: {{method: mtp, tokens: 3}}}}
models:
  m: {{pools: [e4b-plain, e4b-mtp, E4B-MTP]}}
"""


@pytest.mark.parametrize(
    ("hint", "pools"),
    [
        ("MTP", {"e4b-mtp", "E4B-MTP"}),
        ("Plain", {"e4b-plain"}),
        ("E4B-Plain", {"e4b-plain"}),
        ("e4b-mtp", {"e4b-mtp"}),
        ("E4B-MTP", {"E4B-MTP"}),
    ],
)
async def test_a_pool_is_found_whatever_its_case(hint: str, pools: set[str]) -> None:
    """`MTP` is how people write it, and the other hints do not heed case either; an exact spelling goes first."""
    async with Stub(GOOD) as stub, gateway(policy(stub.url)) as running:
        answer = await ask(running.url, ASKED, headers=(("x-gateway-pool", hint),))

    assert answer.header("x-gateway-reason") == "client"
    assert answer.header("x-gateway-pool") in pools


@pytest.mark.parametrize("hint", ["mpt", "e4b", "E4b-Mtp", "計画"])
async def test_a_pool_that_there_is_not_is_ignored_and_explained(hint: str) -> None:
    """A hint never costs an answer, so that pools can be renamed; an explanation names the pools that there are. Nor is
    a guess made between two names that case alone tells apart."""
    headers = (("x-gateway-pool", hint),)
    async with Stub(GOOD) as stub, gateway(policy(stub.url)) as running:
        answer = await ask(running.url, ASKED, headers=headers)
        told: Any = (await ask(running.url, ASKED, "/gateway/explain", headers=headers)).json()

    assert answer.status == 200
    assert answer.header("x-gateway-reason") != "client"
    (line,) = told["ignored"]
    assert line.startswith("x-gateway-pool: there is no pool ")
    assert line.endswith(", only plain, mtp, e4b-plain, e4b-mtp, E4B-MTP")


async def test_what_is_heeded_is_not_told_as_ignored() -> None:
    """An explanation of a hint that works has the public form and no more."""
    async with Stub(GOOD) as stub, gateway(policy(stub.url)) as running:
        told: Any = (
            await ask(running.url, ASKED, "/gateway/explain", headers=(("x-gateway-pool", "E4B-PLAIN"),))
        ).json()

    assert (told["decision"]["pool"], told["decision"]["reason"]) == ("e4b-plain", "client")
    assert told["decision"]["detail"] == "e4b-plain"
    assert "ignored" not in told
