"""What drafting gains at the present load: which comparison counts, and where there is none."""

from __future__ import annotations

import pytest

from gateway.telemetry.gain import Gains

KEY = ("mtp", "e4b")
PLAIN = ["plain"]
Told = tuple[float, float] | None


def nothing(plain: str, drafting: str, model: str, tokens: float, running: float) -> Told:
    return None


def learned(plain: str, drafting: str, model: str, tokens: float, running: float) -> Told:
    """A plain pool at 10 ms, and a millisecond more for each other request, known to within 3 %."""
    assert (plain, drafting, model) == ("plain", *KEY)
    return 0.010 + 0.001 * running, 0.03


def gains(speed: object = nothing) -> Gains:
    return Gains(lambda: 600.0, speed)  # type: ignore[arg-type]


def answers(to: Gains, pool: str, running: float, seconds: float, number: int = 40, now: float = 0.0) -> None:
    for _ in range(number):
        to.request(now, (pool, "e4b"), 2 if pool == "mtp" else 0, 200, running, seconds)


def test_answers_of_both_pools_at_the_present_load_count_first() -> None:
    """Though the curve would say something else, and other loads were measured with many more answers."""
    found = gains(learned)
    answers(found, "mtp", 1, 0.004, 400)
    answers(found, "plain", 1, 0.008, 400)
    answers(found, "mtp", 16, 0.018, now=600.0)
    answers(found, "plain", 16, 0.020, now=600.0)
    gain = found.present(KEY, 2, PLAIN, 600.0)

    assert gain is not None
    assert (gain.source, gain.load) == ("requests", 4)
    assert gain.gain == pytest.approx(0.1)


def test_the_plain_pools_curve_stands_in_at_a_load_that_it_has_not_had() -> None:
    """At 16 beside it the plain pool would take 26 ms; the curve's own doubt is part of the error."""
    found = gains(learned)
    answers(found, "plain", 1, 0.011)
    answers(found, "mtp", 16, 0.013)
    gain = found.present(KEY, 2, PLAIN, 0.0)

    assert gain is not None
    assert (gain.source, gain.load) == ("curve", 4)
    assert gain.gain == pytest.approx(0.5)
    assert gain.error > 0.5 * 0.03
    assert gain.as_dict()["running"] == [11.3, 22.6]


def test_loads_that_both_have_seen_are_better_than_nothing() -> None:
    """Where nothing is known of the plain pool at the present load; the figure says that it is about all loads."""
    found = gains()
    answers(found, "mtp", 1, 0.009)
    answers(found, "plain", 1, 0.010)
    answers(found, "mtp", 64, 0.040, now=300.0)
    gain = found.present(KEY, 2, PLAIN, 300.0)

    assert gain is not None
    assert (gain.source, gain.load, gain.running) == ("requests", None, None)
    assert gain.gain == pytest.approx(0.1)


def test_a_pool_without_a_plain_one_has_no_gain() -> None:
    """Nor one that has hardly answered, nor one that does not draft."""
    found = gains(learned)
    answers(found, "mtp", 4, 0.010, 19)

    assert found.present(KEY, 2, PLAIN, 0.0) is None
    answers(found, "mtp", 4, 0.010, 1)
    assert found.present(KEY, 2, PLAIN, 0.0) is not None
    assert found.present(KEY, 2, [], 0.0) is None
    assert found.present(KEY, 0, PLAIN, 0.0) is None
    assert found.by_load(KEY, 0, PLAIN, 0.0) == ()


def test_what_a_comparison_lacks_is_counted() -> None:
    """Answers of each side, and those at like load and length; of two plain pools, the one that is nearer."""
    found = gains()
    answers(found, "mtp", 4, 0.010, 54)
    answers(found, "plain", 4, 0.010, 6)
    answers(found, "plain", 64, 0.040, 30)
    far = found.lacking(KEY, 2, ["other", "plain"], 0.0)

    assert found.present(KEY, 2, PLAIN, 0.0) is None
    assert far is not None
    assert (far.plain, far.mine, far.theirs, far.alike) == ("plain", 54.0, 36.0, 6.0)
    assert found.lacking(KEY, 2, [], 0.0) is None
    answers(found, "plain", 4, 0.010, 14)
    assert found.present(KEY, 2, PLAIN, 0.0) is not None


def test_every_load_has_its_own_gain() -> None:
    """Dense models gain at light load and lose at a high one, which one figure over all loads hides."""
    found = gains(learned)
    answers(found, "mtp", 1, 0.008)
    answers(found, "plain", 1, 0.011)
    answers(found, "mtp", 64, 0.090)
    rows = found.by_load(KEY, 2, PLAIN, 0.0)

    assert [(row.load, row.source) for row in rows] == [(0, "requests"), (6, "curve")]
    assert rows[0].gain == pytest.approx(1 - 8 / 11)
    assert rows[1].gain == pytest.approx(1 - 90 / 74)


def test_the_engines_own_times_are_compared_at_their_load() -> None:
    """Where the gateway's requests are no streams the histograms stand in, pairs first and then the curve."""
    found = gains(learned)
    for _ in range(10):
        found.engine(0.0, KEY, 2, 200, 8, 0.009, 5.0)
        found.engine(0.0, ("plain", "e4b"), 0, 200, 8, 0.010, 5.0)
    pairs = found.present(KEY, 2, PLAIN, 0.0)
    for _ in range(10):
        found.engine(900.0, KEY, 2, 200, 30, 0.020, 5.0)
    curve = found.present(KEY, 2, PLAIN, 900.0)

    assert pairs is not None
    assert curve is not None
    assert (pairs.source, curve.source) == ("engines", "curve")
    assert (pairs.gain, curve.gain) == pytest.approx((0.1, 0.5))


def test_what_the_policy_no_longer_has_is_dropped() -> None:
    """Memory follows the policy."""
    found = gains(learned)
    answers(found, "mtp", 4, 0.010)
    found.keep([("other", "e4b")])

    assert found.present(KEY, 2, PLAIN, 0.0) is None
