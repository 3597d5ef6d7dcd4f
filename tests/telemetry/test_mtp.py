"""Health states: what each means, and that none flickers."""

from __future__ import annotations

import pytest

from gateway.telemetry.mtp import MtpHealth, MtpState, Thresholds
from gateway.telemetry.spec_decode import Acceptance
from gateway.telemetry.tpot import Comparison
from tests.telemetry.helpers import accepted, gain

LIMITS = Thresholds()


def settle(health: MtpHealth, start: float, found: Acceptance | None, measured: Comparison | None = None) -> MtpState:
    """The state after the same evidence for a little longer than it must hold."""
    for second in range(int(LIMITS.sustain) + 2):
        health.update(start + second, LIMITS, found, measured)
    return health.state


@pytest.mark.parametrize(
    ("rates", "measured", "state"),
    [
        ((0.47, 0.24), None, MtpState.HEALTHY),
        ((0.47, 0.24), 0.14, MtpState.HEALTHY),
        ((0.47, 0.24), 0.04, MtpState.HEALTHY),
        ((0.47, 0.12), None, MtpState.WEAK_TAIL),
        ((0.47, 0.02), None, MtpState.WEAK_TAIL),
        ((0.47, 0.24, 0.12, 0.06), None, MtpState.WEAK_TAIL),
        ((0.14, 0.07), None, MtpState.DRIFTING),
        ((0.30, 0.10), None, MtpState.DRIFTING),
        ((0.60, 0.45), -0.20, MtpState.HARMFUL),
        ((0.14, 0.07), -0.20, MtpState.HARMFUL),
    ],
)
def test_states(rates: tuple[float, ...], measured: float | None, state: MtpState) -> None:
    """SPEC-06 among them: high acceptance does not make a pool good that is measured slower than the plain one."""
    comparison = None if measured is None else gain(measured)

    assert settle(MtpHealth(), 0.0, accepted(*rates), comparison) is state


def test_too_few_drafts_are_unknown() -> None:
    """Nothing is said on a handful of drafts, and what was said before is not kept without evidence."""
    health = MtpHealth()

    assert settle(health, 0.0, accepted(0.1, 0.05, drafts=199)) is MtpState.UNKNOWN
    assert settle(health, 100.0, accepted(0.1, 0.05)) is MtpState.DRIFTING
    assert settle(health, 200.0, None) is MtpState.UNKNOWN


def test_a_short_dip_is_no_drift() -> None:
    """A state changes only after the condition has held for its time without a break."""
    health = MtpHealth()
    settle(health, 0.0, accepted(0.47, 0.24))
    for second in range(200):
        dip = second % 25 != 0
        health.update(100.0 + second, LIMITS, accepted(0.2, 0.1) if dip else accepted(0.47, 0.24), None)

    assert health.state is MtpState.HEALTHY


def test_around_the_threshold_nothing_flickers() -> None:
    """Once drifting, a rate that is just back over the alert does not end it; one that is a tenth over does."""
    health = MtpHealth()
    settle(health, 0.0, accepted(0.30, 0.18))
    assert health.state is MtpState.DRIFTING

    changes = 0
    for second in range(300):
        rate = 0.26 if second % 2 else 0.24
        changes += health.update(100.0 + second, LIMITS, accepted(0.3, 2 * rate - 0.3), None)
    assert changes == 0
    assert settle(health, 500.0, accepted(0.34, 0.22)) is MtpState.HEALTHY


def test_a_first_verdict_is_not_healthy_by_default() -> None:
    """Before a low rate has lasted, an engine is unknown and not healthy."""
    health = MtpHealth()
    health.update(0.0, LIMITS, accepted(0.1, 0.05), None)

    assert health.state is MtpState.UNKNOWN


def test_an_uncertain_loss_is_not_harmful() -> None:
    """A loss must be clear of its own error."""
    health = MtpHealth()
    good = accepted(0.6, 0.4)

    assert settle(health, 0.0, good, gain(-0.05, error=0.04)) is MtpState.HEALTHY
    assert settle(health, 100.0, good, gain(-0.05)) is MtpState.HARMFUL
    assert settle(health, 200.0, good, gain(-0.05, error=0.04)) is MtpState.HEALTHY


def test_the_state_never_contradicts_the_gain() -> None:
    """Harmful only while the gain's upper bound is below zero, healthy never then; between the two lies the time that
    a verdict must last, as unknown."""
    health, good = MtpHealth(), accepted(0.6, 0.4)
    settle(health, 0.0, good, gain(0.048, error=0.021))
    seen = [health.state]
    for start, measured in ((100, gain(-0.102, error=0.023)), (200, gain(0.048, error=0.021))):
        for second in range(40):
            health.update(start + second, LIMITS, good, measured)
            assert health.gain is measured
            assert health.state is not (MtpState.HEALTHY if measured.high < 0 else MtpState.HARMFUL)
            seen += [health.state] if health.state is not seen[-1] else []

    assert seen == [MtpState.HEALTHY, MtpState.UNKNOWN, MtpState.HARMFUL, MtpState.UNKNOWN, MtpState.HEALTHY]


def test_a_gain_around_zero_settles_nothing() -> None:
    """A bound that crosses zero again and again makes neither harmful nor healthy, and no flicker."""
    health, good = MtpHealth(), accepted(0.6, 0.4)
    settle(health, 0.0, good)
    changes = sum(
        health.update(100.0 + second, LIMITS, good, gain(-0.03 if second // 20 % 2 else -0.02, error=0.0125))
        for second in range(300)
    )

    assert (health.state, changes) == (MtpState.UNKNOWN, 1)


def test_a_loss_does_not_hide_what_acceptance_says() -> None:
    """While a loss has yet to last, a drift that has lasted is still told."""
    health = MtpHealth()
    settle(health, 0.0, accepted(0.14, 0.07))
    health.update(60.0, LIMITS, accepted(0.14, 0.07), gain(-0.2))

    assert health.state is MtpState.DRIFTING


def test_a_restart_forgets() -> None:
    """Another engine may have another drafter: it is unknown until it has shown itself."""
    health = MtpHealth()
    settle(health, 0.0, accepted(0.1, 0.05))
    health.restarted()
    health.update(60.0, LIMITS, None, None)

    assert health.state is MtpState.UNKNOWN
    assert settle(health, 61.0, accepted(0.47, 0.24)) is MtpState.HEALTHY
