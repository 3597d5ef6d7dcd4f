"""LangChain's `ChatOpenAI`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pydantic
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.e2e.fleet import MODEL, fleet_in_threads


class Verdict(pydantic.BaseModel):
    """An answer with a form."""

    label: str


@tool
def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"rain in {city}"


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, Any]]:
    """The arguments that all models take: where the gateway is, and a client that is closed in the end."""
    with fleet_in_threads() as url, httpx.Client() as http:
        yield {"model": MODEL, "base_url": url + "/v1", "api_key": "none", "http_client": http, "max_retries": 0}


def test_it_answers_streams_and_counts(given: dict[str, Any]) -> None:
    """invoke and stream, with usage."""
    model = ChatOpenAI(**{**given, "max_tokens": 20})
    whole = model.invoke("Is water wet?")
    pieces = list(model.stream("Is water wet?", stream_usage=True))

    assert whole.content
    assert whole.usage_metadata
    assert "".join(str(piece.content) for piece in pieces)
    assert any(piece.usage_metadata for piece in pieces)


@pytest.mark.parametrize("responses", [False, True])
def test_structured_output_and_tools(given: dict[str, Any], responses: bool) -> None:
    """A schema as an object and a bound tool as a call, over chat and over responses."""
    model = ChatOpenAI(**given, use_responses_api=responses)
    verdict = model.with_structured_output(Verdict, method="json_schema").invoke("Spam or ham? Hello.")
    called = model.bind_tools([get_weather], tool_choice="required").invoke("Weather in Osaka?")

    assert isinstance(verdict, Verdict)
    assert called.tool_calls[0]["name"] == "get_weather"


def test_embeddings(given: dict[str, Any]) -> None:
    """Texts in, vectors out."""
    made = OpenAIEmbeddings(**given, check_embedding_ctx_length=False)

    assert len(made.embed_documents(["a", "b"])) == 2
