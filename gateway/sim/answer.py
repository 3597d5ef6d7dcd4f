"""The answer to a request, planned whole before its first token, so that it is the same streamed or not.

An answer is a list of token texts in segments (reasoning, content, a tool call). Same seed, same request: same answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gateway.sim.banks import CODE, LABELS, SENTENCES, THOUGHTS
from gateway.sim.errors import invalid
from gateway.sim.prompts import tool_names
from gateway.sim.reading import Reading, language_of, length, read
from gateway.sim.request import Request
from gateway.sim.tokens import pieces
from gateway.sim.values import from_pattern, from_schema
from gateway.types import Task

EOS = ""
"""The end-of-turn token: it counts and has no text."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of one kind: `reasoning`, `content` or `tool`. `end` is one past the last."""

    kind: str
    start: int
    end: int
    name: str = ""
    """The called function, for `tool`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A planned answer of one choice."""

    task: Task
    tokens: tuple[str, ...]
    segments: tuple[Segment, ...]
    finish: str
    """`stop`, `length` or `tool_calls`."""
    stop_reason: str | None = None

    def text(self, kind: str = "content") -> str:
        return "".join("".join(self.tokens[s.start : s.end]) for s in self.segments if s.kind == kind)


def seed_of(request: Request, choice: int, server_seed: int) -> int:
    """A seed by everything that shapes the answer; how it is delivered (stream, usage) does not."""
    shaping = [request.prompts, request.body.get("seed"), request.body.get("tools"), choice, server_seed]
    digest = hashlib.blake2b(repr(shaping).encode("utf-8", "backslashreplace"), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def plan(request: Request, prompt: str, choice: int, *, server_seed: int, room: int) -> Answer:
    """The answer of one choice. `room` is what the context leaves for output tokens."""
    rng = Random(seed_of(request, choice, server_seed))
    task, runs = _runs(request, prompt, rng)
    tokens: list[str] = []
    segments: list[Segment] = []
    for kind, name, texts in runs:
        segments.append(Segment(kind, len(tokens), len(tokens) + len(texts), name))
        tokens.extend(texts)
    cap = min(room, request.max_tokens if request.max_tokens is not None else room)
    if not request.ignore_eos and not _forced(request):
        tokens.append(EOS)
    finish = "tool_calls" if any(segment.kind == "tool" for segment in segments) else "stop"
    answer = Answer(task=task, tokens=tuple(tokens), segments=tuple(segments), finish=finish)
    answer = _lengthened(answer, request, cap, rng)
    answer = _stopped(answer, request)
    return _capped(answer, cap)


def _runs(request: Request, prompt: str, rng: Random) -> tuple[Task, list[tuple[str, str, list[str]]]]:
    """Task, and (kind, name, token texts) of each segment."""
    instruction = request.instruction or prompt
    reading = _forced_reading(request, read(instruction, rng))
    runs: list[tuple[str, str, list[str]]] = []
    if _thinks(request):
        budget = request.body.get("thinking_token_budget")
        thought = length(Task.REASONING, rng)
        thought = min(thought, int(budget)) if budget is not None else thought
        runs.append(("reasoning", "", _prose(THOUGHTS[reading.language], thought, rng, exact=False)))
    constrained = _constrained(request, reading.language, rng)
    call = _tool_call(request, instruction, rng)
    if constrained is not None:
        return constrained[0], [*runs, ("content", "", pieces(constrained[1]))]
    if call is not None:
        return Task.TOOL_CALL, [*runs, ("tool", call[0], pieces(call[1]))]
    return reading.task, [*runs, ("content", "", _free_text(reading, rng))]


def _xargs(request: Request) -> Mapping[str, Any]:
    xargs = request.body.get("vllm_xargs")
    return xargs if isinstance(xargs, Mapping) else {}


def _forced(request: Request) -> bool:
    return isinstance(_xargs(request).get("sim_output_tokens"), int)


def _forced_reading(request: Request, reading: Reading) -> Reading:
    """Lets `vllm_xargs` say the task (`sim_task`) and the exact length (`sim_output_tokens`)."""
    xargs = _xargs(request)
    if xargs.get("sim_task") in list(Task):
        reading = replace(reading, task=Task(xargs["sim_task"]), tokens=max(reading.tokens, 1))
    if _forced(request):
        return replace(reading, tokens=max(1, min(xargs["sim_output_tokens"], 1_000_000)), exact=True)
    return reading


def _thinks(request: Request) -> bool:
    template = request.body.get("chat_template_kwargs")
    switch = template.get("enable_thinking") if isinstance(template, Mapping) else None
    if switch is None:
        switch = request.body.get("reasoning_effort") not in (None, "none")
    return request.chat and switch is True


def _constrained(request: Request, language: str, rng: Random) -> tuple[Task, str] | None:
    """The answer that `response_format` or `structured_outputs` forces; None where there is none."""
    shape = request.body.get("structured_outputs") or {}
    wanted = request.body.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        inner = wanted.get("json_schema") or {}
        shape = {"json": inner.get("schema") if isinstance(inner, Mapping) else None}
    elif wanted.get("type") == "json_object":
        shape = {"json_object": True}
    choices = shape.get("choice")
    if isinstance(choices, list) and choices:
        return Task.CLASSIFICATION, str(rng.choice(choices))
    if shape.get("json") is not None:
        schema = shape["json"]
        if isinstance(schema, str):
            schema = _parsed(schema)
        value = _instance(schema, rng, language)
        return Task.STRUCTURED_JSON, json.dumps(value, ensure_ascii=False)
    if shape.get("json_object"):
        keys = {"title": {"type": "string"}, "items": {"type": "array"}, "count": {"type": "integer"}}
        return Task.STRUCTURED_JSON, json.dumps(from_schema({"properties": keys}, rng, language), ensure_ascii=False)
    if isinstance(shape.get("regex"), str):
        text = from_pattern(shape["regex"], rng)
        return None if text is None else (Task.EXTRACTION, text)
    return None


def _instance(schema: object, rng: Random, language: str) -> object:
    """An instance of the schema. Raises ApiError (400) for one that makes no sense, as a grammar compiler would."""
    try:
        return from_schema(schema, rng, language)
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise invalid(f"Failed to compile the JSON schema: {error}") from error


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _tool_call(request: Request, instruction: str, rng: Random) -> tuple[str, str] | None:
    """Function name and arguments where the request forces a call or its text names a function's subject."""
    tools = request.body.get("tools")
    choice = request.body.get("tool_choice", "auto")
    names = tool_names(tools) if isinstance(tools, list) else []
    if not names or choice == "none":
        return None
    if isinstance(choice, Mapping):
        name = str(choice["function"]["name"])
    elif choice == "required":
        name = rng.choice(names)
    else:
        last = request.body["messages"][-1]
        if last.get("role") == "tool":
            return None
        words = {word for word in instruction.lower().split() if len(word) > 3}
        named = [name for name in names if words & set(name.lower().replace("-", "_").split("_"))]
        if not named:
            return None
        name = named[0]
    function = next(tool["function"] for tool in tools or [] if tool["function"].get("name") == name)
    value = _instance(function.get("parameters"), rng, language_of(instruction))
    return name, json.dumps(value if isinstance(value, dict) else {}, ensure_ascii=False)


def _free_text(reading: Reading, rng: Random) -> list[str]:
    if reading.task is Task.MULTIPLE_CHOICE and not reading.exact:
        return [rng.choice("ABCDE")]
    if reading.task is Task.CLASSIFICATION and not reading.exact:
        return pieces(rng.choice(LABELS[reading.language]))
    if reading.task is Task.CODE:
        lines = ["```python\n", *_prose(CODE, reading.tokens - 6, rng, exact=False), "```"]
        texts = pieces("".join(lines))
        return _fit(texts, reading.tokens, rng) if reading.exact else texts
    return _prose(SENTENCES[reading.language], reading.tokens, rng, exact=reading.exact)


def _prose(bank: tuple[str, ...], tokens: int, rng: Random, *, exact: bool) -> list[str]:
    """Sentences in a drawn order until there are `tokens`: exactly so many, or up to the sentence's end."""
    texts: list[str] = []
    order: list[str] = []
    while len(texts) < tokens:
        if not order:
            order = rng.sample(bank, len(bank))
        sentence = order.pop()
        spaced = " " if texts and sentence[-1] == "." else ""
        texts.extend(pieces(spaced + sentence))
    return texts[:tokens] if exact else texts


def _fit(texts: list[str], tokens: int, rng: Random) -> list[str]:
    """Cuts to the length asked for, or writes on in code."""
    while len(texts) < tokens:
        texts.extend(pieces("\n" + rng.choice(CODE)))
    return texts[:tokens]


def _lengthened(answer: Answer, request: Request, cap: int, rng: Random) -> Answer:
    """Writes on to `min_tokens`, or to the cap under `ignore_eos`."""
    floor = cap if request.ignore_eos else min(request.min_tokens, cap)
    if len(answer.tokens) >= floor or answer.finish == "tool_calls":
        return answer
    tokens = [token for token in answer.tokens if token != EOS]
    more = _prose(SENTENCES[language_of(request.instruction)], floor - len(tokens), rng, exact=True)
    more[0] = " " + more[0].lstrip()
    segments = list(answer.segments)
    segments[-1] = replace(segments[-1], end=floor)
    return replace(answer, tokens=(*tokens, *more), segments=tuple(segments))


def _stopped(answer: Answer, request: Request) -> Answer:
    """Ends at the first stop string after `min_tokens` in the content."""
    content = next((s for s in answer.segments if s.kind == "content"), None)
    if not request.stop or content is None:
        return answer
    tokens = answer.tokens[content.start : content.end]
    skipped = len("".join(tokens[: max(0, request.min_tokens - content.start)]))
    text = "".join(tokens)
    found = [(text.find(stop, skipped), stop) for stop in request.stop if text.find(stop, skipped) >= 0]
    if not found:
        return answer
    at, stop = min(found)
    keep = at + (len(stop) if request.flag("include_stop_str_in_output") else 0)
    kept: list[str] = []
    position = 0
    for token in tokens:
        # The token that completes the stop string was generated too, though its text is cut.
        if position >= at + len(stop):
            break
        kept.append(token[: max(0, keep - position)])
        position += len(token)
    return replace(
        answer,
        tokens=(*answer.tokens[: content.start], *kept),
        segments=(
            *(s for s in answer.segments if s.end <= content.start),
            replace(content, end=content.start + len(kept)),
        ),
        stop_reason=stop,
    )


def _capped(answer: Answer, cap: int) -> Answer:
    if len(answer.tokens) <= cap:
        return answer
    segments = tuple(replace(s, end=min(s.end, cap)) for s in answer.segments if s.start < cap)
    return replace(answer, tokens=answer.tokens[:cap], segments=segments, finish="length", stop_reason=None)
