"""FULL_DUPLEX_STREAMED, the mode of the protocol: what comes back for each message, byte for byte."""

from __future__ import annotations

import json
from typing import Any

from gateway.types import Result
from tests.epp.dataplane import CHAT, STREAM, destination, one_endpoint, picker, put, same, two_pools

EVENT = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":%s}]}\n\n'
LAST = b'data: {"model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = (
    b'{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)


async def test_a_request_goes_to_the_picked_endpoint_unchanged() -> None:
    """The head's answer names the endpoint in header and metadata, and the body goes on as it came."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.request_head()
        await one.request_body(CHAT[:20], ended=False)
        await one.request_body(CHAT[20:])

        assert same(
            await one.answer(),
            f"""
            request_headers {{ response {{
              header_mutation {{
                set_headers {{
                  header {{ key: "x-gateway-destination-endpoint" raw_value: "10.0.0.1:8000" }}
                  append_action: OVERWRITE_IF_EXISTS_OR_ADD
                }}
                set_headers {{
                  header {{ key: "content-length" raw_value: "{len(CHAT)}" }}
                  append_action: OVERWRITE_IF_EXISTS_OR_ADD
                }}
              }}
              clear_route_cache: true
            }} }}
            dynamic_metadata {{ fields {{ key: "envoy.lb" value {{ struct_value {{
              fields {{ key: "x-gateway-destination-endpoint" value {{ string_value: "10.0.0.1:8000" }} }}
            }} }} }} }}
            """,
        )
        assert same(
            await one.answer(),
            "request_body { response { body_mutation { streamed_response { "
            f"body: '{CHAT.decode()}' end_of_stream: true }} }} }} }}",
        )
        assert running.in_flight == 1


async def test_nothing_is_decided_before_the_body_is_there() -> None:
    """The model stands in the body, so the head's answer waits for the body's end."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.request_head()
        await one.request_body(CHAT, ended=False)
        await running.until(lambda: running.core.running == 1)
        assert running.in_flight == 0

        await one.request_body(b"")

        assert destination(await one.answer()) == "10.0.0.1:8000"


async def test_a_large_body_goes_on_in_parts_of_the_recommended_size() -> None:
    """No message is above 64 KiB, and together they are the body."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "長い文章" * 20_000}]}).encode()
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.request_head()
        for start in range(0, len(body), 100_000):
            await one.request_body(body[start : start + 100_000], ended=start + 100_000 >= len(body))
        await one.answer()
        parts: list[Any] = []
        while not parts or not parts[-1].end_of_stream:
            parts.append((await one.answer()).request_body.response.body_mutation.streamed_response)

        assert b"".join(part.body for part in parts) == body
        assert max(len(part.body) for part in parts) <= 65_536


async def test_an_event_stream_passes_and_teaches() -> None:
    """Every part comes back at once; at its end the exchange is a finished request with its token counts."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.sent(STREAM)
        await one.response_head(kind="text/event-stream")
        assert same(
            await one.answer(),
            'response_headers { response { header_mutation { set_headers { header { key: "x-request-id" '
            'raw_value: "r-1" } append_action: OVERWRITE_IF_EXISTS_OR_ADD } } } }',
        )
        await one.response_body(EVENT % b"null")
        first = (await one.answer()).response_body.response.body_mutation.streamed_response
        assert (first.body, first.end_of_stream) == (EVENT % b"null", False)

        for part in (EVENT % b'"stop"', LAST, DONE):
            await one.response_body(part)
            assert (await one.answer()).response_body.response.body_mutation.streamed_response.body == part
        await one.response_body(b"", ended=True)
        assert same(
            await one.answer(),
            "response_body { response { body_mutation { streamed_response { end_of_stream: true } } } }",
        )

        assert await one.over()
        outcome = await running.outcome()
        assert (outcome.result, outcome.status, outcome.finish_reason) == (Result.OK, 200, "stop")
        assert outcome.usage is not None
        assert outcome.usage.completion_tokens == 2
        assert outcome.endpoint == "http://10.0.0.1:8000"
        assert outcome.first_byte is not None
        assert running.in_flight == 0


async def test_a_whole_answer_passes_and_teaches() -> None:
    """A JSON answer in several parts comes back whole, with its length."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.sent()
        await one.response_head(headers={"content-length": str(len(WHOLE))})
        await one.response_body(WHOLE[:30])
        await one.response_body(WHOLE[30:], ended=True)

        assert put(await one.answer()) == {"x-request-id": "r-1", "content-length": str(len(WHOLE))}
        part = (await one.answer()).response_body.response.body_mutation.streamed_response
        assert (part.body, part.end_of_stream) == (WHOLE, True)
        assert (await running.outcome()).usage is not None


async def test_trailers_close_a_body_in_either_direction() -> None:
    """Where trailers follow, no part of the body is marked as the last, and they have an answer of their own."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.request_head()
        await one.request_body(CHAT, ended=False)
        await one.say(request_trailers={})
        await one.answer()
        body = (await one.answer()).request_body.response.body_mutation.streamed_response
        assert (body.body, body.end_of_stream) == (CHAT, False)
        assert same(await one.answer(), "request_trailers { }")

        await one.response_head()
        await one.response_body(WHOLE)
        await one.say(response_trailers={})
        await one.answer()
        body = (await one.answer()).response_body.response.body_mutation.streamed_response
        assert (body.body, body.end_of_stream) == (WHOLE, False)
        assert same(await one.answer(), "response_trailers { }")
        assert (await running.outcome()).result is Result.OK


async def test_the_pool_is_the_routers_choice() -> None:
    """A long answer goes to the MTP pool and a short one does not: the decision is the proxy's own."""
    long = b'{"model":"m","messages":[{"role":"user","content":"Write an essay of 2000 words on tides."}]}'
    short = b'{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"Positive or negative? Fine."}]}'
    async with picker(two_pools()) as running:
        async with running.exchange() as one:
            assert (await one.sent(long)).split(",")[0] == "10.0.0.3:8000"
        async with running.exchange() as one:
            assert (await one.sent(short)).split(",")[0] in ("10.0.0.1:8000", "10.0.0.2:8000")


async def test_another_served_name_is_put_in_and_taken_out_again() -> None:
    """The pool's engines know the model under their own name; the client never sees it."""
    async with picker(one_endpoint(pool=", model: gemma4")) as running, running.exchange() as one:
        await one.request_head()
        await one.request_body(CHAT)
        assert put(await one.answer())["content-length"] == str(len(CHAT) + 5)
        sent = (await one.answer()).request_body.response.body_mutation.streamed_response.body
        assert sent == CHAT.replace(b'"m"', b'"gemma4"')

        found = await one.streamed((EVENT % b'"stop"').replace(b'"m"', b'"gemma4"'), DONE)

        assert found == EVENT % b'"stop"' + DONE


async def test_token_counts_are_asked_for_and_hidden() -> None:
    """Streams whose clients do not say whether they want usage are asked once the pool proved silent."""
    marked = (EVENT % b'"stop"').replace(b"}]}", b'}],"usage":null}')
    async with picker(one_endpoint()) as running:
        for _ in range(3):
            async with running.exchange() as one:
                await one.sent(STREAM)
                await one.streamed(EVENT % b'"stop"', DONE)
                assert await one.over()
        async with running.exchange() as one:
            await one.request_head()
            await one.request_body(STREAM)
            await one.answer()
            sent = (await one.answer()).request_body.response.body_mutation.streamed_response.body
            assert json.loads(sent)["stream_options"] == {"include_usage": True}

            assert await one.streamed(marked, LAST, DONE) == EVENT % b'"stop"' + DONE
            assert await one.over()
        await running.until(lambda: len(running.outcomes) == 4)
        assert running.outcomes[-1].usage is not None


async def test_a_request_without_a_body_is_passed_by_health_alone() -> None:
    """`GET /v1/models` has no body to decide from; it goes to a pool of the first model."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.request_head("/v1/models", method="GET", ended=True)
        answer = await one.answer()
        assert destination(answer) == "10.0.0.1:8000"
        assert "content-length" not in put(answer)
        await one.response_head(ended=True)

        assert put(await one.answer()) == {"x-request-id": "r-1"}
        assert (await running.outcome()).result is Result.OK


async def test_decision_headers_are_added_to_the_response() -> None:
    """Clients see where a request went and why, as behind the proxy."""
    policy = one_endpoint().replace("server: {decision_headers: false}", "")
    async with picker(policy) as running, running.exchange() as one:
        await one.sent(STREAM)
        await one.response_head(kind="text/event-stream")
        headers = put(await one.answer())

        assert headers["x-gateway-pool"] == "only"
        assert headers["x-gateway-reason"] == "only_pool"
        assert int(headers["x-gateway-predicted-output-tokens"]) > 0
