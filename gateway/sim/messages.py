"""`/v1/messages`: chat's answer in Anthropic's format, with the events and the order of vLLM's own conversion."""

from __future__ import annotations

import json
from typing import Any

import orjson

from gateway.sim.errors import ApiError
from gateway.sim.formats import Adapted, Json
from gateway.sim.http import Send

_STOP = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def stop_of(finish: str, reason: Any) -> tuple[str, str | None]:
    """Anthropic's stop reason and stop sequence."""
    if finish == "stop" and isinstance(reason, str):
        return "stop_sequence", reason
    return _STOP.get(finish, "end_turn"), None


class MessagesReply(Adapted):
    """One answer."""

    def __init__(self, send: Send) -> None:
        super().__init__(send)
        self._open: str | None = None
        self._index = -1
        self._failed = False
        self._stop: tuple[str, str | None] = ("end_turn", None)

    def refusal(self, error: ApiError) -> bytes:
        kind = "overloaded_error" if error.status == 503 else error.kind
        return json.dumps({"type": "error", "error": {"type": kind, "message": error.message}}).encode()

    def failed(self, error: Json) -> Json:
        self._failed = True
        return {"type": "error", "error": {"type": "internal_error", "message": error["message"]}}

    def answer(self, chat: Json) -> Json:
        choice = chat["choices"][0]
        message = choice["message"]
        content: list[Json] = []
        if message.get("reasoning"):
            content.append({"type": "thinking", "thinking": message["reasoning"], "signature": ""})
        if message.get("content"):
            content.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls") or ():
            function = call["function"]
            content.append(
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": function["name"],
                    "input": _object(function["arguments"]),
                }
            )
        stop = stop_of(choice["finish_reason"], choice.get("stop_reason"))
        used = chat["usage"]
        return {
            "id": chat["id"],
            "type": "message",
            "role": "assistant",
            "content": content or [{"type": "text", "text": ""}],
            "model": chat["model"],
            "stop_reason": stop[0],
            "stop_sequence": stop[1],
            "usage": {"input_tokens": used["prompt_tokens"], "output_tokens": used["completion_tokens"]},
        }

    def events(self, chunk: Json) -> list[Json]:
        used = chunk.get("usage") or {}
        counts = {"input_tokens": used.get("prompt_tokens", 0), "output_tokens": used.get("completion_tokens", 0)}
        if not chunk["choices"]:
            reason, sequence = self._stop
            delta = {"stop_reason": reason, "stop_sequence": sequence}
            return [*self._close(), {"type": "message_delta", "delta": delta, "usage": counts}]
        choice = chunk["choices"][0]
        events: list[Json] = []
        if choice["delta"].get("role"):
            message = {
                "id": chunk["id"],
                "type": "message",
                "role": "assistant",
                "content": [],
                "model": chunk["model"],
            }
            message |= {"stop_reason": None, "stop_sequence": None, "usage": counts}
            events.append({"type": "message_start", "message": message})
        events += self._deltas(choice["delta"])
        if choice.get("finish_reason"):
            self._stop = stop_of(choice["finish_reason"], choice.get("stop_reason"))
        return events

    def ended(self) -> list[Json]:
        return [] if self._failed else [{"type": "message_stop"}]

    def _deltas(self, delta: Json) -> list[Json]:
        events: list[Json] = []
        if text := delta.get("reasoning"):
            events += self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._delta({"type": "thinking_delta", "thinking": text}))
        if text := delta.get("content"):
            events += self._block("text", {"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": text}))
        for call in delta.get("tool_calls") or ():
            if call.get("id"):
                start = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
                events += self._block(call["id"], start)
            if arguments := call["function"].get("arguments"):
                events.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return events

    def _block(self, name: str, start: Json) -> list[Json]:
        if self._open == name:
            return []
        events = self._close()
        self._open = name
        self._index += 1
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": start}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> list[Json]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._index}]


def _object(text: str) -> Any:
    """A call's arguments; cut ones (by `max_tokens`) are no object."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
