"""A parsed body -> `Features`. Pure and bounded: at 10 MB it reads no more than at 200 KB.

caps.py and structure.py read the parameters; content.py finds the conversation; asking.py what is asked; examples.py
what the examples' answers look like; keys.py makes the hashes; tools.py and tokens.py count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gateway.request.asking import Asking, read_ask
from gateway.request.caps import Caps, Thinking, read_caps, read_needs, read_thinking, read_tool_choice
from gateway.request.content import Dialogue, read
from gateway.request.examples import in_prompt, in_turns
from gateway.request.formats import as_chat
from gateway.request.instruction import code_share
from gateway.request.keys import shape_key, text_keys, thread_key
from gateway.request.parse import Body, is_true
from gateway.request.structure import Shape, read_structure
from gateway.request.tokens import Profile, TokenEstimator, count_parts, rough_tokens, rough_total
from gateway.request.tools import read_tools, required_fields
from gateway.types import NO_HINTS, Api, Features, Hints, Structure, Task, ToolChoice

_COUNT_CHARS = 64 * 1024
_SAMPLE = 2048
_INSTRUCTION = 1000
_MOSTLY_CODE = 0.4
_UNSURE = 1.5
"""Weight of "none of these" beside the evidence: one faint hint gives 40 %, a clear word 75 %."""


class _Read(NamedTuple):
    """All that was read from one body, before it is put together."""

    dialogue: Dialogue
    caps: Caps
    thinking: Thinking
    shape: Shape
    tools: int
    choice: ToolChoice
    asking: Asking
    code: float
    counted: tuple[Profile, int]
    examples: tuple[int | None, int, int | None]
    cap: int | None


def extract(body: Body, api: Api, hints: Hints = NO_HINTS, tokens: TokenEstimator | None = None) -> Features:
    """What the request says about its answer. Never raises, whatever JSON the body holds.

    `tokens` counts the prompt with what it has learned; without it the starting weights count.
    """
    data = as_chat(body.data, api)
    body = body if data is body.data else replace(body, data=data)
    dialogue = read(data, api)
    tools, tool_bytes = read_tools(data.get("tools") or data.get("functions"))
    caps, thinking, shape = read_caps(data, api), read_thinking(data), read_structure(data)
    code = code_share(dialogue.user)
    found = _Read(
        dialogue,
        caps,
        thinking,
        shape,
        tools,
        read_tool_choice(data, tools),
        read_ask(dialogue.user, dialogue.system),
        code,
        _count(dialogue, tool_bytes, body.hidden_text),
        _examples(dialogue, code),
        _cap(caps, shape, thinking),
    )
    return _assemble(body, api, hints, found, tokens or TokenEstimator())


def _assemble(body: Body, api: Api, hints: Hints, found: _Read, tokens: TokenEstimator) -> Features:
    data, model = body.data, body.model or ""
    dialogue, caps, thinking, shape, tools, choice, asking, code, (profile, text_bytes), examples, cap = found
    keys = text_keys(dialogue.system, dialogue.user)
    return Features(
        api=api,
        model=model,
        stream=body.stream,
        input_tokens=tokens.estimate(model, profile),
        text_bytes=text_bytes,
        language=asking.language,
        cap=cap,
        explicit_cap=caps.explicit,
        token_limit=caps.limit,
        structure_tokens=round(shape.size.typical) if shape.size else None,
        floor=min(caps.floor, cap) if cap is not None else caps.floor,
        stop_line=caps.stop_line,
        scoring=caps.scoring,
        n=caps.n * dialogue.prompts,
        structure=shape.kind,
        legacy_guided=shape.legacy,
        labels=shape.labels or caps.allowed_ids,
        tools=tools,
        tool_choice=choice,
        thinking=thinking.on,
        thinking_budget=thinking.budget,
        turns=dialogue.turns,
        prefill=_is_prefill(data, dialogue),
        after_tool=dialogue.after_tool,
        wish=asking.wish.tokens if asking.wish else None,
        wish_firm=asking.wish.firm if asking.wish else False,
        detail=asking.detail,
        step_by_step=asking.step_by_step,
        few_shot=examples[0],
        few_shots=examples[1],
        last_answer=examples[2],
        ask_tokens=_share(profile, dialogue),
        code_share=code,
        place=asking.place,
        images=dialogue.images,
        hint_task=hints.task,
        hint_tokens=hints.output_tokens,
        profile=profile,
        modalities=frozenset(dialogue.media),
        needs=read_needs(data, shape.kind, thinking.on),
        task_scores=_scores(asking, caps, shape, choice, code, after_tool=dialogue.after_tool),
        instruction=_printable(asking.text[:_INSTRUCTION]),
        system_text=_printable(_edges(dialogue.system, 300, 200)),
        user_head=_printable(dialogue.user[:800]),
        user_tail=_printable(dialogue.user[-1200:]) if len(dialogue.user) > 800 else "",
        user_chars=len(dialogue.user),
        tool_fields=required_fields(data.get("tools")),
        system_key=keys.system,
        template_key=keys.template,
        head_key=keys.head,
        tail_key=keys.tail,
        form_key=keys.form,
        shape_key=shape_key(data),
        thread_key=thread_key(data, keys.system, dialogue.first),
    )


def _cap(caps: Caps, shape: Shape, thinking: Thinking) -> int | None:
    """The smaller of the parameters' cap and the structure's bound, which does not hold for thinking."""
    bound = shape.size.bound if shape.size and not shape.legacy and thinking.on is not True else None
    if caps.limit is None or bound is None:
        return bound if caps.limit is None else caps.limit
    return min(caps.limit, bound)


def _count(dialogue: Dialogue, tool_bytes: int, hidden: int) -> tuple[Profile, int]:
    """The prompt's profile and its text's bytes: exact up to 64 K characters, beyond that from samples of each text."""
    texts = dialogue.texts
    total = sum(map(len, texts))
    if total <= _COUNT_CHARS:
        read = total
        parts = count_parts("\n".join(texts))
    else:
        budget = max(96, _COUNT_CHARS // len(texts) // 3)
        samples = [_sample(text, min(budget, _SAMPLE)) for text in texts]
        read = sum(map(len, samples))
        parts = count_parts("".join(samples))
    sample_bytes = _utf8_bytes(parts)
    scale = total / read if read else 1.0
    if dialogue.unread:
        scale *= 1 + dialogue.unread / max(1, len(texts))
    text_bytes = sample_bytes * scale
    ids = dialogue.ids
    if hidden and ids:
        ids += hidden // 5
    elif hidden:
        scale *= 1 + hidden / max(1.0, text_bytes)
        text_bytes += hidden
    if scale != 1.0:
        parts = [round(part * scale) for part in parts]
    media = dialogue.images + len(dialogue.media - {"text", "image"})
    return (*parts, tool_bytes, media, ids, dialogue.turns, 1), round(text_bytes)


def _sample(text: str, width: int) -> str:
    if len(text) <= 3 * width:
        return text
    middle = (len(text) - width) // 2
    return text[:width] + text[middle : middle + width] + text[-width:]


def _utf8_bytes(parts: list[int]) -> int:
    narrow, wide = sum(parts[:4]), sum(parts[6:10])
    return narrow + 2 * (parts[4] + parts[5]) + 3 * wide


def _edges(text: str, first: int, last: int) -> str:
    return text if len(text) <= first + last else text[:first] + text[-last:]


def _examples(dialogue: Dialogue, code: float) -> tuple[int | None, int, int | None]:
    """(median length of the examples' answers, their number, length of the latest real answer)."""
    answers = [answer for _, answer in dialogue.pairs]
    last = _length(answers[-1]) if answers else None
    found = (None if code > _MOSTLY_CODE else in_prompt(dialogue.user)) or in_turns(answers)
    if found is None:
        return None, 0, last
    return found[0], found[1], last


def _share(profile: Profile, dialogue: Dialogue) -> int:
    """Tokens of the last user turn, as its share of all texts."""
    total = sum(map(len, dialogue.texts))
    return round(rough_total(profile) * len(dialogue.user) / total) if total else 0


def _length(text: str) -> int:
    if len(text) <= 3 * _SAMPLE:
        return rough_tokens(text)
    return round(rough_tokens(text[:_SAMPLE] + text[-_SAMPLE:]) * len(text) / (2 * _SAMPLE))


def _is_prefill(data: dict[str, object], dialogue: Dialogue) -> bool:
    if dialogue.last_role != "assistant":
        return False
    return is_true(data.get("continue_final_message")) or data.get("add_generation_prompt") is False


def _scores(
    asking: Asking, caps: Caps, shape: Shape, choice: ToolChoice, share: float, *, after_tool: bool
) -> tuple[tuple[Task, float], ...]:
    """The text's evidence and the parameters' together, as shares, strongest first."""
    scores = asking.scores.copy()

    def add(task: Task, weight: float) -> None:
        scores[task] = scores.get(task, 0.0) + weight

    if choice in (ToolChoice.REQUIRED, ToolChoice.NAMED):
        add(Task.TOOL_CALL, 20)
    elif choice is ToolChoice.AUTO:
        add(Task.TOOL_CALL, 2 if after_tool else 4)
    if shape.kind is Structure.CHOICE or caps.scoring or (shape.labels and shape.size and shape.size.typical <= 16):
        add(Task.CLASSIFICATION, 12)
    elif shape.kind in (Structure.JSON_SCHEMA, Structure.JSON_OBJECT):
        add(Task.STRUCTURED_JSON, 8)
    if asking.step_by_step:
        add(Task.REASONING, 3)
    if share > 0.2:
        add(Task.CODE, 2 * share)
    total = sum(scores.values()) + _UNSURE
    ranked = sorted([(-weight, task) for task, weight in scores.items()])
    return tuple([(task, round(-negative / total, 4)) for negative, task in ranked])


def _printable(text: str) -> str:
    """The text without halves of surrogate pairs, which nothing downstream could encode."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
