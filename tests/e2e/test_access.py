"""Keys and limits on the request path: who gets in, how much, and what is never told."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from gateway.access.ticket import Limit
from tests.answers import close, hang, reply
from tests.gateways import gateway, one_pool, two_pools
from tests.ports import free_port
from tests.raw_client import ask, chat, connected, get
from tests.stub import Answer, Stub

ENV = {"ALPHA": "alpha-secret", "BETA": "beta-secret", "OPS": "ops-secret"}
ALPHA = (("authorization", "Bearer alpha-secret"),)
BETA = (("x-api-key", "beta-secret"),)
OK = reply({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})


def access(alpha: str = "", beta: str = "", operator: str = ", operator_key: {env: OPS}") -> str:
    keys = f"{{name: alpha, env: ALPHA{alpha}}}, {{name: beta, env: BETA{beta}}}"
    return f"access: {{keys: [{keys}]{operator}}}\n"


@pytest.mark.parametrize("headers", [(), (("authorization", "Bearer wrong"),), (("authorization", "alpha-secret"),)])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/tokenize"])
async def test_no_one_gets_in_without_a_key(path: str, headers: tuple[tuple[str, str], ...]) -> None:
    """401 in the SDK's shape; nothing is sent upstream and the credential is not repeated."""
    async with Stub(OK) as stub, gateway(one_pool(stub.url) + access(), ENV) as running:
        got = await ask(running.url, chat(), path, headers=headers)

        assert (got.status, got.error["code"]) == (401, "invalid_api_key")
        assert b"secret" not in got.body
        assert stub.requests == []
        listed = await get(running.url, "/v1/models")
        assert listed.status == 401
        assert got.header("www-authenticate") == listed.header("www-authenticate") == "Bearer"
        assert (await get(running.url, "/health")).status == 200


async def test_a_key_gets_in_and_stays_here() -> None:
    """HEADER-05: the client's key is the gateway's and never a back end's; the log and metrics know its name only."""
    async with Stub(OK) as stub, gateway(one_pool(stub.url) + access(), ENV) as running:
        for headers in (ALPHA, BETA):
            assert (await ask(running.url, chat(), headers=headers)).status == 200

        assert b"secret" not in b"".join(value for request in stub.requests for _, value in request.headers)
        assert b"secret" not in (await get(running.url, "/metrics")).body


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/models/nope"])
@pytest.mark.parametrize("asked", ["nope", "secret-mode"])
async def test_an_unknown_model_is_answered_with_the_keys_own(path: str, asked: str) -> None:
    """What other keys may use is not told, neither as a list nor as a near miss; the key's own models are."""
    policy = one_pool("http://127.0.0.1:1").replace("models:", "models:\n  secret-model: {pools: [plain]}")
    async with gateway(policy + access(alpha=", models: [m]"), ENV) as running:
        if path.endswith("nope"):
            got = await ask(running.url, b"", path.replace("nope", asked), method="GET", headers=ALPHA)
        else:
            got = await ask(running.url, chat(model=asked), path, headers=ALPHA)
        assert got.status == 404
        assert b"secret-model" not in got.body
        assert b"`m`" in got.body

        other = await ask(running.url, chat(model=asked), headers=BETA)
        assert b"secret-model" in other.body


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_passed_on_request_without_a_model_goes_to_the_keys_own(method: str) -> None:
    """Where no model is named, the first that the key may use serves; another's is neither asked nor told."""
    async with Stub(OK) as secret, Stub(OK) as own:
        policy = two_pools(secret.url, own.url).replace("[plain, mtp]", "[mtp]")
        policy = policy.replace("models:", "models:\n  secret-model: {pools: [plain]}")
        async with gateway(policy + access(alpha=", models: [m]"), ENV) as running:
            body: object = {"input": "x"} if method == "POST" else b""
            got = await ask(running.url, body, "/v1/embeddings", method=method, headers=ALPHA)

        assert got.status == 200
        assert (len(secret.requests), len(own.requests)) == (0, 1)


async def test_the_sdk_raises_its_authentication_error() -> None:
    """401 and 403 arrive as the SDK's own exceptions."""
    policy = one_pool("http://127.0.0.1:1").replace("models:", "models:\n  other: {pools: [plain]}")
    async with gateway(policy + access(alpha=", models: [m]"), ENV) as running:
        for key, model, error in (
            ("nope", "m", openai.AuthenticationError),
            ("alpha-secret", "other", openai.PermissionDeniedError),
        ):
            async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key=key, max_retries=0) as client:
                with pytest.raises(error):
                    await client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])


async def test_a_key_is_held_to_its_pools_whatever_yields() -> None:
    """A key's pools are a wall: no gate, hint or failure opens another one."""
    async with Stub(OK) as plain, Stub(OK) as mtp:
        policy = two_pools(plain.url, mtp.url) + access(alpha=", pools: [mtp]")
        async with gateway(policy, ENV) as running:
            refused_there = await ask(running.url, chat(min_p=0.1), headers=ALPHA)
            hinted = await ask(running.url, chat("yes or no?"), headers=(*ALPHA, ("x-gateway-pool", "plain")))

            assert (refused_there.status, hinted.status) == (200, 200)
            assert len(mtp.requests) == 2
            assert plain.requests == []


async def test_the_nth_request_of_a_minute_passes_and_the_next_does_not() -> None:
    """RETRY-06: exactly the limit passes; then 429 at once with Retry-After, never retried inside."""
    async with Stub(OK) as stub, gateway(one_pool(stub.url) + access(", requests_per_minute: 3"), ENV) as running:
        got = [await ask(running.url, chat(), headers=ALPHA) for _ in range(5)]
        other = await ask(running.url, chat(), headers=BETA)

        assert [answer.status for answer in got] == [200, 200, 200, 429, 429]
        assert got[0].header("x-ratelimit-remaining-requests") == "2"
        assert 0 < int(got[3].header("retry-after") or 0) <= 62
        assert got[3].error["type"] == "rate_limit_error"
        assert other.status == 200
        assert len(stub.requests) == 4


async def test_tokens_are_charged_as_counted_by_the_back_end() -> None:
    """An estimate is taken at the door and settled by usage at the end."""
    async with Stub(OK) as stub, gateway(one_pool(stub.url) + access(", tokens_per_minute: 1000"), ENV) as running:
        await ask(running.url, chat(max_tokens=20), headers=ALPHA)
        later = await ask(running.url, chat(max_tokens=1), headers=ALPHA)

        # 15 tokens of the first, and the second's own estimate of a few.
        assert 950 < int(later.header("x-ratelimit-remaining-tokens") or 0) < 985


async def test_requests_at_a_time_are_limited_and_given_back_however_they_end() -> None:
    """CANCEL-03 for keys: a client that leaves gives its slot back."""
    policy = access(", in_flight: 1")
    async with Stub(hang) as stub, gateway(one_pool(stub.url) + policy, ENV) as running:
        for _ in range(3):
            async with connected(running.url) as client:
                await client.send("/v1/chat/completions", json.dumps(chat()).encode(), headers=ALPHA)
                seen = len(stub.requests)
                await stub.until(lambda seen=seen: len(stub.requests) > seen)  # type: ignore[misc]
                assert (await ask(running.url, chat(), headers=ALPHA)).status == 429
            await running.until(lambda: running.in_flight == 0 and not running.core.limits.in_flight())


async def test_operators_pages_need_the_operators_key() -> None:
    """A client's key does not open them; with client keys and no operator key they are closed."""
    ops = (("authorization", "Bearer ops-secret"),)
    paths = ("/gateway/policy", "/gateway/pools")
    async with gateway(one_pool("http://127.0.0.1:1") + access(), ENV) as running:
        for path in paths:
            with_key = await ask(running.url, b"", path, method="GET", headers=ops)
            assert with_key.status == 200
            assert b"secret" not in with_key.body
            assert (await get(running.url, path)).status == 401
            assert (await ask(running.url, b"", path, method="GET", headers=ALPHA)).status == 401
        assert (await ask(running.url, chat(), "/gateway/explain", headers=ALPHA)).status == 401
    async with gateway(one_pool("http://127.0.0.1:1") + access(operator=""), ENV) as running:
        assert (await ask(running.url, b"", paths[0], method="GET", headers=ops)).status == 403


async def test_a_reload_takes_a_key_away(tmp_path: object) -> None:
    """Keys follow the policy like everything else."""
    from pathlib import Path

    file = Path(str(tmp_path)) / "policy.yaml"
    async with Stub(OK) as stub:
        file.write_text(one_pool(stub.url) + access())
        async with gateway(file, ENV) as running:
            assert (await ask(running.url, chat(), headers=BETA)).status == 200
            file.write_text(one_pool(stub.url) + "access: {keys: [{name: alpha, env: ALPHA}]}\n")
            await running.until(lambda: running.core.active.version == 2)
            await asyncio.sleep(0)

            assert (await ask(running.url, chat(), headers=BETA)).status == 401
            assert (await ask(running.url, chat(), headers=ALPHA)).status == 200


async def charged(url: str, body: object, extra: str = ", retry: {attempts: 1}, breaker: {failures: 0}") -> int:
    """Tokens that a request which fails has cost its key."""
    policy = one_pool(url, extra=extra).replace("pools: [plain]", "pools: [plain], decisions: true")
    async with gateway(policy + access(", tokens_per_minute: 1000"), ENV) as running:
        assert (await ask(running.url, body, headers=ALPHA)).status in (502, 503, 504)
        await running.until(lambda: not running.core.running)
        assert running.core.active.policy.access is not None
        key = running.core.active.policy.access.keys[0]
        return 1000 - running.core.limits.standing(key)[Limit.TOKENS].remaining


@pytest.mark.parametrize("answer", [reply({}, 503), close])
async def test_what_a_back_end_was_asked_for_costs_its_estimate(answer: Answer) -> None:
    """Nobody counted, and an engine may have worked on it."""
    async with Stub(answer) as stub:
        assert await charged(stub.url, chat(max_tokens=100)) > 0


async def test_a_connection_that_was_refused_costs_no_tokens() -> None:
    """Nothing was sent."""
    assert await charged(f"http://127.0.0.1:{free_port()}", chat(max_tokens=100)) == 0


async def test_a_question_for_a_label_counts_although_nothing_was_sent_after_it() -> None:
    """The engine refused the question and wants to rest: the refusal that follows does not make it unasked."""
    choice = chat(structured_outputs={"choice": ["good", "bad"]}, temperature=0)
    async with Stub(reply({}, 503, [("retry-after", "30")])) as stub:
        assert await charged(stub.url, choice) > 0
        assert [request.target for request in stub.requests] == [b"/v1/decisions"]


async def test_a_refused_request_counts_for_its_model() -> None:
    """Whom a limit hit is told by the model's own name, an alias resolved, though no pool was chosen."""
    named = "m: {pools: [plain], aliases: [alias]}\n  n: {pools: [plain]}"
    policy = one_pool("http://127.0.0.1:1").replace("m: {pools: [plain]}", named)
    async with gateway(policy + access(alpha=", models: [n]", beta=", requests_per_minute: 1"), ENV) as running:
        for headers in (ALPHA, BETA, BETA):
            await ask(running.url, {**chat(), "model": "alias"}, headers=headers)

        assert running.counted("gateway_requests_total", model="m", pool="none", outcome="client_error") == 1
        assert running.counted("gateway_requests_total", model="m", pool="none", outcome="rejected") == 1
        assert running.counted("gateway_requests_total", model="other") == 0
