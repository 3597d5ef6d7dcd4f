"""Substrings of scripts without spaces, and that Latin texts pay nothing for them."""

from __future__ import annotations

import pytest

from gateway.request.asking import read_ask
from gateway.request.marks import Marks
from gateway.types import Task
from tests.test_cost import calls_of


@pytest.fixture
def marks() -> Marks:
    return Marks(
        {"説明": 1, "明し": 2, "詳しく": 4, "①": 8}, {"説明": (Task.CHAT, 2.5), "要約": (Task.SUMMARIZATION, 4.0)}
    )


def found(marks: Marks, text: str) -> dict[str, tuple[int, tuple[Task, float] | None]]:
    return {mark.text: (mark.told, mark.evidence) for mark in marks.found(text, set(text))}


class TestMarks:
    def test_finds_all_that_stand_in_a_text(self, marks: Marks) -> None:
        """Overlapping marks and single characters are found, each with what it tells and what it is evidence for."""
        assert found(marks, "①詳しく説明してください") == {
            "説明": (1, (Task.CHAT, 2.5)),
            "明し": (2, None),
            "詳しく": (4, None),
            "①": (8, None),
        }

    def test_characters_apart_make_no_mark(self, marks: Marks) -> None:
        """That a text holds all of a mark's characters is not enough."""
        assert found(marks, "明るい説。約束は要らない。") == {}

    def test_a_mark_may_be_evidence_alone(self, marks: Marks) -> None:
        """What is evidence for a task need not be in the lexicon."""
        assert found(marks, "三行で要約") == {"要約": (0, (Task.SUMMARIZATION, 4.0))}


@pytest.mark.parametrize("text", ["Fasse den Aufsatz für die Schüler zusammen", "Explain “this” – and why it’s so …"])
def test_latin_texts_are_not_searched_for_other_scripts(text: str) -> None:
    """Umlauts and typographic quotes cost a few calls, where a look for hundreds of marks would cost dozens."""
    plain = text.encode("ascii", "replace").decode()

    assert calls_of(lambda: read_ask(text, "")) <= calls_of(lambda: read_ask(plain, "")) + 8


def test_marks_count_beside_typographic_quotes() -> None:
    """One character of another script is enough for its marks to be looked for."""
    assert read_ask("Report: “この記事を要約して”", "").scores.get(Task.SUMMARIZATION)
