"""Reads the conversation in a body. Content may be a string, a list of parts, token ids, or malformed.

Agents wrap the user's words in reminders, environment reports and tool results. These blocks are removed, so that "the
last user turn" is the last instruction by a person or a template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.types import Api

MAX_READ = 96
"""Most messages that are read. Of a longer conversation the first 8 and the last 88 are read."""
_HEAD_READ = 8
_MAX_PARTS = 64
_FIRST = 400
_SCAN = 8000
_SYSTEM = frozenset({"system", "developer"})
_TOOLS = frozenset({"tool", "function"})
_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "video_url": "video",
    "video": "video",
    "input_video": "video",
}
_BLOCK = re.compile(
    r"<([a-z][\w-]{0,20}?(?:reminder|instructions?|rules)|(?:system|environment|user|tool|local|command|ide|workspace"
    r"|open|attached|additional|project|hook|current|git|function|env)[_-][\w-]{1,30}|env|stdout|stderr)(?=[\s>])[^>]{0,200}>",
    re.IGNORECASE,
)
_ASK_BLOCK = re.compile(
    r"^(?:user[_-](?:query|message|request|input|prompt|question)|additional[_-]instructions?)$", re.IGNORECASE
)


TEXT_ONLY = frozenset({"text"})


@dataclass(slots=True)
class Dialogue:
    """The conversation in the form that feature extraction uses."""

    turns: int = 0
    system: str = ""
    user: str = ""
    """The last user turn with text of its own, without the agent's blocks."""
    first: str = ""
    """First 400 characters of the first user turn."""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """Earlier (user text, assistant text) pairs, oldest first."""
    texts: list[str] = field(default_factory=list)
    """All texts that were read, for token counting."""
    unread: int = 0
    """Number of messages, or of prompts in a batch, that were not read."""
    ids: int = 0
    """Number of prompt tokens given as ids."""
    prompts: int = 1
    """Number of prompts in a completions batch, or of conversations in a chat batch."""
    images: int = 0
    media: frozenset[str] = TEXT_ONLY
    after_tool: bool = False
    last_role: str = ""


def read(data: dict[str, object], api: Api) -> Dialogue:
    """Reads a chat or completions body. Never raises; parts of an unknown form are skipped."""
    if api is Api.COMPLETIONS and "prompt" in data:
        return _read_prompt(data.get("prompt"))
    messages = data.get("messages")
    dialogue = Dialogue()
    if not isinstance(messages, list) or not messages:
        return dialogue
    if isinstance(messages[0], list):
        return _read_batch(messages)
    dialogue.turns = turns = len(messages)
    if turns > MAX_READ:
        dialogue.unread = turns - MAX_READ
        messages = messages[:_HEAD_READ] + messages[_HEAD_READ - MAX_READ :]
    systems: list[str] = []
    texts = dialogue.texts
    asked = role = ""
    for message in messages:
        if not isinstance(message, dict):
            continue
        named, content = message.get("role"), message.get("content")
        role = named if isinstance(named, str) else ""
        text = content if isinstance(content, str) else "\n".join(_parts(content, dialogue))
        if text:
            texts.append(text)
        if role in _SYSTEM:
            systems.append(text)
        elif role == "assistant":
            if text and asked:
                dialogue.pairs.append((asked, text))
                asked = ""
        elif role in _TOOLS:
            dialogue.after_tool = True
        else:
            own = without_boilerplate(text) if "<" in text else text.strip()
            if own:
                dialogue.user = asked = own
                dialogue.first = dialogue.first or own[:_FIRST]
                dialogue.after_tool = False
            elif text:
                dialogue.after_tool = True
        if "tool_calls" in message:
            texts += _call_texts(message["tool_calls"])
    dialogue.last_role = role
    dialogue.system = "\n".join(systems) if len(systems) != 1 else systems[0]
    return dialogue


def _is_batch(messages: object) -> bool:
    return isinstance(messages, list) and bool(messages) and isinstance(messages[0], list)


def _read_batch(conversations: list[object]) -> Dialogue:
    """Reads a chat batch. The first conversation stands for all; the others add texts, turns and media. A batch inside
    a batch is skipped, which bounds the recursion."""
    first, *others = conversations
    dialogue = Dialogue() if _is_batch(first) else read({"messages": first}, Api.CHAT)
    dialogue.prompts = len(conversations)
    dialogue.unread += max(0, len(others) - MAX_READ)
    for conversation in others[:MAX_READ]:
        if isinstance(conversation, list) and not _is_batch(conversation):
            other = read({"messages": conversation}, Api.CHAT)
            dialogue.texts += other.texts
            dialogue.turns += other.turns
            dialogue.images += other.images
            dialogue.media |= other.media
    return dialogue


def without_boilerplate(text: str) -> str:
    """Removes the blocks that an agent puts before or after the user's words."""
    kept: list[str] = []
    at = 0
    for _ in range(_MAX_PARTS):
        opening = _BLOCK.search(text, at, at + _SCAN)
        if opening is None and len(text) - at > 2 * _SCAN:
            # Agents put their blocks at the edges, so the middle of a long text is not searched.
            kept.append(text[at : len(text) - _SCAN])
            at = len(text) - _SCAN
            opening = _BLOCK.search(text, at)
        if opening is None:
            break
        name = opening.group(1)
        closing = text.find(f"</{name}>", opening.end())
        kept.append(text[at : opening.start()])
        if _ASK_BLOCK.match(name):
            kept.append(text[opening.end() : closing if closing >= 0 else len(text)])
        # A tag that is never closed is more likely prose or code than a block.
        if closing < 0:
            kept.append(text[opening.start() :])
            return "".join(kept).strip()
        at = closing + len(name) + 3
    kept.append(text[at:])
    return "".join(kept).strip()


def _parts(content: object, dialogue: Dialogue) -> Iterator[str]:
    """Yields the texts of content parts; records other media in `dialogue`."""
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return
    for part in content[:_MAX_PARTS]:
        if isinstance(part, str):
            yield part
            continue
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        medium = _MEDIA.get(kind) if isinstance(kind, str) else None
        if medium is None and kind is None and "image_url" in part:
            medium = "image"
        if medium is not None:
            dialogue.media |= {medium}
            dialogue.images += medium == "image"
            continue
        text = part.get("text")
        if isinstance(text, str) and kind != "tool_result":
            # Text parts are yielded whole: agents often put a reminder in a part next to the user's.
            yield text


def _call_texts(calls: object) -> Iterator[str]:
    for call in calls[:_MAX_PARTS] if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            for key in ("name", "arguments"):
                value = function.get(key)
                if isinstance(value, str):
                    yield value


def _read_prompt(prompt: object) -> Dialogue:
    """Reads a completions prompt: a text, token ids, or a batch of either."""
    dialogue = Dialogue(turns=1)
    if isinstance(prompt, str):
        dialogue.texts = [prompt]
        dialogue.user = prompt.strip()
    elif isinstance(prompt, list) and prompt:
        first = prompt[0]
        if isinstance(first, str):
            dialogue.prompts = len(prompt)
            dialogue.unread = max(0, len(prompt) - MAX_READ)
            dialogue.texts = [text for text in prompt[:MAX_READ] if isinstance(text, str)]
            dialogue.user = first.strip()
        elif isinstance(first, list):
            dialogue.prompts = len(prompt)
            dialogue.ids = sum(len(ids) for ids in prompt if isinstance(ids, list))
        else:
            dialogue.ids = len(prompt)
    return dialogue
