"""What an operator is told, for each thing that can be wrong."""

from __future__ import annotations

from dataclasses import replace

from gateway.telemetry.advice import Advice, Code, Evidence, Severity, advise
from gateway.telemetry.mtp import MtpState, Thresholds
from gateway.telemetry.tpot import Lacking
from tests.telemetry.helpers import accepted, gain

LIMITS = Thresholds()
GOOD = Evidence(state=MtpState.HEALTHY, was_healthy=True, k=2, recent=accepted(0.47, 0.24), gain=gain(0.14))


def _only(evidence: Evidence) -> Advice:
    (found,) = advise(evidence, LIMITS)
    return found


def test_a_good_pool_needs_no_advice() -> None:
    """Healthy acceptance, a gain on target and no sign that a deeper k pays: silence."""
    assert advise(GOOD, LIMITS) == ()


def test_too_few_drafts() -> None:
    """The first thing to know is that nothing is known."""
    found = _only(replace(GOOD, state=MtpState.UNKNOWN, recent=None, gain=None))

    assert (found.code, found.severity) == (Code.TOO_FEW, Severity.INFO)


def test_drift() -> None:
    """A drafter that was good and is not: re-calibrate or co-fine-tune."""
    found = _only(replace(GOOD, state=MtpState.DRIFTING, recent=accepted(0.25, 0.10), gain=None))

    assert (found.code, found.severity) == (Code.DRIFT, Severity.WARNING)
    assert "18%" in found.message or "17%" in found.message
    assert "co-fine-tune" in found.message


def test_a_drafter_that_was_never_tuned_with_its_target() -> None:
    """Under 20 % from the start on points to a fine-tuned target; the same fall later on is drift."""
    low = replace(GOOD, state=MtpState.DRIFTING, recent=accepted(0.15, 0.08), gain=None)

    assert _only(replace(low, was_healthy=False)).code is Code.NOT_TUNED
    assert _only(low).code is Code.DRIFT


def test_a_weak_tail_names_the_k_to_run() -> None:
    """Position 0 healthy and position 1 under 15 %: k=1; with the third the first weak one, k=2."""
    weak = replace(GOOD, state=MtpState.WEAK_TAIL, gain=None)
    found = _only(replace(weak, recent=accepted(0.47, 0.12)))

    assert (found.code, found.tokens) == (Code.FEWER, 1)
    assert "k=1" in found.message
    assert _only(replace(weak, k=4, recent=accepted(0.47, 0.24, 0.12, 0.06))).tokens == 2


def test_a_small_gain_is_given_in_milliseconds_and_percent() -> None:
    """4 % of 10 ms is 0.40 ms; short of a target of 10 % that costs 0.60 ms per token."""
    found = _only(replace(GOOD, gain=gain(0.04)))

    assert (found.code, found.severity) == (Code.LOW_GAIN, Severity.INFO)
    assert "0.40 ms per token (4.0%)" in found.message
    assert "0.60 ms per token" in found.message


def test_harm_comes_first_and_says_what_it_costs() -> None:
    """SPEC-06: a pool measured slower is to be run without drafting, however well it accepts."""
    found = _only(replace(GOOD, state=MtpState.HARMFUL, recent=accepted(0.8, 0.7), gain=gain(-0.12)))

    assert (found.code, found.severity, found.tokens) == (Code.HARMFUL, Severity.CRITICAL, 0)
    assert "costs 1.20 ms per token (12.0%)" in found.message


def test_a_loss_is_told_with_its_error() -> None:
    """Within its error it may be none; clear of it, it counts once it has lasted; neither says to run without."""
    doubtful, fresh = gain(-0.03, error=0.02), gain(-0.10, error=0.02)
    unsure = _only(replace(GOOD, gain=doubtful))
    new = _only(replace(GOOD, state=MtpState.UNKNOWN, gain=fresh))

    assert (unsure.code, unsure.severity, unsure.tokens) == (Code.LOW_GAIN, Severity.INFO, None)
    assert "give or take 4.0%: it may as well save" in unsure.message
    assert (new.code, new.severity, new.tokens) == (Code.LOW_GAIN, Severity.WARNING, None)
    assert "once it has lasted for 30 s: run without it" in new.message
    assert "x-gateway-pool: plain" in new.message


def test_figures_of_the_engines_are_called_that() -> None:
    """A coarser source is named."""
    found = _only(replace(GOOD, gain=replace(gain(0.04), source="engines")))
    learned = _only(replace(GOOD, gain=replace(gain(0.04), source="curve")))

    assert "engines' own counters" in found.message
    assert "learned speed at this load" in learned.message


def test_a_deeper_k_is_advised_only_where_it_pays() -> None:
    """Code at 0.75 / 0.55: a third position at 0.40 lengthens a step by 17 %; if the step grows by 3 %, try k=3."""
    code = replace(GOOD, recent=accepted(0.75, 0.55), gain=gain(0.4))
    found = _only(replace(code, step_growth=1.03))

    assert (found.code, found.tokens) == (Code.MORE, 3)
    assert advise(replace(code, step_growth=1.20), LIMITS) == ()
    assert advise(replace(code, step_growth=None), LIMITS) == ()


def test_a_deeper_k_that_was_measured_slower_is_not_advised_again() -> None:
    """Time per token measured at k+1 outweighs any expectation; where it fell, the advice stands."""
    code = replace(GOOD, recent=accepted(0.75, 0.55), gain=gain(0.4), step_growth=1.03)

    assert advise(replace(code, over_more=gain(-0.03)), LIMITS) == ()
    assert _only(replace(code, over_more=gain(0.06))).code is Code.MORE
    assert advise(replace(code, gain=gain(-0.01)), LIMITS)[0].code is Code.LOW_GAIN


def test_a_deeper_k_is_not_advised_before_this_one_is_measured_to_pay() -> None:
    """SPEC-06: with a plain pool beside it a profile's word is not enough: first comes what the measurement lacks."""
    code = replace(GOOD, recent=accepted(0.75, 0.55), step_growth=1.03, gain=None)
    few = _only(replace(code, lacking=Lacking("plain", 54.0, 6.0, 0.0)))
    apart = _only(replace(code, lacking=Lacking("plain", 54.0, 40.0, 3.0)))
    idle = _only(replace(code, lacking=Lacking("plain", 6.0, 54.0, 0.0)))

    assert {row.code for row in (few, apart, idle)} == {Code.TOO_FEW}
    assert "20 answers of this pool and of plain at like load" in few.message
    assert "there are 0 (54 and 6 at any); let plain have more of this traffic" in few.message
    assert "there are 3 (54 and 40 at any); the pools do different work" in apart.message
    assert idle.message.endswith("more traffic will tell")
    assert _only(code).code is Code.MORE
    assert Code.MORE not in [row.code for row in advise(replace(code, gain=gain(0.02, error=0.015)), LIMITS)]


def test_what_else_is_wrong_is_not_drowned() -> None:
    """Where acceptance says what to do, or there is hardly any, the missing comparison is not told besides."""
    lacking = Lacking("plain", 5.0, 5.0, 0.0)
    drifting = replace(GOOD, state=MtpState.DRIFTING, recent=accepted(0.25, 0.10), gain=None, lacking=lacking)
    nothing = replace(GOOD, state=MtpState.UNKNOWN, recent=None, gain=None, lacking=lacking)

    assert _only(drifting).code is Code.DRIFT
    assert "drafts in the last" in _only(nothing).message


def test_a_k_that_was_measured_slower_than_one_less_is_undone() -> None:
    """The last increase did not pay: go back."""
    found = _only(replace(GOOD, k=4, recent=accepted(0.75, 0.55, 0.4, 0.3), over_fewer=gain(-0.05)))

    assert (found.code, found.tokens) == (Code.FEWER, 3)


def test_the_most_urgent_comes_first() -> None:
    """Several things may be wrong at once."""
    both = replace(GOOD, state=MtpState.HARMFUL, recent=accepted(0.15, 0.05), gain=gain(-0.3))
    rows = advise(both, LIMITS)

    assert [row.code for row in rows] == [Code.HARMFUL, Code.DRIFT]
    assert rows[0].as_dict()["severity"] == "critical"
