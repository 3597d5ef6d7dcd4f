"""Names as sources of endpoints: what is asked, when, and what an answer means."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.discovery.dns import addressed, follow_name, system_resolver
from gateway.discovery.found import Address
from gateway.policy.schema import DnsName
from tests.discovery.names import Heard, Names, soon


@contextlib.asynccontextmanager
async def following(wanted: DnsName, names: Names, heard: Heard, waits: list[float]) -> AsyncIterator[None]:
    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await soon(seconds)

    task = asyncio.create_task(follow_name(wanted, heard, names, sleep, lambda: 1.0))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("url", "answer", "urls"),
    [
        ("http://vllm:8000", ["10.0.0.2", "10.0.0.1", "10.0.0.2"], ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]),
        ("http://vllm:8000/gemma", ["10.0.0.1"], ["http://10.0.0.1:8000/gemma"]),
        ("https://vllm", ["10.0.0.1"], ["https://10.0.0.1"]),
        ("http://vllm:8000", ["fd00::1", "10.0.0.1"], ["http://10.0.0.1:8000", "http://[fd00::1]:8000"]),
        ("http://vllm:8000", ["0.0.0.0", "::", "224.0.0.1"], []),
    ],
)
def test_each_address_is_one_endpoint(url: str, answer: list[str], urls: list[str]) -> None:
    """The name gives way to the address, IPv6 in brackets; none twice, none that is no host; the name is kept."""
    assert addressed(url, answer) == tuple(Address(one, "vllm") for one in urls)


async def test_a_name_is_asked_for_anew() -> None:
    """Every `refresh` seconds the whole set is told; the family and the port are asked for as the policy says."""
    names, heard, waits = Names({"vllm": ["10.0.0.1"]}), Heard(), list[float]()
    async with following(DnsName("http://vllm:8000", 7.0, "ipv4"), names, heard, waits):
        await heard.until_urls("http://10.0.0.1:8000")
        names.answers["vllm"] = ["10.0.0.2", "10.0.0.3"]
        await heard.until_urls("http://10.0.0.2:8000", "http://10.0.0.3:8000")

    assert set(names.asked) == {("vllm", 8000, socket.AF_INET)}
    assert set(waits) == {7.0}


async def test_a_failure_is_told_and_soon_tried_again() -> None:
    """A name that is not found waits 1, 2, 4 seconds and never longer than `refresh`."""
    names, heard, waits = Names(), Heard(), list[float]()
    async with following(DnsName("http://vllm:8000", 5.0), names, heard, waits):
        await heard.until_failed("Name or service not known")
        async with asyncio.timeout(60):
            while len(waits) < 5:
                await asyncio.sleep(0.005)
        names.answers["vllm"] = ["10.0.0.1"]
        await heard.until_urls("http://10.0.0.1:8000")

    assert waits[:5] == [1.0, 2.0, 4.0, 5.0, 5.0]


async def test_an_answer_without_addresses_is_told_as_such() -> None:
    """Nothing is an answer too; whoever listens decides what it means."""
    names, heard = Names({"vllm": []}), Heard()
    async with following(DnsName("http://vllm:8000"), names, heard, []):
        await heard.until(lambda: heard.told == [()])


async def test_the_system_resolves_names() -> None:
    """This machine's own resolver is asked, by name and family."""
    assert "127.0.0.1" in await system_resolver("localhost", 80, socket.AF_INET)
