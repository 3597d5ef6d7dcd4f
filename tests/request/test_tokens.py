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

    def taught(self, seed: int, count: int = 60, model: str = "m") -> TokenEstimator:
        estimator, rng = TokenEstimator(), random.Random(seed)
        for profile in self.requests(seed, count):
            estimator.observe(model, profile, self.truth(profile, rng))
        return estimator

    def test_counts_after_a_restart_as_before(self) -> None:
        """A process that takes its own snapshot back counts alike at once, and goes on from there."""
        before, again = self.taught(2), TokenEstimator()
        again.merge({"a": before.snapshot()}, "a", resume=True)
        later = self.requests(4, 60)
        counts = [[each.estimate("m", profile) for profile in later] for each in (before, again)]
        rng = random.Random(5)
        for profile in self.requests(5, 40):
            for each in (before, again):
                each.observe("m", profile, self.truth(profile, rng))

        # The last few observations were not solved for yet when the snapshot was made.
        assert counts[1] == pytest.approx(counts[0], rel=0.02)
        assert self.median_error(again) == pytest.approx(self.median_error(before), abs=0.005)

    def test_other_processes_snapshots_replace_what_they_sent_before(self) -> None:
        """What others observed is used at once, and once, however often it is heard; what they withdraw is gone."""
        other, third, here = self.taught(2), self.taught(6), TokenEstimator()
        profile = self.requests(4, 1)[0]
        cold = here.estimate("m", profile)
        rows = {"other": other.snapshot(), "third": third.snapshot()}
        here.merge(rows, "here")
        first = here.estimate("m", profile)
        error = self.median_error(here)
        for _ in range(5):
            here.merge(dict(reversed(rows.items())) | {"here": here.snapshot()}, "here")

        assert error < 0.05
        assert here.estimate("m", profile) == first
        here.merge({}, "here")
        assert here.estimate("m", profile) == cold

    def test_what_is_observed_here_outweighs_what_others_know(self) -> None:
        """If a name stands for another tokenizer now, what others saw of the old one does not stay."""
        here = TokenEstimator()
        others = {name: self.taught(seed, 400).snapshot() for seed, name in enumerate("abcdef")}
        here.merge(others, "here")
        profiles = self.requests(9, 2_000)
        for profile in profiles:
            here.observe("m", profile, 3 * self.truth(profile, random.Random(1)))
        here.merge(others, "here")
        ratios = [here.estimate("m", p) / self.truth(p, random.Random(1)) for p in profiles[:60]]

        assert statistics.median(ratios) > 2.4

    def test_an_old_snapshot_counts_for_little(self) -> None:
        """A process that is long gone says less than one that runs."""
        old, new = self.taught(2).snapshot(0.0), self.taught(6).snapshot(30 * 86_400.0)
        profile = self.requests(4, 1)[0]
        both, one = TokenEstimator(), TokenEstimator()
        both.merge({"old": old, "new": new})
        one.merge({"new": new})

        assert both.estimate("m", profile) == one.estimate("m", profile)

    @pytest.mark.parametrize("start", [b"", b"XXXX", b"MTPT\x02", b"MTPT\x01\x00\x0e"])
    @pytest.mark.parametrize("length", [0, 10, 40, 1000, None])
    def test_a_broken_snapshot_says_nothing(self, start: bytes, length: int | None) -> None:
        """Bytes that are cut, or of another format, version or set of parts, are left out; the others still count."""
        good, other = self.taught(2).snapshot(), self.taught(3).snapshot()
        here, known = TokenEstimator(), TokenEstimator()
        # The last number of a snapshot of full length becomes none.
        bad = (start + other[len(start) : -8] + b"\xff" * 8)[:length]
        here.merge({"bad": bad, "good": good}, "here", resume=True)
        known.merge({"good": good}, "here", resume=True)
        profile = self.requests(4, 1)[0]

        assert here.estimate("m", profile) == known.estimate("m", profile)

    def test_a_snapshot_holds_the_models_seen_most(self) -> None:
        """However many names clients used, what is exchanged is bounded."""
        estimator = TokenEstimator()
        for i in range(256):
            for _ in range(1 + (i >= 200)):
                estimator.observe(f"m{i}", profile_of(ENGLISH), 30)
        again = TokenEstimator()
        again.merge({"a": estimator.snapshot()}, "a", resume=True)

        assert len(estimator.snapshot()) < 80_000
        assert len(again) == 64
        assert again.estimate("m255", profile_of(ENGLISH)) == estimator.estimate("m255", profile_of(ENGLISH))

    def test_bounds_the_number_of_models(self) -> None:
        """Model names come from clients, so their number is bounded."""
        estimator = TokenEstimator()
        for i in range(400):
            estimator.observe(f"m{i}", profile_of(ENGLISH), 30)

        assert len(estimator) == 256
