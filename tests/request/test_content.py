"""The conversation inside a body, and the ask inside the conversation."""

from __future__ import annotations

import pytest

from gateway.request.content import without_boilerplate
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.request.tokens import Part
from gateway.types import Api
from tests.request.helpers import Message, chat, completion, user


class TestContent:
    def test_reads_parts_like_a_string(self) -> None:
        """BODY-02: a list of text parts gives the same features as the plain string."""
        plain, parts = chat(user("Why is rust red?")), chat(user([{"type": "text", "text": "Why is rust red?"}]))

        assert parts == plain

    @pytest.mark.parametrize("content", [None, []])
    def test_reads_an_assistant_turn_without_text(self, content: object) -> None:
        """BODY-03: null and empty content beside tool calls are read."""
        call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"q":"tide"}'}}
        features = chat(
            user("Look up the tide."),
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "high"},
        )

        assert features.after_tool
        assert features.instruction == "Look up the tide."

    def test_reads_half_a_surrogate_pair(self) -> None:
        """BODY-04: half a surrogate pair is read, and the instruction can be encoded."""
        features = extract(parse_body(rb'{"messages":[{"role":"user","content":"why \ud83d?"}]}'), Api.CHAT)

        assert features.instruction.encode() == b"why ??"

    @pytest.mark.parametrize(
        ("part", "medium"),
        [
            ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "image"),
            ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio"),
            ({"type": "video_url", "video_url": {"url": "http://x/y.mp4"}}, "video"),
        ],
    )
    def test_notes_other_media(self, part: Message, medium: str) -> None:
        """Images, audio and video are modalities, cost tokens, and are no text."""
        features = chat(user([part, {"type": "text", "text": "What is this?"}]))

        assert features.modalities == {"text", medium}
        assert sum(features.profile[: Part.TOOL]) == len("What is this?")
        assert features.input_tokens > 200

    @pytest.mark.parametrize(
        ("prompt", "tokens", "n"),
        [([1, 2, 3] * 100, 300, 1), ([[1, 2], [3]], 3, 2), ("hello there", 3, 1), (["a b", "c d", "e f"], 9, 3)],
    )
    def test_reads_every_kind_of_prompt(self, prompt: object, tokens: int, n: int) -> None:
        """PARAM-08: a prompt is a text, token ids, or a list of either; ids count one each."""
        features = completion(prompt)

        assert features.n == n
        assert features.input_tokens == pytest.approx(tokens, abs=14)

    @pytest.mark.parametrize("ids", [1, 3, 500])
    def test_ids_are_all_of_their_prompt(self, ids: int) -> None:
        """PARAM-08: no template adds to them."""
        assert completion(list(range(ids))).input_tokens == ids

    def test_looks_past_reminders_to_the_real_ask(self) -> None:
        """ROUTE-05: reminder blocks, tool results and environment reports are not the ask."""
        reminder = "<system-reminder>Write a story. Translate everything. Classify your files.</system-reminder>"
        ask = "Translate to German: the boat is small."
        alone = chat(user(ask))
        for last in (
            [user(f"{ask}\n{reminder}")],
            [user(ask), user(reminder)],
            [user([{"type": "text", "text": reminder}, {"type": "text", "text": ask}])],
            [user(f"<environment_details>\nLinux\n</environment_details>\n<user_query>{ask}</user_query>")],
            [user(ask), {"role": "assistant", "content": None}, {"role": "tool", "content": "Write a story."}],
        ):
            assert chat(*last).task_scores == alone.task_scores, last

    @pytest.mark.parametrize("size", [0, 40_000])
    def test_takes_reminders_out_at_both_ends(self, size: int) -> None:
        """ROUTE-05: blocks before and after a long text are taken out, and a tag in prose is left alone."""
        matter = "The pier is <long> and old. " * (size // 28 + 1)
        text = f"<env_info>Linux</env_info>{matter}<system-reminder>Write a story.</system-reminder>"

        assert without_boilerplate(text) == matter.strip()

    def test_bounds_a_conversation_of_ten_thousand_turns(self) -> None:
        """The middle of a very long conversation is counted, not read."""
        turns = [user("one two three four") for _ in range(10_000)]
        features = chat(*turns)

        assert features.turns == 10_000
        assert sum(features.profile[: Part.TOOL]) == pytest.approx(180_000, rel=0.1)
