"""BUFFERED requests and STREAMED, BUFFERED or absent response bodies: exactly one answer for each message."""

from __future__ import annotations

import grpc
import pytest

from gateway.epp.wire import BodyMode, Modes
from gateway.types import Result
from tests.epp.dataplane import BUFFERED, CHAT, STREAM, destination, one_endpoint, picker, put, same
from tests.epp.test_duplex import DONE, EVENT, LAST, WHOLE

ALL_BUFFERED = Modes(BodyMode.BUFFERED, BodyMode.BUFFERED)
NO_RESPONSE_BODY = Modes(BodyMode.BUFFERED, BodyMode.NONE)


async def test_the_destination_is_in_the_bodys_answer() -> None:
    """The head is let through at once, because the body comes only then; the body itself is not touched."""
    async with picker(one_endpoint()) as running, running.exchange(BUFFERED) as one:
        await one.request_head(headers={"content-length": str(len(CHAT))})
        assert same(await one.answer(), "request_headers { response { } }")
        await one.request_body(CHAT)

        assert same(
            await one.answer(),
            """
            request_body { response {
              header_mutation { set_headers {
                header { key: "x-gateway-destination-endpoint" raw_value: "10.0.0.1:8000" }
                append_action: OVERWRITE_IF_EXISTS_OR_ADD
              } }
              clear_route_cache: true
            } }
            dynamic_metadata { fields { key: "envoy.lb" value { struct_value {
              fields { key: "x-gateway-destination-endpoint" value { string_value: "10.0.0.1:8000" } }
            } } } }
            """,
        )


async def test_a_changed_body_has_its_length() -> None:
    """Envoy rejects a buffered body whose length differs from the header's."""
    async with picker(one_endpoint(pool=", model: gemma4")) as running, running.exchange(BUFFERED) as one:
        await one.request_head(headers={"content-length": str(len(CHAT))})
        await one.answer()
        await one.request_body(CHAT)
        answer = await one.answer()

        assert answer.request_body.response.body_mutation.body == CHAT.replace(b'"m"', b'"gemma4"')
        assert put(answer)["content-length"] == str(len(CHAT) + 5)


async def test_a_request_without_a_body_is_decided_at_its_head() -> None:
    """There is no second message whose answer could say it."""
    async with picker(one_endpoint()) as running, running.exchange(BUFFERED) as one:
        await one.request_head("/v1/models", method="GET", ended=True)
        assert destination(await one.answer()) == "10.0.0.1:8000"


async def test_a_streamed_response_has_one_answer_for_each_part() -> None:
    """Parts that pass unchanged are answered without their bytes; half a line is held and comes with the next."""
    half, rest = DONE[:6], DONE[6:]
    async with picker(one_endpoint()) as running, running.exchange(BUFFERED) as one:
        await one.request_head()
        await one.answer()
        await one.request_body(STREAM)
        await one.answer()
        await one.response_head(kind="text/event-stream")
        assert put(await one.answer()) == {"x-request-id": "r-1"}
        answers = []
        for part, ended in ((EVENT % b'"stop"', False), (b"", False), (LAST, False), (half, False), (rest, True)):
            await one.response_body(part, ended=ended)
            answers.append(await one.answer())

        unchanged = "response_body { response { } }"
        assert [same(answer, unchanged) for answer in answers] == [True, True, True, False, False]
        assert same(answers[3], "response_body { response { body_mutation { clear_body: true } } }")
        assert answers[4].response_body.response.body_mutation.body == DONE
        assert await one.over()
        outcome = await running.outcome()
        assert outcome.result is Result.OK
        assert outcome.usage is not None


async def test_a_buffered_response_passes_and_teaches() -> None:
    """A whole answer in one message, unchanged, with its token counts read."""
    async with picker(one_endpoint()) as running, running.exchange(ALL_BUFFERED) as one:
        await one.up_to_response()
        assert put(await one.answer()) == {"x-request-id": "r-1"}
        await one.response_body(WHOLE, ended=True)
        assert same(await one.answer(), "response_body { response { } }")
        assert (await running.outcome()).usage is not None


async def test_a_buffered_response_that_changes_has_its_length() -> None:
    """The client's name for the model is put back, and the header follows."""
    async with picker(one_endpoint(pool=", model: gemma4")) as running, running.exchange(ALL_BUFFERED) as one:
        await one.up_to_response()
        await one.answer()
        await one.response_body(WHOLE.replace(b'"m"', b'"gemma4"'), ended=True)
        answer = await one.answer()

        assert answer.response_body.response.body_mutation.body == WHOLE
        assert put(answer) == {"content-length": str(len(WHOLE))}


async def test_without_response_bodies_the_head_ends_the_request() -> None:
    """Nothing of the body is seen, so the place is given back and the status is all that is known."""
    async with picker(one_endpoint()) as running, running.exchange(NO_RESPONSE_BODY) as one:
        await one.up_to_response()
        assert put(await one.answer()) == {"x-request-id": "r-1"}
        outcome = await running.outcome()
        assert (outcome.result, outcome.usage, running.in_flight) == (Result.OK, None, 0)


async def test_a_data_plane_that_does_not_say_its_modes_is_taken_at_the_operators_word() -> None:
    """Older Envoys do not tell how they are configured; `--body-mode` does."""
    async with picker(one_endpoint(), assumed=BUFFERED) as running, running.exchange(None) as one:
        await one.request_head()
        assert same(await one.answer(), "request_headers { response { } }")


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC])
async def test_a_filter_that_cannot_be_decided_for_is_told_what_to_change(mode: BodyMode) -> None:
    """Envoy's log and ours name the setting; no request goes to a random endpoint."""
    async with picker(one_endpoint()) as running, running.exchange(Modes(mode, BodyMode.NONE)) as one:
        await one.request_head()
        assert await one.call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert f"request_body_mode is {mode.name}" in await one.call.details()


async def test_observability_mode_is_refused() -> None:
    """A data plane that takes no answers cannot be told where to go."""
    async with picker(one_endpoint()) as running, running.exchange() as one:
        await one.say(request_headers={}, observability_mode=True)
        assert await one.call.code() is grpc.StatusCode.FAILED_PRECONDITION
