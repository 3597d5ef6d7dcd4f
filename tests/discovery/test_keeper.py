"""What is kept of the sources' answers, and the pools that are made of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.discovery.found import Address, Listener
from gateway.discovery.keeper import NOTHING_FOUND, Discovery, counts
from gateway.policy.load import parse_policy
from gateway.policy.schema import Policy, Where

KEY = "key-of-an-engine"


class Word:
    """Follows nothing by itself: a test speaks in the place of each source."""

    def __init__(self) -> None:
        self.listeners: dict[str, Listener] = {}
        self.ended: list[str] = []

    async def __call__(self, where: Where, listener: Listener) -> None:
        self.listeners[str(where)] = listener
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended.append(str(where))

    def found(self, where: str, *hosts: str) -> None:
        self.listeners[where].found(tuple(Address(f"http://{host}:8000", "vllm") for host in hosts))


def policy(*entries: str) -> Policy:
    listed = ", ".join(entries)
    return parse_policy(f"pools: {{p: {{endpoints: [{listed}]}}}}\nmodels: {{m: {{pools: [p]}}}}", "p.yaml", {"K": KEY})


def urls(filled: Policy) -> list[str]:
    return [endpoint.url for endpoint in filled.pools["p"].endpoints]


class Run:
    """A running discovery, the live policy, and what it had the pools be."""

    def __init__(self, first: Policy) -> None:
        self.word = Word()
        self.discovery = Discovery(self.word)
        self.applied: list[list[str]] = []
        self.policy = first
        self.fill(first)
        self.discovery.on_change = lambda: self.applied.append(urls(self.fill(self.policy)))

    def fill(self, policy: Policy) -> Policy:
        self.policy = policy
        return self.discovery.fill(policy)

    @property
    def urls(self) -> list[str]:
        return urls(self.fill(self.policy))


@asynccontextmanager
async def running(first: Policy) -> AsyncIterator[Run]:
    run = Run(first)
    task = asyncio.create_task(run.discovery.run())
    await settled()
    try:
        yield run
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_policy_without_sources_is_left_alone() -> None:
    """The very policy comes back."""
    given = policy('"http://a:1"')

    assert Discovery(Word()).fill(given) is given


async def test_found_endpoints_join_the_listed_ones() -> None:
    """Each address is an endpoint with its source's weight, key and slice; one that is listed too stays as listed."""
    given = policy('"http://10.0.0.9:8000"', '{dns: "http://vllm:8000", weight: 2, api_key: "${K}", slice: s}')
    async with running(given) as run:
        run.word.found("http://vllm:8000", "10.0.0.1", "10.0.0.9")
        listed, found = run.fill(given).pools["p"].endpoints

    assert run.applied == [["http://10.0.0.9:8000", "http://10.0.0.1:8000"]]
    assert (listed.weight, found.weight, found.slice) == (1, 2, "s")
    assert found.api_key is not None
    assert found.api_key.get_secret_value() == KEY
    assert run.discovery.host_of("http://10.0.0.1:8000") == "vllm"
    assert run.discovery.host_of("http://10.0.0.9:8000") is None
    assert run.word.ended == ["http://vllm:8000"]


async def test_a_failing_source_takes_nothing_away(caplog: pytest.LogCaptureFixture) -> None:
    """Failing, or finding nothing, keeps the last set; it is logged once and told until a good answer comes."""
    async with running(policy('{dns: "http://vllm:8000"}')) as run:
        discovery = run.discovery
        assert discovery.problems() == []
        run.word.found("http://vllm:8000", "10.0.0.1")
        with caplog.at_level(logging.INFO, "gateway.discovery"):
            for _ in range(3):
                run.word.listeners["http://vllm:8000"].failed("no answer")
            (told,) = discovery.problems()
            run.word.found("http://vllm:8000")
            (empty,) = discovery.problems()
            assert run.urls == ["http://10.0.0.1:8000"]
            assert counts(discovery.states()) == {"p": (1, 1)}
            run.word.found("http://vllm:8000", "10.0.0.1")

    assert (told.pool, told.source, told.endpoints, told.problem) == ("p", "http://vllm:8000", 1, "no answer")
    assert empty.problem == NOTHING_FOUND
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert discovery.problems() == []
    assert counts(discovery.states()) == {"p": (1, 0)}
    assert len(run.applied) == 1


async def test_a_source_in_the_place_of_endpoints_takes_over_when_it_answers() -> None:
    """RELOAD-05: what a reload puts a source in the place of serves on until that has answered, then it goes."""
    before, after = policy('"http://a:8000"', '"http://b:8000"'), policy('"http://b:8000"', '{dns: "http://vllm:8000"}')
    async with running(before) as run:
        first = urls(run.fill(after))
        await settled()
        run.word.listeners["http://vllm:8000"].failed("no answer")
        failed = run.urls
        run.word.found("http://vllm:8000", "10.0.0.1")
        found = run.urls

    assert first == failed == ["http://b:8000", "http://a:8000"]
    assert found == ["http://b:8000", "http://10.0.0.1:8000"]


async def test_what_a_source_found_survives_a_reload() -> None:
    """A source that both policies have is not asked anew and loses nothing; one that went is not asked any more."""
    before = policy('{dns: "http://one:8000"}', '{dns: "http://two:8000"}')
    after = policy('{dns: "http://one:8000", weight: 3}', '{dns: "http://three:8000"}')
    async with running(before) as run:
        run.word.found("http://one:8000", "10.0.0.1")
        run.word.found("http://two:8000", "10.0.0.2")
        listener = run.word.listeners["http://one:8000"]
        filled = run.fill(after)
        await settled()
        run.word.found("http://one:8000", "10.0.0.3")
        moved = run.urls
        run.word.found("http://three:8000", "10.0.0.4")
        last = run.urls
        assert run.word.ended == ["http://two:8000"]

    assert urls(filled) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert filled.pools["p"].endpoints[0].weight == 3
    # Only what lost its source is kept for the one that has not answered.
    assert moved == ["http://10.0.0.3:8000", "http://10.0.0.2:8000"]
    assert last == ["http://10.0.0.3:8000", "http://10.0.0.4:8000"]
    assert run.word.listeners["http://one:8000"] is listener


async def test_pods_have_no_name() -> None:
    """A pod's own address is what its `Host` says."""
    async with running(policy("{kubernetes: {selector: app=vllm, port: 8000}}")) as run:
        run.word.listeners["pods app=vllm"].found((Address("http://10.0.0.1:8000"),))

        assert run.discovery.host_of("http://10.0.0.1:8000") is None
        assert run.urls == ["http://10.0.0.1:8000"]


async def test_a_fault_inside_does_not_end_discovery(caplog: pytest.LogCaptureFixture) -> None:
    """A mistake of ours is logged and told as a problem, and what was found stays."""

    async def broken(where: Where, listener: Listener) -> None:
        listener.found((Address("http://10.0.0.1:8000"),))
        raise RuntimeError("a mistake")

    given = policy('{dns: "http://vllm:8000"}')
    discovery = Discovery(broken)
    discovery.fill(given)
    task = asyncio.create_task(discovery.run())
    await settled()
    (told,) = discovery.problems()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert (told.endpoints, told.problem) == (1, "RuntimeError")
    assert "discovery task failed" in caplog.text
