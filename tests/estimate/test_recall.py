"""What is not found out again for templates whose answers are alike: the reading of a text, and the prior's word."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.estimate.estimator import Estimator
from gateway.estimate.recall import Recall, Recalled
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.request.reading import reading_of
from gateway.types import NO_HINTS, Api, Features, Task
from tests.estimate.synthetic import ENGLISH, JAPANESE, SUBJECTS, ended

QUESTION = {ENGLISH[0]: "Which of the three is it?", JAPANESE[0]: "三つのうちのどれですか。"}


def request(template: str, subject: str, estimator: Estimator | None = None, **params: Any) -> Features:
    """A request of a template that ends alike; with an estimator, read as the gateway reads it."""
    text = f"{template}\n{subject}\n{QUESTION[template]}"
    body = parse_body(json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **params}).encode())
    return extract(body, Api.CHAT, NO_HINTS, None, estimator.reading if estimator else None)


def taught(template: str, count: int) -> Estimator:
    """An estimator that has seen `count` answers of three tokens to the template."""
    estimator = Estimator()
    for i in range(count):
        features = request(template, SUBJECTS[i % len(SUBJECTS)], estimator)
        estimator.estimate(features)
        estimator.observe(ended(features, 3))
    return estimator


@pytest.mark.parametrize("template", [ENGLISH[0], JAPANESE[0]])
def test_a_settled_template_is_read_now_and_then(template: str) -> None:
    """Most requests of a template whose answers are alike have the reading of an earlier one, and the same estimate."""
    estimator = taught(template, 40)
    spared = 0
    for i in range(80):
        asked: list[bool] = []

        def known(key: int, asked: list[bool] = asked) -> Any:
            found = estimator.reading(key)
            asked.append(found is not None)
            return found

        text = f"{template}\n{SUBJECTS[i % 11]}\n{QUESTION[template]}"
        body = parse_body(json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode())
        features = extract(body, Api.CHAT, NO_HINTS, None, known)
        spared += asked == [True]
        assert estimator.estimate(features).p50 < 8
        estimator.observe(ended(features, 3))

    assert 60 <= spared <= 77


@pytest.mark.parametrize("template", [ENGLISH[0], JAPANESE[0]])
def test_what_is_spared_says_the_same_in_its_own_words(template: str) -> None:
    """A request with another's reading has that reading's signals, and no word of the other's text."""
    estimator = taught(template, 40)
    while request(template, "wren", estimator).task_scores and not _spares(estimator, template):
        estimator.estimate(request(template, "wren", estimator))
    spared, read = request(template, "osprey", estimator), request(template, "osprey")

    assert (spared.language, spared.place, spared.wish, spared.detail) == (
        read.language,
        read.place,
        read.wish,
        read.detail,
    )
    assert spared.task_scores == read.task_scores
    assert "osprey" in spared.instruction
    assert not any(subject in spared.instruction for subject in (*SUBJECTS, "wren"))


def _spares(estimator: Estimator, template: str) -> bool:
    """Whether the next request of the template is spared."""
    asked: list[bool] = []
    body = {"model": "m", "messages": [{"role": "user", "content": f"{template}\nx\n{QUESTION[template]}"}]}

    def known(key: int) -> Any:
        asked.append(estimator.reading(key) is not None)

    extract(parse_body(json.dumps(body).encode()), Api.CHAT, NO_HINTS, None, known)
    return asked == [True]


def test_another_form_is_read() -> None:
    """The same words with tools or another cap are another question."""
    estimator = taught(ENGLISH[0], 40)
    keys: list[int] = []

    def known(key: int) -> Any:
        keys.append(key)

    text = f"{ENGLISH[0]}\nheron\n{QUESTION[ENGLISH[0]]}"
    for params in ({}, {"max_tokens": 400}, {"tools": [{"type": "function", "function": {"name": "f"}}]}):
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **params}
        extract(parse_body(json.dumps(body).encode()), Api.CHAT, NO_HINTS, None, known)

    assert len(set(keys)) == 3
    assert all(estimator.reading(key) is None for key in keys[1:])


def test_a_wish_is_read_each_time() -> None:
    """Where requests say how long the answer is to be, another number in the same words is another wish."""
    estimator = Estimator()

    def wishing(words: int) -> Features:
        text = f"Write about the tides of this bay in {words} words, in plain language, for visitors."
        body = parse_body(json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode())
        return extract(body, Api.CHAT, NO_HINTS, None, estimator.reading)

    for _ in range(40):
        features = wishing(50)
        estimator.estimate(features)
        estimator.observe(ended(features, 70))
    short, long = wishing(50), wishing(800)

    assert short.template_key == long.template_key
    assert short.wish is not None
    assert long.wish is not None
    assert long.wish > 10 * short.wish
    assert estimator.estimate(long).p50 > 4 * estimator.estimate(short).p50


def test_what_says_the_same_again_serves_for_longer() -> None:
    """7, 15, 31 and again 31 requests; 7 once another word has come; none once it was dropped."""
    recall = Recall()
    features = request(ENGLISH[0], "heron")
    served: list[int] = []
    for word in (
        *(Recalled(2.0 + 0.1 * (i % 2), 0.1, Task.CHAT) for i in range(4)),
        Recalled(5.0, 0.1, Task.CHAT),
        Recalled(5.0, 0.1, Task.CODE),
    ):
        recall.keep(1, word, features)
        served.append(0)
        while recall.take(1) is not None:
            served[-1] += 1
    recall.keep(1, Recalled(5.0, 0.1, Task.CODE), features)
    recall.drop(1)

    assert served == [7, 15, 31, 31, 7, 7]
    assert recall.take(1) is None


def test_a_template_whose_answers_change_is_read_again() -> None:
    """Once history is unsure of a template, every request of it is read."""
    estimator = taught(ENGLISH[0], 200)

    def read(length: int) -> bool:
        features = request(ENGLISH[0], "heron", estimator)
        known = estimator.reading(reading_of(features)[0])
        estimator.estimate(features)
        estimator.observe(ended(features, length))
        return known is None

    before = [read(3) for _ in range(24)]
    after = [read(900) for _ in range(16)]

    assert before.count(True) <= 3
    assert all(after[-8:])


def test_the_memory_is_bounded() -> None:
    """Ten thousand templates leave no more than 4,096 words and readings behind."""
    recall = Recall()
    features = request(ENGLISH[0], "heron")
    for key in range(10_000):
        recall.keep(key, Recalled(2.0, 0.1, Task.CHAT), features)

    assert sum(recall.take(key) is not None for key in range(10_000)) <= 4096
