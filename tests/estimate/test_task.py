"""Which task a request is taken for."""

from __future__ import annotations

import pytest

from gateway.estimate.estimator import Estimator
from gateway.types import Task
from tests.estimate.synthetic import ask

PASSAGE = (
    "The valley wakes slowly. Mist lies over the fields until the sun has cleared the ridge. The old mill stands by "
    "the water and its wheel has not turned for years. In spring the river is high. Swallows nest below the roof. "
) * 4
LETTERS = "手紙を書く人は少なくなった。それでも年に一度、祖母から長い手紙が届く。季節の話から始まる。" * 6


@pytest.mark.parametrize(
    ("passage", "wish", "task"),
    [
        (PASSAGE, "When does the mist clear?", Task.SHORT_QA),
        (PASSAGE, "Explain how such a mill works.", Task.CHAT),
        (PASSAGE, "Extract all names of animals.", Task.EXTRACTION),
        (LETTERS, "手紙という習慣について書いてください。", Task.LONG_FORM),
    ],
)
def test_what_is_asked_after_a_passage_says_what_it_is(passage: str, wish: str, task: Task) -> None:
    """ROUTE-02: a passage in front does not make a question or an open wish an extraction."""
    assert Estimator().estimate(ask(f"{passage}\n\n{wish}")).task is task
