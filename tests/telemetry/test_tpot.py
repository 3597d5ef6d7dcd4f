"""Time per token of two pools, compared where they did alike work."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from gateway.telemetry.tpot import ALIKE, TpotTable, bucket_of, compare


def _table(rows: Sequence[tuple[float, float, float]], repeat: int = 40, now: float = 0.0) -> TpotTable:
    """Rows of (tokens, running, seconds)."""
    table = TpotTable(600.0)
    for tokens, running, seconds in [*rows] * repeat:
        table.observe(now, tokens, running, seconds)
    return table


def test_the_gain_is_the_share_of_time_saved() -> None:
    """8.6 ms where the plain pool takes 10 is a gain of 14 %, or 1.4 ms per token."""
    found = compare(_table([(200, 8, 0.0086)]), _table([(200, 8, 0.010)]), 0.0, "requests")

    assert found is not None
    assert found.gain == pytest.approx(0.14)
    assert found.saved_ms == pytest.approx(1.4)
    assert found.error == pytest.approx(ALIKE)


def test_unlike_work_is_not_compared() -> None:
    """A busy drafting pool beside an idle plain one says nothing; only the common buckets count."""
    mtp = _table([(500, 64, 0.020), (500, 2, 0.008)])
    plain = _table([(500, 2, 0.010), (5, 2, 0.004)])
    found = compare(mtp, plain, 0.0, "requests")

    assert found is not None
    assert found.gain == pytest.approx(0.2)
    assert found.buckets == 1
    assert compare(_table([(500, 64, 0.02)]), _table([(500, 2, 0.01)]), 0.0, "requests") is None


def test_buckets_are_weighted_by_what_both_know() -> None:
    """A mix of loads does not turn the sign: each bucket says -10 %, so the whole does."""
    mtp = _table([(100, 1, 0.0055)] * 9 + [(100, 32, 0.022)])
    plain = _table([(100, 1, 0.005)] + [(100, 32, 0.020)] * 9)
    found = compare(mtp, plain, 0.0, "requests")

    assert found is not None
    assert found.gain == pytest.approx(-0.1)


def test_too_few_answers_say_nothing() -> None:
    """A comparison needs both sides' answers, twenty of them."""
    assert compare(_table([(100, 1, 0.005)], 19), _table([(100, 1, 0.01)]), 0.0, "requests") is None
    assert compare(_table([(100, 1, 0.005)], 20), _table([(100, 1, 0.01)]), 0.0, "requests") is not None


def test_old_answers_fade() -> None:
    """After a few time constants what was measured no longer counts, and new answers do."""
    mtp, plain = _table([(100, 1, 0.005)]), _table([(100, 1, 0.010)], 4000)
    assert compare(mtp, plain, 1800.0, "requests") is None

    for _ in range(60):
        mtp.observe(1800.0, 100, 1, 0.020)
    found = compare(mtp, plain, 1800.0, "requests")

    assert found is not None
    assert found.gain < -0.8


def test_the_error_covers_the_truth() -> None:
    """With noisy answers the true gain lies within three standard errors, and the error shrinks with their number."""
    rng = Random(7)
    errors = []
    for count in (50, 800):
        mtp, plain = TpotTable(600.0), TpotTable(600.0)
        for _ in range(count):
            mtp.observe(0.0, 200, 4, 0.009 * rng.lognormvariate(0, 0.3))
            plain.observe(0.0, 200, 4, 0.010 * rng.lognormvariate(0, 0.3))
        found = compare(mtp, plain, 0.0, "requests")
        assert found is not None
        assert abs(found.gain - 0.1) < 3 * found.error
        errors.append(found.error)

    assert errors[1] < errors[0] / 3


def test_a_scrape_of_many_answers_is_one_observation() -> None:
    """Answers that finished together share their moment: means of 20 answers are as uncertain as single answers of
    that spread, and one scrape alone compares nothing."""
    rng = Random(3)
    scraped, single = (TpotTable(600.0), TpotTable(600.0)), (TpotTable(600.0), TpotTable(600.0))
    for _ in range(40):
        seconds = [base * rng.lognormvariate(0, 0.2) for base in (0.009, 0.010)]
        for pair, answers in ((scraped, 20.0), (single, 1.0)):
            for table, value in zip(pair, seconds, strict=True):
                table.observe(0.0, 200, 4, value, answers)
    coarse, fine = compare(*scraped, 0.0, "engines"), compare(*single, 0.0, "requests")
    once = TpotTable(600.0)
    once.observe(0.0, 200, 4, 0.009, 500.0)

    assert coarse is not None
    assert fine is not None
    assert coarse.error == pytest.approx(fine.error)
    assert coarse.error > 0.03
    assert compare(once, scraped[1], 0.0, "engines") is None


def test_answers_of_one_burst_are_as_good_as_one() -> None:
    """Where prompts slow whole moments, a gain of 10 % is seldom called a loss, however many answers there are."""
    losses = 0
    for seed in range(200):
        rng = Random(seed)
        pools = TpotTable(600.0), TpotTable(600.0)
        for burst in range(12):
            for table, base in zip(pools, (0.009, 0.010), strict=True):
                slow = rng.lognormvariate(0, 0.5)
                for answer in range(20):
                    table.observe(10.0 * burst + 0.1 * answer, 200, 4, base * slow * rng.lognormvariate(0, 0.1))
        found = compare(*pools, 120.0, "requests")
        assert found is not None
        losses += found.high < 0.0

    assert losses <= 10


def test_moments_fade_with_their_answers() -> None:
    """A bucket's error is the same whether it is read at each answer or once, and does not change by waiting."""
    rng = Random(5)
    read, unread = TpotTable(600.0), TpotTable(600.0)
    for second in range(200):
        seconds = 0.01 * rng.lognormvariate(0, 0.3)
        for table in (read, unread):
            table.observe(float(second), 200, 4, seconds)
        read.cells(second + 0.5)
    (one,), (other,) = read.cells(900.0).values(), unread.cells(200.0).values()

    assert one.variance_of_mean == pytest.approx(other.variance_of_mean)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_left_out(seconds: float) -> None:
    """Clock trouble must not poison a mean of logarithms."""
    table = _table([(100, 1, 0.01)])
    table.observe(0.0, 100, 1, seconds)
    table.observe(0.0, 1, 1, 0.5)

    assert [cell.weight for cell in table.cells(0.0).values()] == [40.0]


def test_buckets_are_powers() -> None:
    """Load by powers of two, length by powers of four."""
    assert bucket_of(1, 8) == (0, 1)
    assert bucket_of(0, 0) == (0, 0)
    assert bucket_of(64, 300) == (6, 4)
