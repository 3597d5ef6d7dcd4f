"""PydanticAI agents: typed answers by tools, over chat and over responses."""

from __future__ import annotations

import openai
import pydantic
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.e2e.fleet import MODEL, fleet


class Verdict(pydantic.BaseModel):
    """An answer with a form."""

    label: str


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
async def test_an_agent_gets_text_and_objects(kind: type[OpenAIChatModel] | type[OpenAIResponsesModel]) -> None:
    """A text answer, a stream of one, and an object that the agent demands through its output tool."""
    async with fleet() as made, openai.AsyncOpenAI(base_url=made.url + "/v1", api_key="none") as client:
        model = kind(MODEL, provider=OpenAIProvider(openai_client=client))
        plain = await Agent(model).run("Is water wet? Answer yes or no.")
        async with Agent(model).run_stream("Is water wet? Answer yes or no.") as stream:
            streamed = await stream.get_output()
        typed = await Agent(model, output_type=Verdict).run("Is this spam? Hello.")

    assert plain.output
    assert streamed
    assert isinstance(typed.output, Verdict)
