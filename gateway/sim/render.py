"""Answers on the wire: vLLM's JSON objects, and its stream chunks from byte templates that are made once a request.

A chunk holds all tokens of one engine step, so under drafting it often holds several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.sim.answer import Answer
from gateway.sim.sequence import Sequence

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-simulated"

Json = dict[str, Any]


def event(value: Json) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def usage(prompt: int, completion: int, cached: int | None) -> Json:
    """`cached` None: the server does not tell."""
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": details,
    }


def request_metrics(sequence: Sequence, k: int) -> Json:
    """vLLM's per-request `metrics`; the first token's time counts from scheduling, not from arrival."""
    scheduled, first = sequence.scheduled or 0.0, sequence.first_token or 0.0
    generation = (sequence.last_token or first) - first
    steps = sequence.generated - 1
    metrics: Json = {
        "time_to_first_token_ms": 1000 * (first - scheduled),
        "generation_time_ms": 1000 * generation,
        "queue_time_ms": 1000 * max(0.0, scheduled - sequence.arrived),
        "mean_itl_ms": 1000 * generation / steps if steps else None,
        "tokens_per_second": steps / generation if generation else None,
    }
    if k:
        histogram = [sequence.accepted_by_step.count(accepted) for accepted in range(k + 1)]
        drafts = sequence.draft_steps
        metrics["speculative_decoding"] = {
            "mean_acceptance_length": 1 + sequence.accepted_tokens / drafts if drafts else None,
            "draft_acceptance_rate": sequence.accepted_tokens / sequence.draft_tokens if drafts else None,
            "acceptance_histogram": histogram,
            "num_spec_steps": drafts,
            "num_accepted_draft_tokens": sequence.accepted_tokens,
            "num_draft_tokens": sequence.draft_tokens,
            "num_spec_tokens": k,
        }
    return metrics


@dataclass(slots=True)
class Renderer:
    """Renders the choices of one request."""

    chat: bool
    id: str
    created: int
    model: str
    logprobs: int | None = None
    token_ids: Callable[[tuple[str, ...]], list[int]] | None = None
    """Gives ids where the client asked for them."""
    _heads: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def _frame(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    # Streaming

    def role(self, index: int, used: Json | None) -> bytes:
        """The first chunk of a chat choice."""
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        frame = self._frame(self._chunk_kind, [choice])
        frame["prompt_token_ids"] = None
        if used is not None:
            frame["usage"] = used
        return event(frame)

    def chunk(self, index: int, answer: Answer, start: int, end: int, used: Json | None) -> bytes:
        """Tokens `start` to `end` of a choice; the last chunk carries the finish reason."""
        done = end >= len(answer.tokens)
        if not done and used is None and self.logprobs is None and self.token_ids is None:
            segment = answer.segments[0]
            if segment.kind == "content" and end <= segment.end:
                head, tail = self._template(index)
                return head + orjson.dumps("".join(answer.tokens[start:end])) + tail
        choice: Json = {"index": index}
        if self.chat:
            choice["delta"] = self._delta(index, answer, start, end)
        else:
            choice["text"] = "".join(answer.tokens[start:end])
        choice["logprobs"] = self._logprobs(answer, start, end)
        choice["finish_reason"] = answer.finish if done else None
        if done or not self.chat:
            choice["stop_reason"] = answer.stop_reason if done else None
        choice["token_ids"] = self.token_ids(answer.tokens[start:end]) if self.token_ids else None
        frame = self._frame(self._chunk_kind, [choice])
        if done:
            frame["system_fingerprint"] = FINGERPRINT
        if used is not None:
            frame["usage"] = used
        return event(frame)

    def echo(self, index: int, prompt: str) -> bytes:
        """A completion's prompt, sent back first."""
        head, tail = self._template(index)
        return head + orjson.dumps(prompt) + tail

    def usage_chunk(self, used: Json, metrics: Json | None) -> bytes:
        frame = self._frame(self._chunk_kind, [])
        frame["usage"] = used
        if metrics is not None:
            frame["metrics"] = metrics
        return event(frame)

    def _template(self, index: int) -> tuple[bytes, bytes]:
        """The bytes around a plain chunk's text."""
        template = self._heads.get(index)
        if template is None:
            opening = b'"delta":{"content":' if self.chat else b'"text":'
            closing = b"}" if self.chat else b""
            frame = orjson.dumps(self._frame(self._chunk_kind, []))[: -len(b"]}")]
            stop = b"" if self.chat else b',"stop_reason":null'
            template = (
                b"data: " + frame + b'{"index":%d,' % index + opening,
                closing + b',"logprobs":null,"finish_reason":null' + stop + b',"token_ids":null}]}\n\n',
            )
            self._heads[index] = template
        return template

    def _delta(self, index: int, answer: Answer, start: int, end: int) -> Json:
        delta: Json = {}
        for segment in answer.segments:
            low, high = max(start, segment.start), min(end, segment.end)
            if low >= high:
                continue
            text = "".join(answer.tokens[low:high])
            if segment.kind != "tool":
                delta[segment.kind] = text
                continue
            call: Json = {"index": 0, "function": {"arguments": text}}
            if low == segment.start:
                call.update(id=self._call_id(index), type="function")
                call["function"] = {"name": segment.name, "arguments": text}
            delta["tool_calls"] = [call]
        return delta or {"content": ""}

    def _call_id(self, index: int) -> str:
        return f"chatcmpl-tool-{self.id[-24:]}{index}"

    # Whole answers

    def whole(self, choices: list[Json], used: Json, metrics: Json | None) -> bytes:
        frame = self._frame("chat.completion" if self.chat else "text_completion", choices)
        frame.update(
            service_tier=None,
            system_fingerprint=FINGERPRINT,
            usage=used,
            prompt_logprobs=None,
            prompt_token_ids=None,
            kv_transfer_params=None,
        )
        if metrics is not None:
            frame["metrics"] = metrics
        return orjson.dumps(frame)

    def choice(self, index: int, answer: Answer, echo: str = "") -> Json:
        """A finished choice."""
        choice: Json = {"index": index}
        if self.chat:
            choice["message"] = self._message(index, answer)
        else:
            choice["text"] = echo + answer.text()
        choice["logprobs"] = self._logprobs(answer, 0, len(answer.tokens))
        choice["finish_reason"] = answer.finish
        choice["stop_reason"] = answer.stop_reason
        choice["token_ids"] = self.token_ids(answer.tokens) if self.token_ids else None
        if not self.chat:
            choice.update(prompt_logprobs=None, prompt_token_ids=None)
        return choice

    def _message(self, index: int, answer: Answer) -> Json:
        calls = [
            {
                "id": self._call_id(index),
                "type": "function",
                "function": {"name": segment.name, "arguments": answer.text("tool")},
            }
            for segment in answer.segments
            if segment.kind == "tool"
        ]
        content = answer.text()
        return {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": calls,
            "reasoning": answer.text("reasoning") or None,
        }

    def _logprobs(self, answer: Answer, start: int, end: int) -> Json | None:
        if self.logprobs is None:
            return None
        tokens = answer.tokens[start:end]
        if self.chat:
            return {"content": [self._chat_logprob(token) for token in tokens]}
        offset = sum(map(len, answer.tokens[:start]))
        offsets = [offset + sum(map(len, tokens[:i])) for i in range(len(tokens))]
        return {
            "text_offset": offsets,
            "token_logprobs": [_logprob(token) for token in tokens],
            "tokens": list(tokens),
            "top_logprobs": [{token: _logprob(token)} if self.logprobs else None for token in tokens],
        }

    def _chat_logprob(self, token: str) -> Json:
        entry = {"token": token, "logprob": _logprob(token), "bytes": list(token.encode("utf-8", "replace"))}
        return {**entry, "top_logprobs": [entry] if self.logprobs else []}


def _logprob(token: str) -> float:
    """A believable figure that depends on nothing but the token."""
    return -0.01 - (sum(map(ord, token)) % 97) / 100
