"""Which task a request is taken for."""

from __future__ import annotations

import pytest

from gateway.estimate.estimator import Estimator
from gateway.types import Task
from tests.estimate.synthetic import ask, ended

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


QUESTION = "Is this review positive or negative? The soup at table {i} was cold and the waiter was kind."


def test_what_takes_long_answers_is_no_label() -> None:
    """What is taken for a label by its words is none once its answers are known to be long; a short one stays one."""
    short, long = Estimator(), Estimator()
    for i in range(20):
        for estimator, tokens in ((short, 2), (long, 300)):
            features = ask(QUESTION.format(i=i))
            estimator.estimate(features)
            estimator.observe(ended(features, tokens))
    judged = ask(QUESTION.format(i=99))

    assert short.estimate(judged).task is Task.CLASSIFICATION
    assert long.estimate(judged).task not in (Task.CLASSIFICATION, Task.EXTRACTION, Task.SHORT_QA, Task.UNKNOWN)


def test_thinking_before_a_label_makes_it_nothing_else() -> None:
    """The tokens of thinking are not those of the answer proper."""
    made = Estimator().estimate(ask(QUESTION.format(i=1)), thinking=True)

    assert made.p50 > 64
    assert made.task is Task.CLASSIFICATION
