"""The whole estimator: cold guesses, what traffic teaches it, bounds, cut answers, memory, exchange between workers."""

from __future__ import annotations

import dataclasses
import json
import math
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.estimate.estimator import Estimator
from gateway.estimate.model import Guess, Prior, load_prior
from gateway.estimate.signals import Signals
from gateway.estimate.stats import BYTES_PER_ENTRY
from gateway.types import Api, Features, Outcome, Result, Task
from tests.estimate.synthetic import ENGLISH, JAPANESE, SUBJECTS, ask, ended


@pytest.fixture(scope="module")
def prior() -> Prior:
    return load_prior()


class Counting(Prior):
    """A prior that counts how often it is asked."""

    asked = 0

    def guess(self, signals: Signals) -> Guess:
        self.asked += 1
        return super().guess(signals)


def teach(estimator: Estimator, template: str, tokens: int, times: int, **params: Any) -> None:
    for i in range(times):
        features = ask(f"{template}\n{SUBJECTS[i % len(SUBJECTS)]} {i}", **params)
        estimator.estimate(features)
        estimator.observe(ended(features, tokens))


def teach_same(estimator: Estimator, tokens: int, times: int) -> None:
    """Requests of a template that is fixed at both ends."""
    for i in range(times):
        features = ask(f"{ENGLISH[0]}\n{SUBJECTS[i % len(SUBJECTS)]} {i}\nWhich of the three is it?")
        estimator.estimate(features)
        estimator.observe(ended(features, tokens))


class TestCold:
    @pytest.mark.parametrize(
        "text",
        [
            "Write a 3,000-word essay on the tides.",
            "Tell me a long story about a classical pianist who moves to the sea.",
            "日本の四季と食文化の関係について、具体例を挙げながら詳しく説明してください。",
            "Explain in detail how a four-stroke engine works.",
        ],
    )
    def test_a_short_prompt_can_mean_a_long_answer(self, prior: Prior, text: str) -> None:
        """ROUTE-01, ROUTE-03: the prompt's length and keywords inside words do not make an answer short."""
        estimate = Estimator(prior).estimate(ask(text))

        assert estimate.p50 > 64
        assert estimate.task is not Task.CLASSIFICATION

    @pytest.mark.parametrize(
        "text",
        [
            "The harbour was rebuilt after the storm. " * 300 + "\n\nAnswer yes or no: is the text about fish?",
            "港は嵐のあとに再建された。" * 300
            + "\n\nこの文章は魚の話ですか？「はい」か「いいえ」だけで答えてください。",
            "Classify the sentiment as positive, negative or neutral. Reply with one word.\n\nThe soup was cold.",
            "次の文を「肯定」「否定」「中立」のいずれか1語で分類してください。\n\nスープが冷めていた。",
        ],
    )
    def test_a_long_prompt_can_mean_a_short_answer(self, prior: Prior, text: str) -> None:
        """ROUTE-02: the ask at the end of a long document decides, in English and Japanese."""
        assert Estimator(prior).estimate(ask(text)).p50 <= 16

    def test_thinking_makes_a_tiny_task_long(self, prior: Prior) -> None:
        """ROUTE-08: with thinking on, a yes-or-no question is not short; its budget bounds the thought."""
        text = "Yes or no: is a whale a fish?"
        plain, thinking = (
            Estimator(prior).estimate(ask(text, chat_template_kwargs={"enable_thinking": on})) for on in (False, True)
        )

        assert plain.p50 <= 16
        assert thinking.p50 > 64

    def test_says_when_it_knows_nothing(self, prior: Prior) -> None:
        """A text without any signal is UNKNOWN, with little confidence and a p90 of several times its p50."""
        estimate = Estimator(prior).estimate(ask("Zxqv brmpf."))

        assert estimate.task is Task.UNKNOWN
        assert estimate.confidence < 0.25
        assert estimate.p90 > 5 * estimate.p50

    def test_a_cap_settles_it(self, prior: Prior) -> None:
        """A cap of eight tokens bounds every figure, and the confidence says so."""
        estimate = Estimator(prior).estimate(ask("Write an essay on tides.", max_tokens=8))

        assert estimate.p50 <= estimate.p90 <= 8
        assert estimate.output_tokens <= 8
        assert estimate.confidence > 0.9

    def test_a_larger_cap_bounds_the_mean_too(self, prior: Prior) -> None:
        """The expected value is that of min(N, cap), below the cap and below the uncapped mean."""
        free = Estimator(prior).estimate(ask("Write an essay on tides."))
        capped = Estimator(prior).estimate(ask("Write an essay on tides.", max_tokens=100))

        assert capped.output_tokens < 100 < free.output_tokens
        assert capped.p90 == 100


class TestWarm:
    @pytest.mark.parametrize(("templates", "system"), [(ENGLISH, ""), (JAPANESE, "あなたは図書館の司書です。")])
    def test_a_new_template_is_known_after_twenty_requests(
        self, prior: Prior, templates: tuple[str, str], system: str
    ) -> None:
        """Two templates that the prior misjudges are both right after twenty requests of each."""
        estimator = Estimator(prior)
        teach(estimator, templates[0], 700, 20, system=system)
        teach(estimator, templates[1], 2, 20, system=system)
        long, short = (estimator.estimate(ask(f"{t}\nnewt 7", system=system)) for t in templates)

        assert long.p50 > 256
        assert short.p50 <= 16
        assert short.source == long.source == "history"

    def test_a_settled_template_is_not_asked_about_each_time(self) -> None:
        """Where history is sure of a template, few of its requests are read anew; new answers still move it."""
        prior = Counting(json.loads(files("gateway.data").joinpath("prior.json").read_bytes()))
        estimator = Estimator(prior)
        teach_same(estimator, 3, 30)
        asked = prior.asked
        teach_same(estimator, 3, 80)
        settled = prior.asked - asked
        teach_same(estimator, 700, 40)

        assert settled <= 12
        assert estimator.estimate(ask(f"{ENGLISH[0]}\nnewt 7\nWhich of the three is it?")).p50 > 10

    @pytest.mark.parametrize(
        ("taught", "tokens", "judged"),
        [
            (
                "Is message {i} spam? Answer yes or no.",
                1,
                "Write a Python function that parses ISO dates and explain it.",
            ),
            (
                "Sort note {i} into soil, water or light. One word.",
                3,
                "量子コンピュータの仕組みを詳しく説明してください。",
            ),
            (
                "Explain the history of topic {i} in detail.",
                1500,
                "Is this review positive or negative? One word: Cold.",
            ),
        ],
    )
    def test_one_kind_of_traffic_says_nothing_about_another(
        self, prior: Prior, taught: str, tokens: int, judged: str
    ) -> None:
        """Sixty labels that are shorter than expected shorten no long answer, nor do long ones lengthen a label."""
        estimator = Estimator(prior)
        before = estimator.estimate(ask(judged)).p50
        for i in range(60):
            features = ask(taught.format(i=i))
            estimator.estimate(features)
            estimator.observe(ended(features, tokens))
        after = estimator.estimate(ask(judged)).p50

        assert estimator.estimate(ask(taught.format(i=99))).p50 == pytest.approx(tokens, rel=0.35)
        assert before / 1.35 < after < before * 1.35

    def test_models_have_their_own_history(self, prior: Prior) -> None:
        """What one model is taught does not move another one's estimate."""
        estimator = Estimator(prior)
        features = ask(f"{ENGLISH[0]}\nnewt", model="other")
        before = estimator.estimate(features).p50
        teach(estimator, ENGLISH[0], 900, 30, model="m")

        assert estimator.estimate(features).p50 == before

    def test_one_outlier_does_not_turn_it(self, prior: Prior) -> None:
        """After thirty answers of three tokens, one of 5,000 leaves the estimate short."""
        estimator = Estimator(prior)
        teach(estimator, ENGLISH[0], 3, 30)
        teach(estimator, ENGLISH[0], 5000, 1)

        assert estimator.estimate(ask(f"{ENGLISH[0]}\nnewt")).p50 <= 8

    @pytest.mark.parametrize(
        ("result", "finish"), [(Result.OK, "length"), (Result.CLIENT_CLOSED, None), (Result.TRUNCATED, None)]
    )
    def test_a_cut_answer_is_a_lower_bound(self, prior: Prior, result: Result, finish: str | None) -> None:
        """Long answers that are cut early do not teach that answers are short."""
        estimator = Estimator(prior)
        features = ask(f"{ENGLISH[1]}\nnewt")
        teach(estimator, ENGLISH[1], 600, 10)
        before, learned = estimator.estimate(features).p50, estimator.snapshot()
        for i in range(30):
            cut = ask(f"{ENGLISH[1]}\nnewt {i}")
            estimator.observe(ended(cut, 12, result=result, finish_reason=finish))

        assert estimator.estimate(features).p50 > 0.7 * before
        assert estimator.snapshot() != learned

    def test_failures_teach_nothing(self, prior: Prior) -> None:
        """An answer of an error, of no usage, or of a scoring request changes no state."""
        estimator = Estimator(prior)
        features = ask(f"{ENGLISH[1]}\nnewt")
        before = estimator.snapshot()
        estimator.observe(ended(features, 50, result=Result.BACKEND_ERROR))
        estimator.observe(dataclasses.replace(ended(features, 50), usage=None))
        estimator.observe(dataclasses.replace(ended(features, 50), features=None))
        estimator.observe(ended(dataclasses.replace(features, scoring=True), 1))

        assert estimator.snapshot() == before

    def test_n_choices_count_as_one_each(self, prior: Prior) -> None:
        """Usage of four choices is divided by four."""
        one, four = Estimator(prior), Estimator(prior)
        for i in range(20):
            one.observe(ended(ask(f"{ENGLISH[0]} {i}"), 40))
            four.observe(ended(dataclasses.replace(ask(f"{ENGLISH[0]} {i}"), n=4), 160))

        assert four.estimate(ask(ENGLISH[0])).p50 == pytest.approx(one.estimate(ask(ENGLISH[0])).p50)

    def test_works_without_any_text(self, prior: Prior) -> None:
        """A trace of lengths alone: an input size that always gives a label is learned, its neighbour is not."""
        estimator = Estimator(prior)
        sizes = [Features(api=Api.CHAT, model="m", input_tokens=size) for size in (1000, 1001)]
        for _ in range(40):
            for features, tokens in zip(sizes, (2, 500), strict=True):
                estimator.estimate(features)
                estimator.observe(ended(features, tokens))
        short, long = (estimator.estimate(features).p50 for features in sizes)

        assert short < 16
        assert long > 128


class TestMemory:
    def test_entries_stay_within_the_bound(self, prior: Prior) -> None:
        """Hundreds of templates and unfinished requests stay within the stated entries and bytes."""
        estimator = Estimator(prior, entries=100)
        for i in range(300):
            features = ask(f"{chr(0x4E00 + 40 * i)}{chr(0x4E10 + 7 * i)} の話", system=f"s{chr(0x3400 + i)}")
            estimator.estimate(features)
            if i % 2:
                estimator.observe(ended(features, 20))
        found = estimator.statistics()

        assert 0 < found.entries <= 100
        assert found.bytes == found.entries * BYTES_PER_ENTRY
        assert found.waiting <= 150

    def test_holds_no_text(self, prior: Prior) -> None:
        """A snapshot after traffic contains nothing of the prompts."""
        estimator = Estimator(prior)
        teach(estimator, "Whisper the pangolin's secret", 30, 3)

        assert b"pangolin" not in estimator.snapshot()


class TestExchange:
    def test_a_worker_learns_from_another(self, prior: Prior) -> None:
        """After a merge a fresh worker estimates a template as the one that saw it."""
        seen, fresh = Estimator(prior), Estimator(prior)
        teach(seen, ENGLISH[0], 700, 30)
        fresh.merge(seen.snapshot())
        features = ask(f"{ENGLISH[0]}\nnewt")

        assert fresh.estimate(features).p50 == pytest.approx(seen.estimate(features).p50)

    def test_order_does_not_matter(self, prior: Prior) -> None:
        """Merging two workers in either order gives the same estimates."""
        a, b, left, right = (Estimator(prior) for _ in range(4))
        teach(a, ENGLISH[0], 700, 12)
        teach(b, ENGLISH[0], 3, 5)
        for target, order in ((left, (a, b)), (right, (b, a))):
            for each in order:
                target.merge(each.snapshot())
        features = ask(f"{ENGLISH[0]}\nnewt")

        assert left.estimate(features) == right.estimate(features)

    def test_changes_are_handed_over_once(self, prior: Prior) -> None:
        """Two rounds of changes teach another worker as much as one snapshot; a third round has nothing."""
        seen, fresh = Estimator(prior, share=True), Estimator(prior)
        for _ in range(2):
            teach(seen, ENGLISH[0], 700, 15)
            fresh.merge(seen.changes())
        before = fresh.snapshot()
        fresh.merge(seen.changes())
        features = ask(f"{ENGLISH[0]}\nnewt")

        assert fresh.snapshot() == before
        assert fresh.estimate(features).p50 == pytest.approx(seen.estimate(features).p50, rel=0.25)

    def test_changes_need_to_be_asked_for(self, prior: Prior) -> None:
        """An estimator that does not share says so."""
        with pytest.raises(RuntimeError, match="share"):
            Estimator(prior).changes()

    @settings(deadline=None)
    @given(st.binary(max_size=300))
    def test_refuses_any_other_bytes(self, data: bytes) -> None:
        """Bytes that are no snapshot raise ValueError."""
        with pytest.raises(ValueError, match=r".+"):
            Estimator(_PRIOR).merge(data)


_PRIOR = load_prior()
_texts = st.text(max_size=400)


@settings(max_examples=150, deadline=None)
@given(
    user=_texts,
    system=_texts,
    tokens=st.integers(0, 200_000),
    cap=st.one_of(st.none(), st.integers(1, 10_000)),
    result=st.sampled_from(list(Result)),
)
def test_any_request_gets_an_estimate_in_order(
    user: str, system: str, tokens: int, cap: int | None, result: Result
) -> None:
    """Whatever the texts, caps and outcomes, the figures are finite, ordered and within the cap."""
    estimator = Estimator(_PRIOR, entries=8)
    params: dict[str, Any] = {} if cap is None else {"max_tokens": cap}
    features = ask(user, system=system, **params)
    estimate = estimator.estimate(features)

    assert 0 <= estimate.p50 <= estimate.p90
    assert all(math.isfinite(v) for v in (estimate.output_tokens, estimate.p50, estimate.p90))
    assert 0 <= estimate.confidence <= 1
    if cap is not None:
        assert max(estimate.p50, estimate.p90, estimate.output_tokens) <= cap
    outcome: Outcome = ended(features, tokens, result=result)
    estimator.observe(outcome)


def test_a_case_teaches_its_own_kind_whatever_the_words(prior: Prior) -> None:
    """Where tales turn out short and explanations long, a tale and an explanation in new words are judged so."""
    estimator = Estimator(prior)
    openings = ("word", "fable", "verse", "scene", "sketch", "legend", "myth", "rhyme")
    for i in range(48):
        opening, animal = openings[i % len(openings)], SUBJECTS[i % 8]
        for text, tokens in (
            (f"{opening}, please write a story about a {animal}", 25),
            (f"{opening}: explain how the {animal} lives", 600),
        ):
            features = ask(text)
            estimator.estimate(features)
            estimator.observe(ended(features, tokens))
    tale = estimator.estimate(ask("Now, write a story about a lighthouse keeper of old"))
    explanation = estimator.estimate(ask("Can you explain how tides work?"))
    assert tale.p50 < 60
    assert explanation.p50 > 250
