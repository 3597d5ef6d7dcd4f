"""Model names on their way in and out, the list of models, and paths that are passed through."""

from __future__ import annotations

import json

import pytest

from tests.answers import reply, stream, text
from tests.e2e.events import DONE, delta
from tests.gateways import gateway, one_pool, two_pools
from tests.raw_client import ask, chat, get
from tests.stub import Call, Stub

SERVED = one_pool("{url}", extra=", model: gemma4_e4b").replace("models:\n  m:", "models:\n  org/gemma-4:") + ""
ALIASED = SERVED.replace("{pools: [plain]}", "{pools: [plain], aliases: [e4b], context_length: 8192}")


def answered(model: str) -> dict[str, object]:
    return {"id": "c", "model": model, "choices": [{"message": {"content": 'the "model":"gemma4_e4b" says'}}]}


@pytest.mark.parametrize("name", ["e4b", "org/gemma-4"])
async def test_the_back_end_gets_its_served_name_and_the_client_its_own(name: str) -> None:
    """MODEL-01, MODEL-02, MODEL-06: names are taken whole, rewritten upstream, and written back in the answer only."""
    raw = b'{ "messages": [{"content": "\\"model\\":\\"e4b\\"", "role":"user"}],\n "model" :"' + name.encode() + b'" }'
    async with Stub(reply(answered("gemma4_e4b"))) as stub, gateway(ALIASED.replace("{url}", stub.url)) as running:
        got = await ask(running.url, raw)

        assert stub.requests[0].body == raw.replace(b':"' + name.encode() + b'" }', b':"gemma4_e4b" }')
        assert got.json() == answered(name)


async def test_the_served_name_stays_where_the_policy_says_so() -> None:
    """MODEL-02: `answer_model: served` passes the back end's answer unchanged."""
    policy = ALIASED.replace("{url}", "{}") + "server: {answer_model: served}\n"
    async with Stub(reply(answered("gemma4_e4b"))) as stub, gateway(policy.replace("{}", stub.url)) as running:
        got = await ask(running.url, {"model": "e4b", "messages": []})

        assert got.json() == answered("gemma4_e4b")


@pytest.mark.parametrize(
    ("served", "shown"), [("gemma4_e4b", "gemma4_e4b"), ("org/日本語:v1", "org/%E6%97%A5%E6%9C%AC%E8%AA%9E:v1")]
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_header_tells_the_served_name_where_the_answer_does_not(
    served: str, shown: str, streamed: bool
) -> None:
    """MODEL-02: whoever wants the real one finds it, whatever its script; there is none where the answer says it."""
    answer = stream(delta("x", "stop"), DONE) if streamed else reply(answered(served))
    policy = ALIASED.replace("model: gemma4_e4b", f'model: "{served}"')
    for rest, header in (("", shown), ("server: {answer_model: served}\n", None)):
        async with Stub(answer) as stub, gateway(policy.replace("{url}", stub.url) + rest) as running:
            got = await ask(running.url, {"model": "e4b", "messages": [], "stream": streamed})

            assert (got.status, got.header("x-gateway-model")) == (200, header)
            again = await ask(running.url, {"model": served, "messages": []})
            assert (again.status, again.header("x-gateway-model")) == (404, None)


async def test_a_streams_model_is_rewritten_wherever_it_is_cut() -> None:
    """MODEL-02: in streams too, and no cut of the back end's writes splits a name or a character."""
    whole = delta("あ").replace(b'"model":"m"', b'"model":"gemma4_e4b"')
    whole += delta("", "stop").replace(b'"model":"m"', b'"model": "gemma4_e4b"')
    expected = whole.replace(b'"gemma4_e4b"', b'"e4b"')
    async with Stub() as stub, gateway(ALIASED.replace("{url}", stub.url)) as running:
        for at in range(1, len(whole), 7):
            stub.script.append(stream(whole[:at], whole[at:] + DONE))
            got = await ask(running.url, {"model": "e4b", "messages": [], "stream": True})

            assert got.body == expected + DONE


async def test_the_list_is_the_policys_with_what_back_ends_report() -> None:
    """MODEL-03, MODEL-04, MODEL-05: one entry a model in the policy's order; a dead back end takes nothing away."""
    card = {"id": "gemma4_e4b", "object": "model", "max_model_len": 4096, "root": "google/x", "odd": [1]}

    async def models(call: Call) -> None:
        await reply({"object": "list", "data": [card]})(call)

    policy = ALIASED.replace('["{url}"]', '["http://127.0.0.1:1", "{url}"]')
    policy = policy.replace("models:", "models:\n  second: {pools: [plain]}")
    async with Stub(models) as stub, gateway(policy.replace("{url}", stub.url)) as running:
        listed = (await get(running.url, "/v1/models")).json()["data"]
        assert isinstance(listed, list)

        assert [row["id"] for row in listed] == ["second", "org/gemma-4"]
        assert listed[1]["max_model_len"] == 4096
        assert listed[1]["odd"] == [1]
        assert listed[1]["aliases"] == ["e4b"]
        assert (await get(running.url, "/v1/models/org/gemma-4")).json()["id"] == "org/gemma-4"
        assert (await get(running.url, "/v1/models/nope")).status == 404
        assert (await get(running.url, "/v1/models/")).json() == (await get(running.url, "/v1/models")).json()


async def test_an_unknown_model_names_the_nearest() -> None:
    """An error that guides: 404 with the names one may have meant."""
    async with gateway(ALIASED.replace("{url}", "http://127.0.0.1:1")) as running:
        got = await ask(running.url, {"model": "org/gemma4", "messages": []})

        assert (got.status, got.error["code"], got.error["param"]) == (404, "model_not_found", "model")
        assert "`org/gemma-4`" in str(got.error["message"])
        assert "did you mean `e4b`?" in str((await ask(running.url, {"model": "E4B", "messages": []})).error["message"])


async def test_a_missing_model_means_the_only_one() -> None:
    """vLLM takes a missing name too; with several models it is an error that lists them."""
    async with Stub(reply({})) as stub:
        async with gateway(one_pool(stub.url)) as running:
            assert (await ask(running.url, {"messages": []})).status == 200
        policy = one_pool(stub.url).replace("models:", "models:\n  other: {pools: [plain]}")
        async with gateway(policy) as running:
            got = await ask(running.url, {"messages": []})
            assert (got.status, got.error["param"]) == (400, "model")


@pytest.mark.parametrize("served", [b'"served"', b'"\\u5927-x"', '"大-x"'.encode()])
@pytest.mark.parametrize("colon", [b":", b": ", b" : "])
async def test_only_the_name_is_exchanged_in_an_answer(served: bytes, colon: bytes) -> None:
    """MODEL-02: the bytes around it stay, whichever way a back end writes JSON."""
    answer = b'{"id":  "a", "model"' + colon + served + b', "text": "\\"model\\": \\"served\\""}'
    policy = ALIASED.replace("gemma4_e4b", f"'{json.loads(served)}'")
    async with Stub(text(answer)) as stub, gateway(policy.replace("{url}", stub.url)) as running:
        got = await ask(running.url, {"model": "e4b", "prompt": "x"}, "/v1/completions")

        assert got.body == answer.replace(served, b'"e4b"', 1)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/some/future/route?x=%20y", "/tokenize", "/detokenize"])
async def test_other_paths_pass_to_the_models_pool(path: str) -> None:
    """No client is blocked by what the gateway has not heard of; query and bytes are the client's."""
    policy = two_pools("http://127.0.0.1:1", "{url}").replace("pools: [plain, mtp]", "pools: [mtp]")
    async with Stub(reply({"fine": True})) as stub, gateway(policy.replace("{url}", stub.url)) as running:
        got = await ask(running.url, {"model": "m", "input": "x"}, path)

        assert got.json() == {"fine": True}
        assert stub.requests[0].target.decode() == path
        assert got.header("x-gateway-pool") == "mtp"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/../sleep",
        "/v1/%2e%2e/sleep",
        "/v1//sleep",
        "/v1/x/..%2fsleep",
        "/v1/\\sleep",
        "/sleep",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/server_info",
    ],
)
async def test_engine_control_and_climbing_paths_are_unreachable(path: str) -> None:
    """Development and LoRA-loading routes, and paths that mean another path to the back end, never get there."""
    async with Stub(reply({})) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(running.url, {"model": "m"}, path)

        assert got.status == 404
        assert stub.requests == []


async def test_a_multipart_upload_finds_its_model() -> None:
    """The model of a form is a field of it; the bytes go on unchanged."""
    form = (
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff\r\n'
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    )
    async with Stub(reply({"text": "hi"})) as stub, gateway(one_pool(stub.url)) as running:
        got = await ask(
            running.url,
            form,
            "/v1/audio/transcriptions",
            headers=(("content-type", "multipart/form-data; boundary=b"),),
        )

        assert got.status == 200
        assert stub.requests[0].body == form


async def test_explain_answers_in_the_public_shape_and_sends_nothing() -> None:
    """ROUTE-09: the decision of `/gateway/explain` is the one of the live request."""
    async with Stub(reply({"choices": []})) as stub, gateway(two_pools(stub.url, stub.url)) as running:
        for prompt in ("Write an essay of 900 words on tides.", "Yes or no: is water wet?"):
            told = (await ask(running.url, chat(prompt), "/gateway/explain")).json()
            sent_by_explain = len(stub.requests)
            live = await ask(running.url, chat(prompt))

            assert set(told) == {"model", "features", "estimate", "pools", "decision"}
            decision = told["decision"]
            assert isinstance(decision, dict)
            assert decision["pool"] == live.header("x-gateway-pool")
            assert decision["reason"] == live.header("x-gateway-reason")
            assert sent_by_explain == len(stub.requests) - 1
        assert json.dumps(told).count("water") == 0


async def test_a_model_that_always_thinks_is_never_short() -> None:
    """ROUTE-08: the policy's `reasoning: always` makes "yes or no?" long; `never` keeps it short."""
    always = two_pools("http://127.0.0.1:1", "http://127.0.0.1:1").replace(
        "architecture: dense", "architecture: dense, reasoning: always"
    )
    lengths = []
    for policy in (always, always.replace("always", "never")):
        async with gateway(policy) as running:
            told = (await ask(running.url, chat("Yes or no: is water wet?"), "/gateway/explain")).json()
            estimate, decision = told["estimate"], told["decision"]
            assert isinstance(estimate, dict)
            assert isinstance(decision, dict)
            lengths.append(estimate["output_tokens"])
            assert decision["pool"] == ("mtp" if policy is always else "plain")

    assert lengths[0] > 20 * lengths[1]
