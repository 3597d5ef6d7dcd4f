"""Token counts: rough, learned and exact."""

from __future__ import annotations

import random
import statistics

import pytest

from gateway.request.exact_tokens import TokenCounter
from gateway.request.tokens import Part, Profile, TokenEstimator, count_parts, rough_tokens

ENGLISH = "The harbour was quiet, and 14 fishermen mended their nets before the tide came back in. "
JAPANESE = "港は静かで、漁師たちは潮が戻る前に網を直していた。カモメが桟橋の上を飛んでいる。"
KOREAN = "항구는 조용했고 어부들은 밀물이 돌아오기 전에 그물을 손질했다. "
RUSSIAN = "В гавани было тихо, и рыбаки чинили сети, пока не вернулся прилив. "


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return TokenCounter.load()


def profile_of(text: str, messages: int = 1) -> Profile:
    return (*count_parts(text), 0, 0, 0, messages, 1)


class TestTokenCounter:
    def test_loads_without_a_network(self, counter: TokenCounter) -> None:
        """TOKEN-05, TOKEN-07: the table comes from an installed package, by an explicit call at start."""
        assert counter.count(ENGLISH * 40) != TokenCounter(None).count(ENGLISH * 40)

    def test_counts_exactly(self, counter: TokenCounter) -> None:
        """o200k_base has known counts for known texts."""
        assert counter.count("hello world") == 2
        assert counter.count("") == 0

    @pytest.mark.parametrize("text", ["<|endoftext|>", "a <|endofprompt|> b", "<|im_start|>user"])
    def test_counts_special_tokens_as_text(self, counter: TokenCounter, text: str) -> None:
        """TOKEN-01: text of special tokens is counted as plain text and never raises."""
        assert counter.count(text) > 1

    def test_counts_half_a_surrogate_pair(self, counter: TokenCounter) -> None:
        """BODY-04: a lone surrogate does not break counting."""
        assert counter.count("x \ud83d y") > 0
        assert rough_tokens("x \ud83d y") > 0

    @pytest.mark.parametrize(
        "text",
        ["a" * 200_000, "_" * 50_000, " " * 1_000_000, "\n" * 200_000, "漢字" * 25_000, ENGLISH * 60_000],
        ids=["letters", "underscores", "spaces", "line breaks", "han", "5 MB"],
    )
    def test_reads_a_bounded_part_of_hostile_text(self, text: str) -> None:
        """TOKEN-02, TOKEN-03, TOKEN-04: never more than 32,000 characters are encoded, in pieces of 2,000."""
        read: list[int] = []

        class Recorder:
            def encode_ordinary(self, piece: str) -> list[int]:
                read.append(len(piece))
                return [0] * len(piece)

        assert TokenCounter(Recorder()).count(text) == len(text)  # type: ignore[arg-type]
        assert sum(read) <= 32_000
        assert max(read) <= 2000

    def test_survives_hostile_text(self, counter: TokenCounter) -> None:
        """TOKEN-02, TOKEN-03: long runs neither raise nor panic."""
        letters = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=100_000))

        assert counter.count(letters) > 10_000
        assert counter.count(" " * 1_000_000) > 0

    def test_falls_back_to_rough_counts(self) -> None:
        """TOKEN-05: without the table, counts are rough and nothing fails."""
        assert TokenCounter(None).count(ENGLISH) == pytest.approx(21, abs=6)


class TestRoughTokens:
    @pytest.mark.parametrize("text", [ENGLISH, JAPANESE, KOREAN, RUSSIAN])
    def test_is_near_the_exact_count(self, counter: TokenCounter, text: str) -> None:
        """A rough count of prose is within a third of o200k_base in any script."""
        assert rough_tokens(text * 5) == pytest.approx(counter.count(text * 5), rel=0.34)

    def test_does_not_undercount_japanese(self) -> None:
        """TOKEN-06: 2,000 Japanese characters are 0.6 to 1.7 tokens each."""
        text = (JAPANESE * 60)[:2000]

        assert 1200 <= rough_tokens(text) <= 3400
        assert 1200 <= TokenEstimator().estimate("gemma", profile_of(text)) <= 3400

    @pytest.mark.parametrize("spaces", [0, 1, 65_519, 65_520, 65_521, 70_000])
    @pytest.mark.parametrize("rest", ["", "ab 1!\n", "é漢"])
    def test_counts_spaces_however_many(self, spaces: int, rest: str) -> None:
        """However few or many there are, and whatever stands after them."""
        parts = count_parts(" " * spaces + rest)

        assert parts[Part.SPACE] == spaces + rest.count(" ")
        assert sum(parts) == spaces + len(rest)

    def test_counts_scripts_apart(self) -> None:
        """Every character is counted once, under its script."""
        parts = count_parts("Ab 12!é漢字かな한д🙂\n")

        named = {part.name: parts[part] for part in Part if part < Part.TOOL}
        assert named["LETTER"] == 2
        assert named["DIGIT"] == 2
        assert named["SPACE"] == 1
        assert named["SIGN"] == 2
        assert (named["HAN"], named["KANA"], named["HANGUL"]) == (2, 2, 1)
        assert (named["CYRILLIC"], named["LATIN_EXTRA"]) == (1, 1)


class TestTokenEstimator:
    @staticmethod
    def requests(seed: int, count: int) -> list[Profile]:
        """Mixed prompts of 1 to 6 messages in several scripts."""
        rng = random.Random(seed)
        made = []
        for _ in range(count):
            text = "".join(rng.choices([ENGLISH, JAPANESE, KOREAN, RUSSIAN, "x = f(42);\n"], k=rng.randint(1, 12)))
            made.append(profile_of(text, rng.randint(1, 6)))
        return made

    @staticmethod
    def truth(profile: Profile, rng: random.Random) -> int:
        """A tokenizer unlike the starting weights: other rates per script and a larger template."""
        rates = (0.14, 0.5, 1.0, 0.8, 0.5, 0.3, 0.9, 0.45, 0.8, 0.5, 0.3, 260, 1, 9, 31)
        exact = sum(rate * amount for rate, amount in zip(rates, profile, strict=True))
        return round(exact * rng.gauss(1, 0.02))

    def test_learns_a_tokenizer_from_a_hundred_requests(self) -> None:
        """After 100 observed requests the median error on new ones is below 5 %."""
        estimator, rng = TokenEstimator(), random.Random(1)
        before = self.median_error(estimator)
        for profile in self.requests(2, 100):
            estimator.observe("m", profile, self.truth(profile, rng))

        assert before > 0.1
        assert self.median_error(estimator) < 0.05

    def median_error(self, estimator: TokenEstimator) -> float:
        rng = random.Random(3)
        pairs = [(estimator.estimate("m", p), self.truth(p, rng)) for p in self.requests(4, 60)]
        return statistics.median(abs(guess / true - 1) for guess, true in pairs)

    def test_is_not_bent_by_truncated_prompts(self) -> None:
        """One prompt in ten that the engine cut short does not spoil the rest."""
        estimator, rng = TokenEstimator(), random.Random(1)
        for i, profile in enumerate(self.requests(2, 300)):
            true = self.truth(profile, rng)
            estimator.observe("m", profile, true // 8 + 1 if i > 30 and i % 10 == 0 else true)

        assert self.median_error(estimator) < 0.08

    def test_learns_nothing_from_counts_that_cannot_be(self) -> None:
        """A back end that says the same few tokens of every prompt does not count them."""
        estimator = TokenEstimator()
        long = profile_of(ENGLISH * 40)
        before = estimator.estimate("m", long)
        for _ in range(100):
            estimator.observe("m", long, 5)
            estimator.observe("m", profile_of("hi"), 5)

        assert estimator.estimate("m", long) > 0.5 * before

    def test_ignores_nonsense(self) -> None:
        """Counts of zero and foreign profiles change nothing."""
        estimator = TokenEstimator()
        estimator.observe("m", profile_of(ENGLISH), 0)
        estimator.observe("m", (1, 2), 50)

        assert len(estimator) == 0

    def test_bounds_the_number_of_models(self) -> None:
        """Model names come from clients, so their number is bounded."""
        estimator = TokenEstimator()
        for i in range(400):
            estimator.observe(f"m{i}", profile_of(ENGLISH), 30)

        assert len(estimator) == 256
