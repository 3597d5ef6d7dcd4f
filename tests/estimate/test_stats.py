"""The history: what it learns, what it forgets, and that two of them add up."""

from __future__ import annotations

import math
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.estimate.hashing import LEVELS
from gateway.estimate.stats import BYTES_PER_ENTRY, History, imputed

KEYS = (11, 0, 0, 0, 0, 0, 77, 0)


def taught(values: list[float], prior: float = 6.0, keys: tuple[int, ...] = KEYS) -> History:
    history = History(64)
    for value in values:
        history.learn(history.chain(keys, prior, 1.0), value)
    return history


class TestLearning:
    def test_knows_nothing_at_first(self) -> None:
        """Without observations the prediction passes through unchanged."""
        chain = History(64).chain(KEYS, 5.5, 0.7)

        assert (chain.location, chain.spread, chain.support) == (5.5, 0.7, 0.0)

    def test_comes_close_to_a_constant_answer(self) -> None:
        """A template that always has the same length is predicted within a fifth of a doubling after twenty answers."""
        chain = taught([2.0] * 20).chain(KEYS, 6.0, 1.0)

        assert abs(chain.location - 2.0) < 0.2
        assert chain.spread < 0.6

    def test_learns_a_scale_and_keeps_the_order(self) -> None:
        """A model that is always four times as long moves long and short predictions alike."""
        history = History(64)
        rng = random.Random(1)
        for _ in range(60):
            m = rng.uniform(2.0, 9.0)
            history.learn(history.chain((11,) + (0,) * 7, m, 1.0), m + 2.0)

        low, high = (history.chain((11,) + (0,) * 7, m, 1.0).location for m in (3.0, 8.0))
        assert low == pytest.approx(5.0, abs=0.4)
        assert high == pytest.approx(10.0, abs=0.4)

    @pytest.mark.parametrize("along", [True, False])
    def test_a_broad_key_reaches_further_where_lengths_rose_along(self, along: bool) -> None:
        """A system prompt whose answers are four times as long as expected lengthens what looks like a label; one whose
        answers have one length whatever is asked says less of it."""
        keys = (11, 12, 13, 0, 0, 0, 0, 0)
        history = History(64)
        rng = random.Random(2)
        for _ in range(40):
            m = rng.uniform(4.5, 7.5)
            history.learn(history.chain(keys, m, 1.0), m + 2.0 if along else 8.0)
        moved = history.chain(keys, 1.0, 1.0).location - 1.0

        assert 1.4 < moved < 2.2 if along else moved < 2.2

    def test_does_not_follow_an_outlier(self) -> None:
        """One answer of a hundred times the usual length moves the prediction by less than a fifth of a doubling."""
        steady = taught([3.0] * 30)
        before = steady.chain(KEYS, 6.0, 1.0).location
        steady.learn(steady.chain(KEYS, 6.0, 1.0), 10.0)

        assert abs(steady.chain(KEYS, 6.0, 1.0).location - before) < 0.2

    def test_follows_a_lasting_change(self) -> None:
        """A template whose answers become long is followed within sixty answers."""
        history = taught([2.0] * 40 + [9.0] * 60)

        assert history.chain(KEYS, 6.0, 1.0).location > 7.0

    def test_leaves_a_good_prediction_alone_where_answers_are_noise(self) -> None:
        """History that errs as much as the prediction that it corrects loses its say."""
        rng = random.Random(2)
        history = History(64)
        keys = [(11, 0, 0, 0, 0, 0, 0, 100 + i) for i in range(8)]
        for _ in range(400):
            key = rng.choice(keys)
            history.learn(history.chain(key, 6.0, 1.0), 6.0 + rng.gauss(0.0, 1.5))

        assert all(abs(history.chain(key, 6.0, 1.0).location - 6.0) < 1.0 for key in keys)


class TestBounds:
    def test_holds_no_more_than_its_entries(self) -> None:
        """A thousand different templates leave at most as many entries as the history has room for."""
        history = History(64)
        for i in range(1000):
            history.learn(history.chain((11, 0, 0, 0, 0, 0, 1000 + i, 0), 5.0, 1.0), 4.0)

        assert len(history) <= 64

    def test_keeps_what_is_used(self) -> None:
        """A key that comes back between many others is not forgotten."""
        history = History(64)
        for i in range(500):
            history.learn(history.chain((0, 0, 0, 0, 0, 0, 7, 0), 5.0, 1.0), 2.0)
            history.learn(history.chain((0, 0, 0, 0, 0, 0, 1000 + i, 0), 5.0, 1.0), 5.0)

        assert history.chain((0, 0, 0, 0, 0, 0, 7, 0), 5.0, 1.0).support > 20

    def test_refuses_a_size_without_room(self) -> None:
        """A history of one entry is a mistake."""
        with pytest.raises(ValueError, match="two entries"):
            History(1)


class TestMerging:
    def test_order_does_not_matter(self) -> None:
        """A plus B and B plus A are the same bytes."""
        a, b = taught([2.0, 3.0, 2.5]), taught([8.0, 9.0], keys=(11, 0, 0, 5, 0, 0, 78, 0))
        left, right = History(64), History(64)
        left.merge(a.snapshot())
        left.merge(b.snapshot())
        right.merge(b.snapshot())
        right.merge(a.snapshot())

        assert left.snapshot() == right.snapshot()

    def test_a_snapshot_restores_what_was_learned(self) -> None:
        """A fresh history predicts after a merge what the other one predicts."""
        taught_one = taught([2.0, 2.0, 3.0] * 5)
        restored = History(64)
        restored.merge(taught_one.snapshot())

        assert restored.chain(KEYS, 6.0, 1.0).location == pytest.approx(taught_one.chain(KEYS, 6.0, 1.0).location)
        assert restored.snapshot() == taught_one.snapshot()

    def test_room_goes_to_the_weightiest(self) -> None:
        """A merge of more keys than there is room keeps the bound and the key with most behind it."""
        large = History(200)
        for _ in range(10):
            large.learn(large.chain(KEYS, 6.0, 1.0), 2.0)
        for i in range(90):
            large.learn(large.chain((0, 0, 0, 0, 0, 0, 1000 + i, 0), 6.0, 1.0), 4.0)
        small = History(8)
        small.merge(large.snapshot())

        assert len(small) <= 8
        assert small.chain(KEYS, 6.0, 1.0).support > 5

    @given(st.binary(max_size=400))
    def test_refuses_any_other_bytes(self, data: bytes) -> None:
        """Bytes that are not a snapshot raise ValueError and change nothing."""
        history = taught([2.0] * 3)
        before = history.snapshot()

        with pytest.raises(ValueError, match="snapshot"):
            history.merge(data)
        assert history.snapshot() == before

    def test_refuses_values_that_are_not_numbers(self) -> None:
        """A snapshot with NaN in it is refused."""
        broken = bytearray(taught([2.0]).snapshot())
        broken[-8:] = b"\xff" * 8

        with pytest.raises(ValueError, match="not numbers"):
            History(64).merge(bytes(broken))


class TestImputed:
    @given(
        st.floats(0.3, 14.0),
        st.floats(0.02, 4.0),
        st.floats(0.0, 16.0),
    )
    def test_is_never_below_what_was_seen(self, location: float, spread: float, at_least: float) -> None:
        """A cut answer counts as at least its length, and as a finite number."""
        value = imputed(location, spread, at_least)

        assert at_least <= value < at_least + 20 + location
        assert math.isfinite(value)

    def test_far_below_the_expectation_it_says_nothing(self) -> None:
        """An answer cut at two tokens leaves an expectation of 500 as it is."""
        assert imputed(9.0, 0.5, 1.0) == pytest.approx(9.0, abs=0.01)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 17.0), st.floats(0.3, 16.0)), max_size=60))
def test_any_sequence_leaves_finite_predictions(steps: list[tuple[int, float, float]]) -> None:
    """Whatever lengths and predictions are learned, every later prediction is a finite number."""
    history = History(16)
    for key, actual, prior in steps:
        keys = (1, key, 0, key + 10, 0, 0, 0, key + 20, 0, 0)
        chain = history.chain(keys, prior, 1.0)
        assert math.isfinite(chain.location)
        assert chain.spread >= 0
        history.learn(chain, actual)
    assert len(LEVELS) == 10


def test_an_entry_takes_the_bytes_that_are_said() -> None:
    """The stated bytes an entry are what a full history was measured to take, within an eighth."""
    rng = random.Random(3)
    tracemalloc.start()
    try:
        history, before = History(8192), tracemalloc.get_traced_memory()[0]
        for _ in range(2 * 8192):
            keys = (0, 0, 0, 0, 0, 0, rng.getrandbits(64), 0)
            history.learn(history.chain(keys, 4.0 + rng.random(), 1.0), 3.0 + rng.random())
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert len(history) <= 8192
    assert abs(taken / len(history) / BYTES_PER_ENTRY - 1) < 1 / 8
