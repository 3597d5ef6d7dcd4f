"""Which endpoints may be picked, in which order, and what is said when none may."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse

from gateway.epp import addresses
from gateway.policy.load import parse_policy
from gateway.types import Result
from gateway.upstream import prefill
from tests.epp.dataplane import CHAT, STREAM, held_behind, one_endpoint, picker, put, two_pools

FULL = ", limits: {in_flight: 1, queue: 1, queue_wait: 0s}"


def refusal(answer: ProcessingResponse) -> tuple[int, str, dict[str, str]]:
    """Status, the error's code and the headers of an immediate answer."""
    assert answer.WhichOneof("response") == "immediate_response"
    made = answer.immediate_response
    headers = {row.header.key: row.header.raw_value.decode() for row in made.headers.set_headers}
    return made.status.code, json.loads(made.body)["error"]["code"], headers


async def test_endpoints_to_fall_back_on_follow_in_order() -> None:
    """As many as the policy repeats requests, the own pool's first, each once."""
    async with picker(two_pools(pools=", retry: {attempts: 3}")) as running, running.exchange() as one:
        first, *others = (await one.sent()).split(",")
        plain = {"10.0.0.1:8000", "10.0.0.2:8000"}
        assert first in plain
        assert others == [*(plain - {first}), "10.0.0.3:8000"]


async def test_without_retries_there_is_one_endpoint() -> None:
    """`retry.attempts: 1` names nothing to fall back on."""
    async with picker(two_pools(pools=", retry: {attempts: 1}")) as running, running.exchange() as one:
        assert "," not in await one.sent()


async def test_what_needs_another_body_or_key_is_nothing_to_fall_back_on() -> None:
    """The bytes are on their way when Envoy falls back: another served name or key could not be put in."""
    named = two_pools(pools=", model: gemma4, retry: {attempts: 3}")
    async with picker(named) as running, running.exchange() as one:
        assert "10.0.0.3:8000" not in await one.sent()
    keyed = one_endpoint(
        endpoint='{url: "http://10.0.0.1:8000", api_key: a}, {url: "http://10.0.0.2:8000", api_key: b}'
    )
    async with picker(keyed) as running, running.exchange() as one:
        assert "," not in await one.sent()


async def test_the_endpoint_that_served_gets_the_request() -> None:
    """Envoy fell back: the count moves to the endpoint that it used, and the first one has failed."""
    async with picker(two_pools()) as running, running.exchange() as one:
        first, second = (await one.sent(STREAM)).split(",")
        await one.response_head(kind="text/event-stream", served=second)
        await one.answer()
        flying = {e.url: e.in_flight for pool in running.core.pools for e in pool.endpoints}
        failures = {e.url: e.breaker.consecutive for pool in running.core.pools for e in pool.endpoints}

        assert (flying[f"http://{first}"], flying[f"http://{second}"]) == (0, 1)
        assert failures[f"http://{first}"] == 1
        await one.response_body(b"data: [DONE]\n\n", ended=True)
        outcome = await running.outcome()
        assert (outcome.endpoint, outcome.attempts) == (f"http://{second}", 2)
        assert running.in_flight == 0


async def test_the_endpoint_that_served_may_have_gone_meanwhile() -> None:
    """A reload takes away what Envoy falls back on, between the decision and the answer: the answer passes."""
    async with picker(two_pools()) as running, running.exchange() as one:
        second = (await one.sent(STREAM)).split(",")[1]
        left = two_pools().replace(f'"http://{second}"', '"http://10.0.0.4:8000"')
        running.core.pools.apply(parse_policy(left, "policy.yaml", {}))
        await one.response_head(kind="text/event-stream", served=second)
        assert (await one.answer()).WhichOneof("response") == "response_headers"
        await one.response_body(b'data: {"choices": [{"delta": {"content": "."}}]}\n\ndata: [DONE]\n\n', ended=True)
        outcome = await running.outcome()
        assert (outcome.result, outcome.endpoint) == (Result.OK, f"http://{second}")
        assert running.in_flight == 0


async def test_a_prompt_waits_until_the_engine_gets_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`limits.prefill`: the pick is held until the first token of the prompt before it."""
    monkeypatch.setattr(prefill, "SLACK", 1e6)
    policy = one_endpoint(pool=", limits: {prefill: 300}")
    async with picker(policy) as running, running.exchange() as first, running.exchange() as second:
        endpoint = await held_behind(running, first, second)
        await first.response_head(kind="text/event-stream")
        await first.answer()
        await first.response_body(b'data: {"choices": [{"delta": {"content": "."}}]}\n\n')

        assert (await second.answer()).WhichOneof("response") == "request_headers"
        assert endpoint.held == 0


async def test_a_name_may_lose_its_address_while_a_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Envoy is never sent nowhere: the request is refused, and its place given back."""
    monkeypatch.setattr(addresses, "LOOK_SECONDS", 0.01)
    policy = one_endpoint(pool=FULL.replace("queue_wait: 0s", "queue_wait: 30s"), endpoint='"http://localhost:8000"')
    async with picker(policy) as running, running.exchange() as first, running.exchange() as second:
        await first.sent()
        await second.request_head()
        await second.request_body(CHAT)
        await running.until(lambda: running.core.pools["only"].waiting == 1)
        asked = asyncio.Event()

        def unknown(*_: object, **__: object) -> object:
            running_loop.call_soon_threadsafe(asked.set)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        running_loop = asyncio.get_running_loop()
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        await asyncio.wait_for(asked.wait(), 60)
        asked.clear()
        await asyncio.wait_for(asked.wait(), 60)
        await first.response_head(ended=True)
        await first.answer()
        assert refusal(await second.answer())[:2] == (503, "nothing_available")
        await running.until(lambda: running.in_flight == 0)


async def test_labels_are_decoded_where_envoy_carries_the_bytes() -> None:
    """`decisions: true` sends nothing from here, where only Envoy talks to back ends for clients."""
    choice = b'{"model":"m","messages":[{"role":"user","content":"?"}],"structured_outputs":{"choice":["a","b"]}}'
    came = asyncio.Event()

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        writer.close()

    engine = await asyncio.start_server(connected, "127.0.0.1", 0)
    address = f"127.0.0.1:{engine.sockets[0].getsockname()[1]}"
    policy = one_endpoint().replace("pools: [only]", "pools: [only], decisions: true").replace("10.0.0.1:8000", address)
    async with engine, picker(policy) as running, running.exchange() as one:
        assert await one.sent(choice) == address
    assert not came.is_set()


async def test_a_name_that_is_none_by_its_form_stops_no_other() -> None:
    """What cannot be looked up at all is an endpoint without an address, and the others are still looked up."""
    known = addresses.Addresses(lambda: [f"http://{'a' * 64}.example:80", "http://localhost:80"])
    await known.look()
    assert known.of(f"http://{'a' * 64}.example:80") is None
    assert known.of("http://localhost:80") in ("127.0.0.1:80", "[::1]:80")


async def test_only_endpoints_of_the_subset_are_picked() -> None:
    """The data plane's hint binds, for the first endpoint and for those to fall back on."""
    async with picker(two_pools()) as running:
        for subset in (["10.0.0.2:8000"], ["10.0.0.2:8000", "10.9.9.9:8000"], "10.0.0.2:8000"):
            async with running.exchange() as one:
                assert await one.sent(subset=subset) == "10.0.0.2:8000"


@pytest.mark.parametrize("subset", [[], ["10.9.9.9:8000"]])
async def test_a_subset_without_a_usable_endpoint_is_503(subset: list[str]) -> None:
    """As the protocol has it, for an empty list too."""
    async with picker(two_pools()) as running, running.exchange() as one:
        await one.request_head(subset=subset)
        await one.request_body(CHAT)
        status, code, _ = refusal(await one.answer())
        assert (status, code) == (503, "nothing_available")
        assert (await running.outcome()).result is Result.REJECTED


async def test_no_endpoint_up_is_503_with_a_time_to_come_back() -> None:
    """Every endpoint is known to be down."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        for pool in running.core.pools:
            for endpoint in pool.endpoints:
                endpoint.probed(False)
        await one.request_head()
        await one.request_body(CHAT)
        status, code, headers = refusal(await one.answer())
        assert (status, code) == (503, "nothing_available")
        assert int(headers["retry-after"]) >= 1
        assert headers["content-type"] == "application/json"


async def test_full_endpoints_are_429() -> None:
    """They work, and have no place within the policy's patience: the request is dropped for load."""
    async with picker(one_endpoint(pool=FULL)) as running, running.exchange() as first, running.exchange() as second:
        await first.sent()
        await second.request_head()
        await second.request_body(CHAT)
        status, code, headers = refusal(await second.answer())
        assert (status, code) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) >= 1


async def test_a_request_waits_for_a_place_and_gets_it() -> None:
    """The queue is the proxy's: when the first request ends, the second goes."""
    patient = FULL.replace("queue_wait: 0s", "queue_wait: 30s")
    async with picker(one_endpoint(pool=patient)) as running, running.exchange() as first, running.exchange() as second:
        await first.sent()
        await second.request_head()
        await second.request_body(CHAT)
        await running.until(lambda: running.core.pools["only"].waiting == 1)
        await first.response_head(ended=True)
        await first.answer()

        assert (await second.answer()).WhichOneof("response") == "request_headers"


async def test_keys_and_limits_are_the_proxys() -> None:
    """A missing key is 401, an exceeded limit 429, and this gateway's keys and hints go no further."""
    access = "access: {keys: [{name: alpha, env: ALPHA, requests_per_minute: 1}]}"
    keyed = {"authorization": "Bearer secret", "x-gateway-task": "chat", "x-gateway-inference-objective": "o"}
    async with picker(one_endpoint(access), {"ALPHA": "secret"}) as running:
        async with running.exchange() as one:
            await one.request_head()
            assert refusal(await one.answer())[:2] == (401, "invalid_api_key")
        async with running.exchange() as one:
            await one.request_head(headers=keyed)
            await one.request_body(CHAT)
            mutation = (await one.answer()).request_headers.response.header_mutation
            assert list(mutation.remove_headers) == ["authorization", "x-gateway-task"]
        async with running.exchange() as one:
            await one.request_head(headers=keyed)
            await one.request_body(CHAT)
            assert refusal(await one.answer())[0] == 429


async def test_an_endpoints_own_key_is_put_in() -> None:
    """vLLM's `--api-key` is the endpoint's, never the client's."""
    policy = one_endpoint(endpoint='{url: "http://10.0.0.1:8000", api_key: engine}')
    async with picker(policy) as running, running.exchange() as one:
        await one.request_head(headers={"authorization": "Bearer mine", "x-api-key": "mine"})
        await one.request_body(CHAT)
        answer = await one.answer()
        assert put(answer)["authorization"] == "Bearer engine"
        assert list(answer.request_headers.response.header_mutation.remove_headers) == ["x-api-key"]


async def test_an_unknown_model_or_path_is_refused_here() -> None:
    """No endpoint is asked; a path that the proxy does not have is none here."""
    async with picker(one_endpoint()) as running:
        async with running.exchange() as one:
            await one.request_head()
            await one.request_body(CHAT.replace(b'"m"', b'"other"'))
            assert refusal(await one.answer())[:2] == (404, "model_not_found")
        for path in ("/sleep", "/v1/load_lora_adapter"):
            async with running.exchange() as one:
                await one.request_head(path)
                assert refusal(await one.answer())[:2] == (404, "not_found")


async def test_a_name_is_resolved_and_one_that_does_not_is_never_picked() -> None:
    """Envoy takes addresses only."""
    policy = two_pools().replace("10.0.0.1", "localhost").replace("10.0.0.2", "no-such-pod.invalid")
    policy = policy.replace("10.0.0.3", "also-not.invalid")
    async with picker(policy) as running, running.exchange() as one:
        assert await one.sent() in ("127.0.0.1:8000", "[::1]:8000")


async def test_endpoints_that_were_found_are_picked_by_their_address() -> None:
    """A `dns` entry of the policy stands for pods that come and go."""
    async with picker(one_endpoint(endpoint='{dns: "http://localhost:8000", family: ipv4}')) as running:
        await running.until(lambda: running.core.pools["only"].endpoints)
        async with running.exchange() as one:
            assert await one.sent() == "127.0.0.1:8000"


async def test_a_stored_response_is_asked_for_where_it_is() -> None:
    """An answer's id is kept with its endpoint, and the next turn goes there."""
    answer = b'{"id":"resp_1","object":"response","model":"m","status":"completed","output":[]}'
    async with picker(two_pools()) as running:
        async with running.exchange() as one:
            home = (await one.sent(b'{"model":"m","input":"hello"}', path="/v1/responses")).split(",")[0]
            await one.response_head()
            await one.response_body(answer, ended=True)
            await one.answer()
            await one.answer()
            assert await one.over()
        for _ in range(4):
            async with running.exchange() as one:
                assert await one.sent(path="/v1/responses/resp_1", method="GET", ended=True) == home
            await asyncio.sleep(0)
