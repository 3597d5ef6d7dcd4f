"""Classification without decoding: who is answered so, how, and that whatever goes wrong the request is decoded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from gateway.api.labels import ABSENT_SECONDS, FAILED_SECONDS
from gateway.sim.server import create_app
from gateway.types import Result
from tests.answers import hang, reply, text
from tests.e2e.fleet import sim
from tests.gateways import Running, gateway, one_pool, two_pools
from tests.ports import free_port
from tests.raw_client import Answer as Got
from tests.raw_client import ask
from tests.servers import serve
from tests.stub import Answer, Call, Stub

CHOICE: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "Judge."}, {"role": "user", "content": "スープは冷めていた。"}],
    "structured_outputs": {"choice": ["良い", "悪い"]},
    "temperature": 0,
}
USED = {
    "input_tokens": 40,
    "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 41,
}
DECODED = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "decoded"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}


def decision(label: object) -> dict[str, Any]:
    answer = {"type": "choice", "name": None, "choice": label, "probabilities": [], "confidence": 0.9}
    return {"model": "m", "answers": [answer], "usage": USED}


def back_end(decides: Answer) -> Answer:
    """A back end with both routes; a chat is answered with `DECODED`."""

    async def answer(call: Call) -> None:
        await (decides if call.request.target == b"/v1/decisions" else reply(DECODED))(call)

    return answer


def policy_for(*urls: str, extra: str = "") -> str:
    return one_pool(*urls, extra=extra).replace("pools: [plain]", "pools: [plain], aliases: [alias], decisions: true")


def targets(stub: Stub) -> list[bytes]:
    return [request.target for request in stub.requests]


def content(answer: Got) -> object:
    return json.loads(answer.body)["choices"][0]["message"]["content"]


class TestAnswer:
    async def test_a_choice_is_asked_for_and_told_as_a_completion(self) -> None:
        """The label is the content; counts are the engine's; the reason is in the header; nothing is decoded."""
        async with Stub(back_end(reply(decision("悪い")))) as stub, gateway(policy_for(stub.url)) as running:
            got = await ask(running.url, CHOICE)

            assert targets(stub) == [b"/v1/decisions"]
            assert stub.requests[0].json() == {
                "model": "m",
                "input": [{"role": "user", "content": "Judge."}, {"role": "user", "content": "スープは冷めていた。"}],
                "questions": [
                    {"type": "choice", "instructions": "", "choices": [{"value": "良い"}, {"value": "悪い"}]}
                ],
            }
        answer = json.loads(got.body)
        assert (got.status, got.header("x-gateway-reason"), got.header("x-gateway-pool")) == (200, "decisions", "plain")
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "悪い", "refusal": None}
        assert (answer["object"], answer["model"]) == ("chat.completion", "m")
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
        assert answer["usage"]["total_tokens"] == 41

    async def test_a_stream_holds_the_same_and_ends_as_every_stream(self) -> None:
        """The SDK puts it together; counts come only where they were asked for."""
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(policy_for(stub.url)) as running:
            async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:
                asked = {"stream": True, "stream_options": {"include_usage": True}}
                chunks = [
                    chunk
                    async for chunk in await client.chat.completions.create(
                        model="alias",
                        messages=CHOICE["messages"],
                        extra_body={"structured_outputs": CHOICE["structured_outputs"], **asked},
                        stream=True,
                    )
                ]
            silent = await ask(running.url, {**CHOICE, "stream": True})

        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "良い"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 1
        assert {c.model for c in chunks} == {"alias"}
        assert silent.body.endswith(b"data: [DONE]\n\n")
        assert b"usage" not in silent.body
        assert silent.header("content-type") == "text/event-stream; charset=utf-8"

    async def test_a_schema_is_answered_in_its_form(self) -> None:
        """What `parse` of the SDK sends for a model with one enum comes back as that model."""
        properties = {"label": {"type": "string", "enum": ["良い", "悪い"]}}
        schema = {"type": "object", "properties": properties, "required": ["label"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "v", "schema": schema, "strict": True}}
        body = {"model": "m", "messages": CHOICE["messages"], "response_format": form}
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(policy_for(stub.url)) as running:
            got = await ask(running.url, body)

        assert json.loads(str(content(got))) == {"label": "良い"}

    async def test_the_old_field_is_translated_first(self) -> None:
        """A `guided_choice` is a choice too."""
        body = {"model": "m", "messages": CHOICE["messages"], "guided_choice": ["良い", "悪い"]}
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(policy_for(stub.url)) as running:
            got = await ask(running.url, body)

        assert (got.header("x-gateway-reason"), got.header("x-gateway-translated")) == ("decisions", "guided_choice")

    async def test_headers_of_the_body_do_not_travel(self) -> None:
        """The question is the gateway's own JSON, and its answer must be readable here; the endpoint's key is set."""
        policy = policy_for("{}").replace('"{}"', '{url: "URL", api_key: engine}')
        async with Stub(back_end(reply(decision("良い")))) as stub:
            async with gateway(policy.replace("URL", stub.url)) as running:
                sent = (("authorization", "Bearer client"), ("accept-encoding", "gzip"), ("x-request-id", "abc"))
                got = await ask(running.url, CHOICE, headers=sent)

            headers = dict(stub.requests[0].headers)
        assert headers[b"authorization"] == b"Bearer engine"
        assert headers[b"x-request-id"] == b"abc"
        assert b"accept-encoding" not in headers
        assert json.loads(got.body)["id"] == "chatcmpl-abc"

    async def test_the_simulated_engine_answers_too(self) -> None:
        """End to end over the simulated vLLM: one of the labels, one token."""
        async with serve(create_app(sim(0))) as url:
            policy = policy_for(url, extra=", model: served-e4b")
            async with gateway(policy) as running:
                got = await ask(running.url, {**CHOICE, "model": "alias"})

        assert content(got) in ("良い", "悪い")
        assert (got.header("x-gateway-reason"), json.loads(got.body)["model"]) == ("decisions", "alias")
        assert got.header("x-gateway-model") == "served-e4b"
        assert json.loads(got.body)["usage"]["completion_tokens"] == 1


class TestRecord:
    async def test_it_is_one_request_in_every_count(self) -> None:
        """One outcome, one decision, the tokens that came; every place is given back."""
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(policy_for(stub.url)) as running:
            for _ in range(3):
                await ask(running.url, CHOICE)

            assert running.counted("gateway_requests_total", outcome="ok", task="classification") == 3
            assert running.counted("gateway_decisions_total", reason="decisions", pool="plain") == 3
            assert running.counted("gateway_output_tokens_total") == 3
            assert (running.in_flight, running.core.running) == (0, 0)

    async def test_nothing_is_learned_from_it(self) -> None:
        """Neither the length nor the speed of an answer, nor how texts are counted, moves."""
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(policy_for(stub.url)) as running:
            await ask(running.url, CHOICE)

            assert running.core.learned.estimator.statistics().entries == 0
            assert running.counted("gateway_predicted_output_ratio_count") == 0

    async def test_a_key_pays_for_the_tokens_that_it_took(self) -> None:
        """Limits hold as for any request: the second is over the key's budget of the minute."""
        key = "access: {keys: [{name: k, env: KEY, requests_per_minute: 1}]}\n"
        async with Stub(back_end(reply(decision("良い")))) as stub:
            async with gateway(policy_for(stub.url) + key, {"KEY": "secret"}) as running:
                sent = (("authorization", "Bearer secret"),)
                answers = [await ask(running.url, CHOICE, headers=sent) for _ in range(2)]

            assert [got.status for got in answers] == [200, 429]
            assert len(stub.requests) == 1


class TestDecoded:
    @pytest.mark.parametrize(
        "field",
        [{"temperature": 1}, {"logprobs": True}, {"n": 2}, {"structured_outputs": {"regex": "a"}}],
        ids=["sampled", "logprobs", "n", "regex"],
    )
    async def test_what_a_label_cannot_honour_is_not_asked(self, field: dict[str, object]) -> None:
        """The body goes as it came, and nothing else is sent."""
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(policy_for(stub.url)) as running:
            await ask(running.url, {**CHOICE, **field})

            assert targets(stub) == [b"/v1/chat/completions"]

    async def test_it_is_off_unless_the_policy_says_so(self) -> None:
        """A policy without the word never asks."""
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(one_pool(stub.url)) as running:
            got = await ask(running.url, CHOICE)

            assert (targets(stub), content(got)) == ([b"/v1/chat/completions"], "decoded")

    async def test_only_chat_is_read(self) -> None:
        """A batch of conversations has another form."""
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(policy_for(stub.url)) as running:
            await ask(running.url, {**CHOICE, "messages": [CHOICE["messages"]]}, target="/v1/chat/completions/batch")

            assert targets(stub) == [b"/v1/chat/completions/batch"]

    async def test_a_pool_that_reads_log_probabilities_badly_is_not_asked(self) -> None:
        """MTP pools refuse them by default; a choice that goes to such a pool all the same is decoded."""
        async with Stub(back_end(reply(decision("良い")))) as stub:
            async with gateway(policy_for(stub.url, extra=", refuses: [structured, logprobs]")) as running:
                await ask(running.url, CHOICE)

            assert targets(stub) == [b"/v1/chat/completions"]

    async def test_a_label_does_not_wait_while_another_pool_has_room(self) -> None:
        """All are full, and only one of them reads labels: the place that comes first is taken, and decodes."""
        async with Stub(back_end(reply(decision("良い")))) as plain, Stub(back_end(reply({}, 500))) as mtp:
            policy = two_pools(plain.url, mtp.url).replace("architecture: dense", "decisions: true")
            policy = policy.replace("tokens: 2}", "tokens: 2}, refuses: [logprobs]")
            for stub in (plain, mtp):
                policy = policy.replace(f'"{stub.url}"]', f'"{stub.url}"], limits: {{in_flight: 1, queue_wait: 60s}}')
            async with gateway(policy) as running:
                leases = [running.core.pools[name].lease() for name in ("plain", "mtp")]
                asked = asyncio.create_task(ask(running.url, CHOICE))
                await running.until(lambda: running.core.pools.admission.waiting == 1)
                assert leases[1] is not None
                leases[1].release(Result.OK)
                got = await asked

                assert (content(got), targets(mtp), targets(plain)) == ("decoded", [b"/v1/chat/completions"], [])

    @pytest.mark.parametrize("status", [404, 405, 501])
    async def test_an_endpoint_without_the_route_is_remembered(self, status: int) -> None:
        """Asked once, then decoded at once; its health does not suffer."""
        absent = reply({"detail": "Not Found"}, status)
        async with Stub(back_end(absent)) as stub, gateway(policy_for(stub.url)) as running:
            answers = [await ask(running.url, CHOICE) for _ in range(7)]

            assert [content(got) for got in answers] == ["decoded"] * 7
            assert targets(stub).count(b"/v1/decisions") == 1
            assert running.counted("gateway_requests_total", outcome="ok") == 7
            assert running.core.pools["plain"].endpoints[0].statistics().failures == 0
            assert running.in_flight == 0

    async def test_what_is_decoded_after_all_is_counted(self) -> None:
        """Among the attempts that were followed by another; an answer that stands is none of them."""
        async with Stub(back_end(reply(decision("良い")))) as stub, gateway(policy_for(stub.url)) as running:
            await ask(running.url, CHOICE)
            assert running.counted("gateway_retries_total") == 0
            stub.answer = back_end(reply({"detail": "Not Found"}, 404))
            assert content(await ask(running.url, CHOICE)) == "decoded"
            assert running.counted("gateway_retries_total", pool="plain", **{"class": "decisions"}) == 1

    async def test_an_explanation_tells_of_it(self) -> None:
        """Where the policy says so, and of a pure choice only."""
        async with Stub(back_end(reply(decision("良い")))) as stub:
            for policy, body, told in (
                (policy_for(stub.url), CHOICE, "/v1/decisions"),
                (policy_for(stub.url), {"model": "m", "messages": CHOICE["messages"]}, None),
                (one_pool(stub.url), CHOICE, None),
            ):
                async with gateway(policy) as running:
                    found = json.loads((await ask(running.url, body, "/gateway/explain")).body)
                assert found.get("asks_first") == told
            assert stub.requests == []

    async def test_it_is_asked_again_later(self) -> None:
        """An engine may have been replaced by one that has the route."""
        absent = back_end(reply({"detail": "Not Found"}, 404))
        async with Stub(absent) as stub, gateway(policy_for(stub.url)) as running:
            await ask(running.url, CHOICE)
            stub.answer = back_end(reply(decision("良い")))
            _later(running, ABSENT_SECONDS + 1)
            got = await ask(running.url, CHOICE)

        assert content(got) == "良い"

    async def test_a_refusal_of_this_request_is_no_reason_to_stop_asking(self) -> None:
        """A 400 is about the request: it is decoded, the next one is asked."""
        async with Stub(back_end(reply({"error": {"message": "no"}}, 400))) as stub:
            async with gateway(policy_for(stub.url)) as running:
                answers = [await ask(running.url, CHOICE) for _ in range(2)]

            assert [content(got) for got in answers] == ["decoded"] * 2
            assert targets(stub).count(b"/v1/decisions") == 2

    @pytest.mark.parametrize(
        "broken",
        [
            reply({}, 500),
            reply(decision("neither")),
            reply({"answers": []}),
            reply({**decision("良い"), "usage": None}),
            reply([1]),
            text(b"<html>", headers=[("content-type", "text/html")]),
            text(b""),
        ],
        ids=["500", "label", "empty", "usage", "list", "html", "nothing"],
    )
    async def test_an_answer_that_is_none_is_decoded(self, broken: Answer) -> None:
        """The client never sees it; the pool is left in peace for a while."""
        async with Stub(back_end(broken)) as stub, gateway(policy_for(stub.url)) as running:
            answers = [await ask(running.url, CHOICE) for _ in range(2)]

            assert [content(got) for got in answers] == ["decoded"] * 2
            assert targets(stub) == [b"/v1/decisions", b"/v1/chat/completions", b"/v1/chat/completions"]
            assert running.in_flight == 0
            _later(running, FAILED_SECONDS + 1)
            await ask(running.url, CHOICE)
            assert targets(stub).count(b"/v1/decisions") == 2

    async def test_a_cut_connection_moves_to_another_endpoint(self) -> None:
        """RETRY-04: the endpoint that failed is not the one that decodes, as long as there is another."""

        async def cut(call: Call) -> None:
            call.connection.reset()

        async with Stub(back_end(cut)) as one, Stub(back_end(cut)) as two:
            async with gateway(policy_for(one.url, two.url)) as running:
                got = await ask(running.url, CHOICE)

            assert content(got) == "decoded"
            assert sorted([targets(one), targets(two)]) == [[b"/v1/chat/completions"], [b"/v1/decisions"]]

    async def test_a_hung_engine_costs_its_time_limit_and_no_more(self) -> None:
        """RETRY-05: the question counts as one of the request's attempts."""
        async with Stub(hang) as stub:
            extra = ", timeouts: {first_byte: 100ms}, retry: {attempts: 2}"
            async with gateway(policy_for(stub.url, extra=extra)) as running:
                got = await ask(running.url, CHOICE)

            assert got.status in (503, 504)
            assert len(stub.requests) <= 2
            assert running.in_flight == 0

    async def test_a_client_that_leaves_takes_the_question_with_it(self) -> None:
        """CANCEL-02: the engine sees its connection closed, nothing is decoded for nobody."""
        async with Stub(hang) as stub, gateway(policy_for(stub.url)) as running:
            task = asyncio.create_task(ask(running.url, CHOICE))
            await stub.until(lambda: len(stub.requests) == 1)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.wait_for(stub.connections[0].closed.wait(), 60)
            await running.until(lambda: running.in_flight == 0)

            assert targets(stub) == [b"/v1/decisions"]
            assert running.counted("gateway_requests_total", outcome="client_closed") == 1

    async def test_every_endpoint_down_is_the_ordinary_error(self) -> None:
        """ERROR-06: nothing of this shows in the answer."""
        async with gateway(policy_for(f"http://127.0.0.1:{free_port()}")) as running:
            got = await ask(running.url, CHOICE)

        assert got.status in (502, 503)
        assert got.error["message"]


def _later(running: Running, seconds: float) -> None:
    """Moves the clock that the desk reads."""
    clock = running.core.clock
    running.core.clock = lambda: clock() + seconds
