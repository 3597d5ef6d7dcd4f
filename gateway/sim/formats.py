"""The Responses and the Messages format on top of chat, as vLLM does it: a body becomes a chat body, and chat's answer
is sent in the other format by a `Reply` that stands between."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.request.formats import as_chat
from gateway.request.parse import is_true
from gateway.sim.errors import ApiError, field_errors
from gateway.sim.http import JSON, Headers, Reply
from gateway.types import Api

Json = dict[str, Any]


def chat_body(body: Mapping[str, Any], api: Api) -> bytes:
    """The chat body that does the same. Raises ApiError for what the format needs and the body lacks."""
    needed = {"input": "input"} if api is Api.RESPONSES else {"messages": "messages", "max_tokens": "max_tokens"}
    missing = [(name, "Field required", "missing") for name in needed if body.get(name) is None]
    if missing:
        raise field_errors(missing)
    view: Json = as_chat(dict(body), api)
    view["messages"] = [{**turn, "content": _parts(turn.get("content"))} for turn in view["messages"]]
    choice = view.get("tool_choice")
    if isinstance(choice, dict):
        view["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    form = view.get("response_format")
    if isinstance(form, dict) and form.get("type") in (None, "text"):
        del view["response_format"]
    if not view.get("tools"):
        for name in ("tools", "tool_choice"):
            view.pop(name, None)
    if api is Api.RESPONSES:
        view["max_completion_tokens"] = body.get("max_output_tokens")
        reasoning = view.pop("reasoning", None)
        if isinstance(reasoning, dict) and reasoning.get("effort"):
            view["reasoning_effort"] = reasoning["effort"]
    if is_true(body.get("stream")):
        view["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    # The standard library's, because a number may be beyond 64 bits.
    return json.dumps({name: value for name, value in view.items() if value is not None}).encode()


def _parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [
        {**part, "type": "text"} if isinstance(part, dict) and isinstance(part.get("text"), str) else part
        for part in content
    ]


class Adapted(Reply):
    """Takes chat's answer and sends another format's. What is no chat event or object is passed on as it is."""

    def events(self, chunk: Json) -> list[Json]:
        """The events for one chunk of a chat stream."""
        raise NotImplementedError

    def ended(self) -> list[Json]:
        """The events for `[DONE]`."""
        raise NotImplementedError

    def answer(self, chat: Json) -> Json:
        """The object for a whole chat answer."""
        raise NotImplementedError

    def failed(self, error: Json) -> Json:
        """The event for an error within a stream."""
        raise NotImplementedError

    def refusal(self, error: ApiError) -> bytes:
        """The body for an error before anything was sent."""
        return error.body()

    async def part(self, body: bytes) -> None:
        await super().part(self._converted(body))

    async def end(self, body: bytes = b"") -> None:
        await super().end(self._converted(body))

    async def whole(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        if status == 200:
            # What does not parse is the fault `wrong_json`, which is passed on.
            with contextlib.suppress(orjson.JSONDecodeError):
                body = orjson.dumps(self.answer(orjson.loads(body)))
        sent: Headers = [(b"content-length", b"%d" % len(body)), *(headers or (JSON,))]
        await self.start(status, sent)
        await super().end(body)

    def _converted(self, body: bytes) -> bytes:
        if not body.startswith(b"data: "):
            return body
        sent: list[bytes] = []
        for piece in body.split(b"\n\n"):
            data = piece.removeprefix(b"data: ")
            if not data:
                continue
            if data == b"[DONE]":
                events = self.ended()
            else:
                try:
                    chunk = orjson.loads(data)
                except orjson.JSONDecodeError:
                    sent.append(piece + b"\n\n")
                    continue
                events = [self.failed(chunk["error"])] if "error" in chunk else self.events(chunk)
            sent += [
                b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n" for event in events
            ]
        return b"".join(sent)
