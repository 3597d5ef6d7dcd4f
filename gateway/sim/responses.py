"""`/v1/responses`: chat's answer in the Responses format, and the answers that are kept for `GET /v1/responses/{id}`.

As with vLLM, a stream always ends in `response.completed`, also where the limit cut the answer: that is in its status.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from gateway.sim.formats import Adapted, Json
from gateway.sim.http import Send


class ResponsesReply(Adapted):
    """One answer, kept in `stored` under its id."""

    def __init__(self, send: Send, body: Mapping[str, Any], stored: dict[str, Json], response_id: str = "") -> None:
        super().__init__(send)
        self.id = response_id or f"resp_{uuid.uuid4().hex}"
        self._body = body
        self._stored = stored
        self._sequence = -1
        self._items: list[Json] = []
        self._open: Json | None = None
        self._text = ""
        self._finish = "stop"
        self._chat: Json = {}
        self._failed = False

    def object(self, status: str, chat: Json, output: list[Json]) -> Json:
        """The response object; `chat` gives model, time and usage."""
        used = chat.get("usage")
        tokens = used and {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used["total_tokens"],
        }
        body = self._body
        response = {
            "id": self.id,
            "created_at": chat.get("created", 0),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": chat.get("model", body.get("model")),
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": body.get("temperature", 1.0),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_p": body.get("top_p", 1.0),
            "background": body.get("background", False),
            "max_output_tokens": body.get("max_output_tokens"),
            "previous_response_id": body.get("previous_response_id"),
            "status": status,
            "text": body.get("text"),
            "usage": tokens,
        }
        if body.get("store") is not False:
            self._stored[self.id] = response
        return response

    def answer(self, chat: Json) -> Json:
        choice = chat["choices"][0]
        message = choice["message"]
        output: list[Json] = []
        if message.get("reasoning"):
            output.append(_reasoning(message["reasoning"]))
        if message.get("content"):
            output.append(_message(message["content"], "completed"))
        output += [
            _call(call["id"], call["function"]["name"], call["function"]["arguments"], "completed")
            for call in message.get("tool_calls") or ()
        ]
        return self.object(_status(choice["finish_reason"]), chat, output)

    def failed(self, error: Json) -> Json:
        self._failed = True
        return self._event("error", code=str(error["code"]), message=error["message"], param=None, error=error)

    def events(self, chunk: Json) -> list[Json]:
        self._chat = chunk
        if not chunk["choices"]:
            return []
        choice = chunk["choices"][0]
        events: list[Json] = []
        if self._sequence < 0:
            begun = {**chunk, "usage": None}
            events.append(self._event("response.created", response=self.object("in_progress", begun, [])))
            events.append(self._event("response.in_progress", response=self.object("in_progress", begun, [])))
        delta = choice["delta"]
        if text := delta.get("reasoning"):
            events += self._deltas("reasoning", _reasoning(""), text)
        if text := delta.get("content"):
            events += self._deltas("message", _message(None, "in_progress"), text)
        for call in delta.get("tool_calls") or ():
            if call.get("id"):
                events += self._close()
            item = _call(call.get("id", ""), call["function"].get("name", ""), "", "in_progress")
            events += self._deltas("function_call", item, call["function"].get("arguments") or "")
        self._finish = choice.get("finish_reason") or self._finish
        return events

    def ended(self) -> list[Json]:
        if self._failed:
            return []
        events = self._close()
        response = self.object(_status(self._finish), self._chat, self._items)
        return [*events, self._event("response.completed", response=response)]

    def _deltas(self, kind: str, item: Json, text: str) -> list[Json]:
        events: list[Json] = []
        if self._open is None or self._open["type"] != kind:
            events += self._close()
            self._open, self._text = item, ""
            events.append(self._event("response.output_item.added", output_index=len(self._items), item=item))
            if kind == "message":
                events.append(self._placed("response.content_part.added", part=_text("")))
        self._text += text
        name = {
            "message": "response.output_text.delta",
            "reasoning": "response.reasoning_text.delta",
            "function_call": "response.function_call_arguments.delta",
        }[kind]
        more: Json = {"logprobs": []} if kind == "message" else {}
        return [*events, self._placed(name, delta=text, **more)]

    def _close(self) -> list[Json]:
        """Ends the item that is under way."""
        item, text = self._open, self._text
        if item is None:
            return []
        events: list[Json] = []
        if item["type"] == "message":
            events.append(self._placed("response.output_text.done", text=text, logprobs=[]))
            events.append(self._placed("response.content_part.done", part=_text(text)))
            done = {**item, "content": [_text(text)], "status": "completed"}
        elif item["type"] == "reasoning":
            events.append(self._placed("response.reasoning_text.done", text=text))
            done = {**_reasoning(text), "id": item["id"]}
        else:
            events.append(self._placed("response.function_call_arguments.done", arguments=text, name=item["name"]))
            done = {**item, "arguments": text, "status": "completed"}
        events.append(self._event("response.output_item.done", output_index=len(self._items), item=done))
        self._items.append(done)
        self._open = None
        return events

    def _placed(self, kind: str, **fields: Any) -> Json:
        """An event of the item that is under way."""
        item = self._open or {}
        return self._event(kind, item_id=item.get("id"), output_index=len(self._items), content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **fields}


def _status(finish: str) -> str:
    return "incomplete" if finish == "length" else "completed"


def _text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _message(text: str | None, status: str) -> Json:
    content = [] if text is None else [_text(text)]
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _reasoning(text: str) -> Json:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "summary": [], "content": content, "status": None}


def _call(call_id: str, name: str, arguments: str, status: str) -> Json:
    return {
        "id": f"fc_{uuid.uuid4().hex}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }
