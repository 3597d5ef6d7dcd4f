"""`/v1/decisions`: labels read off a prefill, in vLLM's form.

As in vLLM, each question is a request of its own to the engine: the input, then the question with its options called
A to Z, answered by one token. So it costs a prefill and a step, counts in the metrics, and has the server's faults.
Which option it is, and with which probability, is drawn by the simulation's seed.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.sim.driver import ClientGone
from gateway.sim.errors import ApiError, field_errors, invalid
from gateway.sim.formats import Json
from gateway.sim.http import Message, Receive, Reply

LETTERS = string.ascii_uppercase
LIKELIEST = 0.9
"""The probability of the drawn option; the others share the rest."""
_FIELDS = frozenset({"model", "input", "questions", "safety_identifier", "joint", "cache_salt"})
_OPTIONS = {"choice": ("choices", "value", 255), "score": ("levels", "label", 10)}


class Read(Reply):
    """Takes the engine's answer to one question instead of sending it."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(self._keep)
        self._reply = reply
        self._raw = b""

    async def _keep(self, message: Message) -> None:
        self._raw += message.get("body", b"")

    async def cut(self, receive: Receive, *, reset: bool) -> None:
        await self._reply.cut(receive, reset=reset)
        raise ClientGone

    def chat(self) -> Json:
        """The chat completion. Raises ApiError for one that does not parse."""
        try:
            chat: Json = orjson.loads(self._raw)
        except orjson.JSONDecodeError:
            raise ApiError(500, "InternalServerError", "The answer does not parse (simulated).") from None
        return chat


def questions_of(body: Mapping[str, Any]) -> list[Json]:
    """The questions, checked as vLLM checks them. Raises ApiError."""
    unknown = [(name, "Extra inputs are not permitted", "extra_forbidden") for name in sorted(body.keys() - _FIELDS)]
    missing = [(name, "Field required", "missing") for name in ("model", "input", "questions") if not body.get(name)]
    questions = body.get("questions")
    if unknown or missing or not isinstance(questions, list):
        raise field_errors(unknown + missing or [("questions", "Input should be a valid list", "list_type")])
    for index, question in enumerate(questions):
        if not isinstance(question, dict) or not isinstance(question.get("instructions"), str):
            raise field_errors([(f"questions.{index}.instructions", "Field required", "missing")])
        if question.get("type") not in ("predicate", *_OPTIONS):
            raise field_errors([(f"questions.{index}.type", "Input tag is unknown", "union_tag_invalid")])
        options = options_of(question)
        most = 2 if question["type"] == "predicate" else _OPTIONS[question["type"]][2]
        if not 2 <= len(options) <= most or len({json.dumps(option) for option in options}) != len(options):
            raise field_errors([(f"questions.{index}", f"2 to {most} distinct options are needed", "value_error")])
        if len(options) > len(LETTERS):
            raise invalid(f"This model supports at most {len(LETTERS)} choices per question")
    return questions


def options_of(question: Mapping[str, Any]) -> list[Any]:
    """The values among which a question asks."""
    if question["type"] == "predicate":
        return [False, True]
    field, key, _ = _OPTIONS[question["type"]]
    listed = question.get(field)
    if not isinstance(listed, list):
        return []
    return [option.get(key) for option in listed if isinstance(option, dict)]


def chat_of(body: Mapping[str, Any], question: Mapping[str, Any]) -> bytes:
    """The chat request whose one token answers a question. Raises ApiError."""
    options = options_of(question)
    lines = [f"Question: {question['instructions']}"] if question["instructions"] else []
    lines += [
        f"{letter}: {json.dumps(option, ensure_ascii=False)}" for letter, option in zip(LETTERS, options, strict=False)
    ]
    text = "\n".join([input_text(body["input"]), "", *lines, "Answer with the letter of one option only."])
    chat = {
        "model": body["model"],
        "messages": [{"role": "user", "content": text}],
        "structured_outputs": {"choice": list(LETTERS[: len(options)])},
        "max_tokens": 1,
        "temperature": 0,
        "cache_salt": body.get("cache_salt"),
    }
    return json.dumps({name: value for name, value in chat.items() if value is not None}).encode()


def input_text(value: object) -> str:
    """The input's text; its messages are the user's and hold text only. Raises ApiError."""
    if isinstance(value, str):
        return value
    texts: list[str] = []
    for index, message in enumerate(value if isinstance(value, list) else [None]):
        if not isinstance(message, dict) or message.get("role") != "user":
            raise field_errors([(f"input.{index}.role", "Input should be 'user'", "literal_error")])
        content = message.get("content")
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list) or any(part.get("type") != "input_text" for part in parts):
            raise field_errors([(f"input.{index}.content", "Decisions supports text input only", "value_error")])
        texts.append("\n".join(str(part["text"]) for part in parts))
    return "\n\n".join(texts)


def answer_of(question: Mapping[str, Any], letter: str) -> Json:
    """The answer to a question whose option was drawn."""
    options = options_of(question)
    at = LETTERS.index(letter)
    shares = [LIKELIEST if i == at else (1 - LIKELIEST) / (len(options) - 1) for i in range(len(options))]
    answer: Json = {"type": question["type"], "name": question.get("name")}
    if question["type"] == "predicate":
        return {**answer, "probability": shares[1]}
    if question["type"] == "choice":
        answer["choice"] = options[at]
        answer["probabilities"] = [{"value": o, "probability": p} for o, p in zip(options, shares, strict=True)]
    else:
        answer["score"] = sum(i * share for i, share in enumerate(shares))
        answer["probabilities"] = [
            {"value": i, "label": o, "probability": p} for i, (o, p) in enumerate(zip(options, shares, strict=True))
        ]
    return {**answer, "confidence": LIKELIEST}


def decided(model: str, answers: list[Json], chats: list[Json]) -> Json:
    """The whole answer."""
    prompt = sum(chat["usage"]["prompt_tokens"] for chat in chats)
    output = sum(chat["usage"]["completion_tokens"] for chat in chats)
    details = (chat["usage"].get("prompt_tokens_details") or {} for chat in chats)
    return {
        "model": model,
        "answers": answers,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": sum(found.get("cached_tokens") or 0 for found in details),
                "cache_write_tokens": 0,
            },
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + output,
        },
    }
