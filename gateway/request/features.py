"""Extracts `Features` from a parsed body. Pure and bounded: it reads no more of 10 MB than of 200 KB.

params.py reads the parameters; content.py finds the conversation; asking.py reads the instruction; examples.py measures
example answers; keys.py computes the history keys; tokens.py counts. Reading the instruction is half of the work. It is
skipped if the caller's `known` has a reading for the request's template, which the estimator keeps while history
settles the length.
"""

from __future__ import annotations

from operator import mul

from gateway.request.asking import read_ask
from gateway.request.content import TEXT_ONLY, Dialogue, read
from gateway.request.examples import in_prompt, in_turns
from gateway.request.formats import as_chat
from gateway.request.instruction import code_share
from gateway.request.keys import TextKeys, text_keys, thread_key
from gateway.request.params import Params, read_params
from gateway.request.parse import Body, is_true
from gateway.request.reading import Known, Reading, read_of_ask, reading_key
from gateway.request.tokens import Profile, TokenEstimator, count_parts, rough_tokens, rough_total
from gateway.types import NO_HINTS, Api, Features, Hints

_AS_CHAT = (Api.CHAT, Api.COMPLETIONS)
_BYTES = (1, 1, 1, 1, 2, 2, 3, 3, 3, 3)
"""UTF-8 bytes per character of each part of a text."""
_HEAD = 800
_TAIL = 1200
_COUNT_CHARS = 64 * 1024
_SAMPLE = 2048
_INSTRUCTION = 1000
_MOSTLY_CODE = 0.4


def extract(
    body: Body,
    api: Api,
    hints: Hints = NO_HINTS,
    tokens: TokenEstimator | None = None,
    known: Known | None = None,
) -> Features:
    """Extracts the features of a request. Never raises, whatever JSON the body holds.

    Args:
        body: the parsed body.
        api: the request's format.
        hints: what the client's headers state.
        tokens: counts the prompt with learned weights; None counts with the starting weights.
        known: returns a cached reading by `reading_key`, or None.
    """
    data = body.data if api in _AS_CHAT else as_chat(body.data, api)
    dialogue = read(data, api)
    params = read_params(data, api)
    code = code_share(dialogue.user)
    profile, ask_tokens = _count(dialogue, params.tool_bytes, body.hidden_text)
    model = body.model or ""
    input_tokens = (TokenEstimator() if tokens is None else tokens).estimate(model, profile)
    keys = text_keys(dialogue.system, dialogue.user)
    reading = known(reading_key(keys.template, params.key, dialogue.after_tool)) if known and keys.template else None
    if reading is None:
        asking = read_ask(dialogue.user, dialogue.system)
        reading, instruction = read_of_ask(asking, params, code, after_tool=dialogue.after_tool), asking.text
    else:
        # Only a second opinion reads this, and none is asked for a known template.
        instruction = dialogue.user
    texts = _texts(body, dialogue, instruction)
    prefill = dialogue.last_role == "assistant" and _continues(data)
    thread = thread_key(data, keys.system, dialogue.first)
    stated = api, model, body.stream, hints, prefill
    return _assemble(stated, dialogue, params, reading, texts, code, (profile, ask_tokens, input_tokens), keys, thread)


_Stated = tuple[Api, str, bool, Hints, bool]
"""(format, model, whether it streams, hints, whether the answer continues an assistant turn)"""
_Texts = tuple[str, str, str, str]
"""(instruction, edges of the system prompt, start of the last user turn, its end), without lone surrogates."""
_Counts = tuple[Profile, int, int]
"""(profile, tokens of the last user turn, prompt tokens)"""


def _assemble(
    stated: _Stated, dialogue: Dialogue, params: Params, reading: Reading, texts: _Texts, code: float, counts: _Counts,
    keys: TextKeys, thread: int,
) -> Features:  # fmt: skip
    """The features, from everything that was read."""
    api, model, stream, hints, prefill = stated
    caps, thinking, shape = params.caps, params.thinking, params.shape
    profile, ask_tokens, input_tokens = counts
    few_shot, few_shots, last_answer = _examples(dialogue, code)
    instruction, system_text, user_head, user_tail = texts
    # By position, in the order of the fields: by keyword it costs three times as much (CPython 3.11).
    return Features(
        api, model, stream, input_tokens, reading.language,
        params.cap, caps.explicit, caps.limit, params.structure_tokens, params.floor, caps.stop_line, caps.scoring,
        caps.n * dialogue.prompts,
        shape.kind, shape.legacy, params.labels, params.tools, params.choice, thinking.on, thinking.budget,
        dialogue.turns, prefill, dialogue.after_tool,
        reading.wish, reading.wish_firm, reading.detail, reading.step_by_step,
        few_shot, few_shots, last_answer, ask_tokens, reading.place, hints.task, hints.output_tokens,
        profile, code, dialogue.media, params.needs, reading.task_scores,
        instruction, system_text, user_head, user_tail, len(dialogue.user), params.tool_fields, reading.groups,
        keys.system, keys.template, keys.head, keys.tail, keys.form, params.key, thread,
    )  # fmt: skip


def _count(dialogue: Dialogue, tool_bytes: int, hidden: int) -> tuple[Profile, int]:
    """(profile, tokens of the last user turn) of the prompt.

    Exact up to 64 K characters; beyond that estimated from samples of each text.
    """
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
    ids = dialogue.ids
    if read != total or dialogue.unread or hidden:
        parts, ids = _scaled(dialogue, parts, total / read if read else 1.0, hidden)
    media = 0 if dialogue.media is TEXT_ONLY else dialogue.images + len(dialogue.media - {"text", "image"})
    # A prompt of token ids is complete: no chat template adds to it.
    turns, fixed = (0, 0) if ids and not total else (dialogue.turns, 1)
    profile = (*parts, tool_bytes, media, ids, turns, fixed)
    share = len(dialogue.user) / total if total else 0.0
    return profile, round(rough_total(parts) * share)


def _scaled(dialogue: Dialogue, parts: list[int], scale: float, hidden: int) -> tuple[list[int], int]:
    """(parts, ids) of the whole prompt, scaled up from what was read."""
    if dialogue.unread:
        scale *= 1 + dialogue.unread / max(1, len(dialogue.texts))
    ids = dialogue.ids
    if hidden and ids:
        ids += hidden // 5
    elif hidden:
        read = scale * sum(map(mul, parts, _BYTES))
        scale *= 1 + hidden / max(1.0, read)
    return [round(part * scale) for part in parts], ids


def _sample(text: str, width: int) -> str:
    if len(text) <= 3 * width:
        return text
    middle = (len(text) - width) // 2
    return text[:width] + text[middle : middle + width] + text[-width:]


def _edges(text: str, first: int, last: int) -> str:
    return text if len(text) <= first + last else text[:first] + text[-last:]


def _texts(body: Body, dialogue: Dialogue, instruction: str) -> _Texts:
    instruction, system, user = instruction[:_INSTRUCTION], _edges(dialogue.system, 300, 200), dialogue.user
    head, tail = (user[:_HEAD], user[-_TAIL:]) if len(user) > _HEAD else (user, "")
    if body.surrogates:
        return _printable(instruction), _printable(system), _printable(head), _printable(tail)
    return instruction, system, head, tail


def _examples(dialogue: Dialogue, code: float) -> tuple[int | None, int, int | None]:
    """(median tokens of the example answers, their number, tokens of the last assistant answer)."""
    answers = [answer for _, answer in dialogue.pairs]
    last = _length(answers[-1]) if answers else None
    found = (None if code > _MOSTLY_CODE else in_prompt(dialogue.user)) or in_turns(answers)
    if found is None:
        return None, 0, last
    return found[0], found[1], last


def _length(text: str) -> int:
    if len(text) <= 3 * _SAMPLE:
        return rough_tokens(text)
    return round(rough_tokens(text[:_SAMPLE] + text[-_SAMPLE:]) * len(text) / (2 * _SAMPLE))


def _continues(data: dict[str, object]) -> bool:
    return is_true(data.get("continue_final_message")) or data.get("add_generation_prompt") is False


def _printable(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded later on."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
