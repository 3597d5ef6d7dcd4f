"""Advice to the operator about a pool's drafting: a code, a severity, a message, the figures behind it.

The rules follow the G4 guide (RTX PRO 6000 Blackwell, quarter slice, Gemma 4 E4B, k = 1 and 2):

    acceptance rate below 25 % for a while               the drafter drifts: re-calibrate or co-fine-tune it
    below 20 % ever since the engine started             the target was fine-tuned without its drafter
    position 0 healthy, a later position below 15 %      set k to the number of positions before that one
    net gain below 10 %                                  report what the shortfall costs
    net gain below zero, error included                  run without drafting, or route to the plain pool

A larger k is advised only if it should pay: with the next position's rate extrapolated by the last decay, the tokens
per step must grow by more than the step time does by the profile, and no measurement at that k may contradict it.
If there is a plain pool, the present k must first be measured to pay by more than its error. Otherwise a profile that
does not match the hardware would keep advising a larger k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.telemetry.mtp import HEALTHY_FIRST, MIN_DRAFTS, TUNED_ALERT, MtpState, Thresholds, weak_position
from gateway.telemetry.spec_decode import Acceptance
from gateway.telemetry.tpot import DEVIATIONS, MIN_SAMPLES, Comparison, Lacking

MAX_ADVISED = 8
_BY = {
    "requests": "",
    "engines": ", by the engines' own counters",
    "curve": ", by the plain pool's learned speed at this load",
}
WORTH = 1.03
"""Least predicted speed-up for which one more draft token is advised: it must be worth a restart."""


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Code(StrEnum):
    """The values are part of the public JSON."""

    TOO_FEW = "too_few_samples"
    DRIFT = "drift"
    NOT_TUNED = "drafter_not_tuned"
    FEWER = "run_fewer"
    MORE = "run_more"
    LOW_GAIN = "low_gain"
    HARMFUL = "harmful"
    SHARED = "share_a_gpu"


@dataclass(frozen=True, slots=True)
class Advice:
    code: Code
    severity: Severity
    message: str
    figures: Mapping[str, float] = field(default_factory=dict)
    tokens: int | None = None
    """The k to run; 0 means no drafting; None where the advice is not about k."""

    def as_dict(self) -> dict[str, object]:
        return {
            "code": self.code.value,
            "severity": self.severity.value,
            "message": self.message,
            "figures": {name: round(value, 4) for name, value in self.figures.items()},
            "tokens": self.tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The inputs of `advise` for one pool and model."""

    state: MtpState
    was_healthy: bool
    k: int
    """Draft tokens per step; 0 where unknown."""
    recent: Acceptance | None
    """Over the period on which the state was judged."""
    gain: Comparison | None = None
    """Against the plain pool."""
    lacking: Lacking | None = None
    """What the comparison still needs, where there is a plain pool and no gain yet."""
    over_fewer: Comparison | None = None
    """k against k - 1 in the same pool, where both have run; `gain` is what k saves."""
    over_more: Comparison | None = None
    """k + 1 against k, likewise."""
    step_growth: float | None = None
    """Step time at k + 1 / step time at k, at the present load, from the profile or a learned curve."""


def advise(evidence: Evidence, limits: Thresholds) -> tuple[Advice, ...]:
    """All advice that applies, most urgent first."""
    rows = [_acceptance(evidence, limits), _gain(evidence, limits), _depth(evidence, limits)]
    order = list(Severity)
    return tuple(sorted((row for row in rows if row), key=lambda row: -order.index(row.severity)))


def _acceptance(evidence: Evidence, limits: Thresholds) -> Advice | None:
    found, state = evidence.recent, evidence.state
    if found is None or found.drafts < MIN_DRAFTS:
        seen = found.drafts if found else 0.0
        text = f"{seen:.0f} drafts in the last {limits.window:.0f} s, {MIN_DRAFTS:.0f} are needed to judge"
        return Advice(Code.TOO_FEW, Severity.INFO, text, {"drafts": seen})
    low = found.rate < limits.acceptance_alert
    if state not in (MtpState.DRIFTING, MtpState.HARMFUL) or not low:
        return None
    figures = {"acceptance_rate": found.rate, "alert": limits.acceptance_alert}
    if found.rate < TUNED_ALERT and not evidence.was_healthy:
        text = (
            f"{found.rate:.0%} of the drafted tokens are accepted, and never more since the engine was first seen: the "
            "drafter does not fit its target. If the target was fine-tuned, tune the drafter with it, or run without"
        )
        return Advice(Code.NOT_TUNED, Severity.CRITICAL, text, figures)
    text = (
        f"{found.rate:.0%} of the drafted tokens are accepted, under {limits.acceptance_alert:.0%} for long: "
        "re-calibrate the drafter, or co-fine-tune it with its target"
    )
    return Advice(Code.DRIFT, Severity.WARNING, text, figures)


def _gain(evidence: Evidence, limits: Thresholds) -> Advice | None:
    gain = evidence.gain
    if gain is None:
        return _unmeasured(evidence)
    if gain.gain >= limits.gain_target:
        return None
    about = DEVIATIONS * gain.error
    figures = {"gain": gain.gain, "give_or_take": about, "saved_ms_per_token": gain.saved_ms}
    figures["target"] = limits.gain_target
    by = _BY[gain.source]
    where = f"at equal load and length{by}, give or take {about:.1%}"
    if gain.gain < 0:
        text = f"drafting costs {-gain.saved_ms:.2f} ms per token ({-gain.gain:.1%}) against the plain pool {where}"
        if evidence.state is MtpState.HARMFUL:
            return Advice(Code.HARMFUL, Severity.CRITICAL, text + ": run without it", figures, 0)
        if gain.high < 0.0:
            text += (
                f"; once it has lasted for {limits.sustain:.0f} s: run without it. Until then send this traffic to the "
                "plain pool, by a rule or with `x-gateway-pool: plain`"
            )
            return Advice(Code.LOW_GAIN, Severity.WARNING, text, figures)
        return Advice(Code.LOW_GAIN, Severity.INFO, text + ": it may as well save a little", figures)
    short = 1000.0 * gain.plain_seconds * (limits.gain_target - gain.gain)
    text = (
        f"drafting saves {gain.saved_ms:.2f} ms per token ({gain.gain:.1%}) against the plain pool {where}; short of "
        f"the target of {limits.gain_target:.0%} that costs {short:.2f} ms per token"
    )
    return Advice(Code.LOW_GAIN, Severity.INFO, text, figures | {"short_ms_per_token": short})


def _unmeasured(evidence: Evidence) -> Advice | None:
    """Says what is missing to measure whether drafting pays, and how to get it."""
    lacking, found = evidence.lacking, evidence.recent
    if lacking is None or found is None or found.drafts < MIN_DRAFTS:
        return None
    if evidence.state not in (MtpState.HEALTHY, MtpState.UNKNOWN):
        return None
    text = (
        f"whether drafting pays is not measured yet: {MIN_SAMPLES:.0f} answers of this pool and of {lacking.plain} at "
        f"like load and length are needed and there are {lacking.alike:.0f} ({lacking.mine:.0f} and "
        f"{lacking.theirs:.0f} at any)"
    )
    if lacking.mine < MIN_SAMPLES <= lacking.theirs:
        text += "; more traffic will tell"
    elif lacking.theirs < MIN_SAMPLES:
        text += f"; let {lacking.plain} have more of this traffic: raise `routing.exploration`, or add a rule"
    else:
        text += "; the pools do different work: `routing.exploration` sends each some of the other's"
    figures = {"answers": lacking.mine, "plain_answers": lacking.theirs, "alike": lacking.alike}
    return Advice(Code.TOO_FEW, Severity.INFO, text, figures)


def _depth(evidence: Evidence, limits: Thresholds) -> Advice | None:
    found, k = evidence.recent, evidence.k
    if found is None or found.drafts < MIN_DRAFTS or evidence.state in (MtpState.HARMFUL, MtpState.DRIFTING):
        return None
    if evidence.state is MtpState.WEAK_TAIL and (weak := weak_position(found, limits.tail_alert)):
        first, rate = found.positions[0], found.positions[weak]
        text = (
            f"position 0 is accepted in {first:.0%} of the steps, position {weak} in {rate:.0%}, "
            f"under {limits.tail_alert:.0%}: run k={weak}"
        )
        return Advice(Code.FEWER, Severity.WARNING, text, {"position_0": first, f"position_{weak}": rate}, weak)
    deeper = evidence.over_fewer
    if deeper is not None and k > 1 and deeper.high < 0.0:
        text = f"k={k} was measured {-deeper.gain:.1%} slower per token than k={k - 1} at equal load: run k={k - 1}"
        return Advice(Code.FEWER, Severity.WARNING, text, {"gain_over_fewer": deeper.gain}, k - 1)
    return _more(evidence, limits, found) if evidence.state is MtpState.HEALTHY else None


def _more(evidence: Evidence, limits: Thresholds, found: Acceptance) -> Advice | None:
    k, growth = evidence.k, evidence.step_growth
    if growth is None or not 0 < k < MAX_ADVISED or len(found.positions) != k:
        return None
    if found.positions[0] < HEALTHY_FIRST or evidence.lacking is not None:
        return None
    if evidence.gain is not None and evidence.gain.low <= 0.0:
        return None
    if evidence.over_more is not None and evidence.over_more.gain <= 0:
        return None
    last = found.positions[-1]
    # With one position its rate is also its decay: a token is accepted only after an accepted one.
    following = last * (found.decay[-1] if found.decay else last)
    worth = (1.0 + following / found.mean_length) / growth
    if following < limits.tail_alert or worth < WORTH:
        return None
    text = (
        f"position {k - 1} is still accepted in {last:.0%} of the steps and one more draft should be in "
        f"{following:.0%}; by the speed profile that is {worth - 1:.1%} faster: try k={k + 1}"
    )
    return Advice(Code.MORE, Severity.INFO, text, {"expected_rate": following, "expected_gain": worth - 1.0}, k + 1)
