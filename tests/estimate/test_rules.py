"""The estimate by rules: bounds, wishes, examples, tasks, thinking, and the arithmetic of capped lengths."""

from __future__ import annotations

import json
import math
import random
import statistics
from typing import Any, cast

import pytest

from gateway.estimate.rules import Length, estimate_rules, expected_min, from_length
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.types import Api, Estimate, Features, Hints, Task

DOCUMENT = "The fishermen of the bay have always known more than the books. A story is told of a whale. " * 400


def chat(text: str, system: str | None = None, hints: Hints | None = None, **params: Any) -> Features:
    messages = [{"role": "system", "content": system}] if system else []
    data = {"model": "m", "messages": [*messages, {"role": "user", "content": text}], **params}
    return extract(parse_body(json.dumps(data).encode()), Api.CHAT, hints or Hints())


def estimate(text: str, system: str | None = None, **params: Any) -> Estimate:
    return estimate_rules(chat(text, system, **params))


class TestKinds:
    def test_a_short_ask_can_have_a_long_answer(self) -> None:
        """ROUTE-01: "Write a 3,000-word essay on tides" is long although it is short itself."""
        made = estimate("Write a 3,000-word essay on tides")

        assert made.task is Task.LONG_FORM
        assert made.p50 > 3000

    @pytest.mark.parametrize(
        "ask", ["Answer yes or no: is it about fish?", "魚についての文章ですか。「はい」か「いいえ」で答えてください。"]
    )
    @pytest.mark.parametrize("before", [True, False])
    def test_a_long_document_can_have_a_short_answer(self, ask: str, before: bool) -> None:
        """ROUTE-02: a 6,000-word article with a yes-or-no question, before or after it, is short."""
        text = f"{ask}\n\n{DOCUMENT}" if before else f"{DOCUMENT}\n\n{ask}"

        assert estimate(text).p90 < 64

    def test_keywords_do_not_match_inside_words(self) -> None:
        """ROUTE-03: "classical" and "classy" are not "class", "contextual" is not "text"."""
        made = estimate("A long story of a classical pianist")

        assert made.task is not Task.CLASSIFICATION
        assert made.p50 > 64

    def test_keywords_match_beside_japanese_letters(self) -> None:
        """ROUTE-04: 「結果をJSONで返して」 asks for JSON although no space is around the word."""
        assert estimate("結果をJSONで返して").task is Task.STRUCTURED_JSON

    def test_reminders_are_no_ask(self) -> None:
        """ROUTE-05: a reminder after the user's words changes nothing."""
        ask = "Answer with one word: what colour is rust?"
        reminder = "<system-reminder>Write a detailed plan and explain every step at length.</system-reminder>"

        assert estimate(f"{ask}\n\n{reminder}").p50 == estimate(ask).p50

    def test_thinking_makes_a_tiny_task_long(self) -> None:
        """ROUTE-08: with thinking on, by the request or by the model, "yes or no?" is not short."""
        ask = "Is rust red? Answer yes or no."

        assert estimate(ask).p50 < 16
        assert estimate(ask, reasoning_effort="high").p50 > 128
        assert estimate_rules(chat(ask), thinking=True).p50 > 128

    def test_thinking_is_not_bound_by_choices_but_by_its_budget(self) -> None:
        """A choice list bounds the answer after the thinking; a thinking budget bounds the thinking."""
        made = [
            estimate("Red?", structured_outputs={"choice": ["yes", "no"]}, reasoning_effort="high", **extra)
            for extra in cast("list[dict[str, Any]]", [{}, {"thinking_token_budget": 40}, {"max_tokens": 30}])
        ]

        assert made[0].p50 > 128
        assert made[1].p50 < 64
        assert made[2].p90 == 30

    def test_classify_inside_an_essay_request_is_an_essay(self) -> None:
        """A keyword of a short task inside a long one does not make it short."""
        assert estimate("Write an essay on how museums classify their paintings.").p50 > 64

    def test_the_system_prompt_can_carry_the_ask(self) -> None:
        """A label-only system prompt over plain matter is short, in English and Japanese."""
        english = estimate("The pier was long and empty.", "Classify the mood. Answer with only the label.")
        japanese = estimate("桟橋は長く、静かだった。", "文の雰囲気を分類し、ラベルのみを出力してください。")

        assert english.p50 < 16
        assert japanese.p50 < 16

    def test_an_unknown_ask_is_said_to_be_unknown(self) -> None:
        """Where nothing is known the task is UNKNOWN, the quantiles are wide, and the confidence is low."""
        made = estimate("Zorp the blen.")

        assert made.task is Task.UNKNOWN
        assert made.source == "unknown"
        assert made.confidence < 0.3
        assert made.p90 > 6 * made.p50


class TestBounds:
    @pytest.mark.parametrize("cap", [1, 8, 16])
    def test_a_tiny_cap_settles_it(self, cap: int) -> None:
        """PARAM-04: whatever is asked, a cap of at most 16 tokens is the answer's length, with confidence."""
        made = estimate("Write a 3,000-word essay on tides", max_completion_tokens=cap)

        assert made.p90 == cap
        assert made.output_tokens <= cap
        assert made.source == "cap"
        assert made.confidence > 0.9

    def test_completions_without_a_cap_are_short(self) -> None:
        """The default of 16 tokens settles a completion as well."""
        features = extract(parse_body(b'{"model":"m","prompt":"Once upon a time"}'), Api.COMPLETIONS)

        assert estimate_rules(features).p90 == 16

    def test_a_larger_cap_bounds_every_figure(self) -> None:
        """No figure exceeds the cap or falls below the floor."""
        capped = estimate("Write an essay on tides.", max_tokens=100)
        floored = estimate("Answer yes or no: red?", max_tokens=100, min_tokens=80)

        assert max(capped.p50, capped.p90, capped.output_tokens) <= 100
        assert min(floored.p50, floored.p90, floored.output_tokens) >= 80

    def test_ignoring_the_end_gives_exactly_the_cap(self) -> None:
        """With `ignore_eos` the cap is the length."""
        made = estimate("Answer yes or no: red?", max_tokens=500, ignore_eos=True)

        assert made.p50 == made.p90 == made.output_tokens == 500

    def test_context_left_is_a_cap(self) -> None:
        """PARAM-01, PARAM-02: the room left in the context bounds the estimate, and never falls below one."""
        features = chat("Write a 3,000-word essay on tides")

        assert estimate_rules(features, room=200).p90 == 200
        assert estimate_rules(features, room=-5).p90 == 1

    def test_sources_have_an_order(self) -> None:
        """A structure settles before a hint, a hint before examples, examples before a wish."""
        shots = "Q: a?\nA: red\n\nQ: b?\nA: blue\n\nQ: c, in 300 words?\nA:"
        choice: dict[str, Any] = {"structured_outputs": {"choice": ["yes", "no"]}}

        assert estimate_rules(chat(shots, hints=Hints(output_tokens=90), max_tokens=99, **choice)).source == "choice"
        assert estimate_rules(chat(shots, hints=Hints(output_tokens=90))).source == "hint"
        assert estimate_rules(chat(shots)).source == "few_shot"
        assert estimate("Describe rust in 300 words.").source == "wish"

    @pytest.mark.parametrize("tokens", [1, 8, 62, 63, 64, 777, 999])
    def test_a_hinted_length_is_the_expected_value(self, tokens: int) -> None:
        """What a client expects is predicted, so that a limit in the policy cuts between the hints that it names."""
        made = estimate_rules(chat("Zorp the blen.", hints=Hints(output_tokens=tokens)))

        assert tokens <= made.output_tokens < tokens + 1e-6

    def test_a_hinted_task_is_taken(self) -> None:
        """A client's task wins over the text's."""
        made = estimate_rules(chat("Zorp the blen.", hints=Hints(task=Task.LONG_FORM)))

        assert made.task is Task.LONG_FORM
        assert made.p50 > 200

    def test_detail_and_brevity_move_the_estimate(self) -> None:
        """ "In detail" lengthens, "briefly" shortens."""
        plain, detail, brief = (estimate(f"Explain how locks work{how}.").p50 for how in ("", " in detail", " briefly"))

        assert brief < plain < detail


class TestExpectedMin:
    @pytest.mark.parametrize(
        ("median", "sigma", "cap"), [(30, 0.5, 64), (200, 1.5, 300), (5, 1.0, 4000), (900, 0.8, 16)]
    )
    def test_equals_the_simulated_mean(self, median: float, sigma: float, cap: float) -> None:
        """The closed form of E[min(N, cap)] agrees with a simulation."""
        rng = random.Random(5)
        drawn = [min(cap, rng.lognormvariate(math.log(median), sigma)) for _ in range(20_000)]

        assert expected_min(Length(math.log(median), sigma), cap) == pytest.approx(statistics.fmean(drawn), rel=0.05)

    def test_has_sane_edges(self) -> None:
        """No spread, no cap left, and huge spreads give finite figures within the cap."""
        assert expected_min(Length(math.log(10), 0.0), 100) == pytest.approx(10)
        assert expected_min(Length(3.0, 1.0), 0) == 0
        assert 0 < expected_min(Length(60.0, 9.0), 50) <= 50

    def test_without_a_cap_a_wide_spread_stays_in_bounds(self) -> None:
        """The ceiling keeps a wide UNKNOWN from inventing endless answers."""
        made = from_length(Length(5.0, 3.0), None, 0, task=Task.UNKNOWN, confidence=0.1, source="unknown")

        assert made.output_tokens < 8192
        assert made.p90 <= 8192
