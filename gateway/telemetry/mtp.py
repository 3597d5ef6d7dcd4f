"""The health state of one pool's drafting, with hysteresis.

    harmful     drafting costs time: the measured gain over the plain pool is below zero, error included
    drifting    the overall acceptance rate is low: the drafter does not fit its target or the traffic
    weak tail   position 0 is accepted well, a later position rarely: k is too large
    unknown     too few drafts within the window, or the gain changed its sign too recently
    healthy     none of these

The first state in this list that applies is chosen. A low overall rate that comes from a weak tail behind a healthy
position 0 counts as weak tail, since a large k lowers the overall rate of a good drafter too.

A condition must hold for `sustain` seconds to start, and must be clear by a tenth for as long to end. Acceptance is
judged on the latest period with enough drafts, at least `sustain` long and within the policy's window, so that a
collapse shows within a minute of traffic. The gain is one `Comparison` over the policy's window; a loss must last to
count and ends at once. Reports show the same `Comparison`, so that gain and state cannot contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.telemetry.source import MtpPolicy
from gateway.telemetry.spec_decode import Acceptance
from gateway.telemetry.tpot import Comparison

MIN_DRAFTS = 200.0
"""Least drafts to judge acceptance: its standard error is about 3 percentage points there."""
HEALTHY_FIRST = 0.35
"""Least acceptance rate of a healthy position 0; a drafter that fits reaches about 0.47."""
TUNED_ALERT = 0.20
"""Acceptance rate below which the target was probably fine-tuned without its drafter."""
LEAVE = 1.1
"""Factor by which a value must clear its threshold for a state to end."""


class MtpState(StrEnum):
    """The values are public: metrics and the status page use them."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    WEAK_TAIL = "weak_tail"
    DRIFTING = "drifting"
    HARMFUL = "harmful"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The policy's `mtp` thresholds; rates and shares are 0..1."""

    acceptance_alert: float = 0.25
    tail_alert: float = 0.15
    gain_target: float = 0.10
    window: float = 600.0
    """Seconds."""

    @classmethod
    def of(cls, policy: MtpPolicy) -> Thresholds:
        return cls(policy.acceptance_alert, policy.tail_alert, policy.gain_target, policy.window)

    @property
    def sustain(self) -> float:
        """Seconds for which a condition must hold."""
        return self.window / 20.0


class Latch:
    """A condition with hysteresis: it changes only after `sustain` seconds of the same verdict."""

    __slots__ = ("_since", "on")

    def __init__(self) -> None:
        self.on = False
        self._since: float | None = None
        """When the verdict began to differ from `on`."""

    def update(self, now: float, sustain: float, *, bad: bool, good: bool) -> bool:
        """Both `bad` and `good` may be false: between the thresholds nothing changes."""
        if not (good if self.on else bad):
            self._since = None
        elif self._since is None:
            self._since = now
        if self._since is not None and now - self._since >= sustain:
            self.on, self._since = not self.on, None
        return self.on

    def reset(self) -> None:
        self.on, self._since = False, None


class Losing:
    """Whether drafting costs time. A loss must last for `sustain` seconds to count, and ends at once."""

    __slots__ = ("_losing", "_since")

    def __init__(self) -> None:
        self._losing = False
        self._since: float | None = None
        """When the verdict took its value; None before its first change."""

    def update(self, now: float, sustain: float, gain: Comparison | None) -> bool | None:
        """None while the verdict is too new. Without a comparison there is no loss."""
        # The upper bound, so that a small sample cannot make a pool harmful.
        losing = gain is not None and gain.high < 0.0
        if losing is not self._losing:
            self._losing, self._since = losing, now
        return losing if self._since is None or now - self._since >= sustain else None

    def reset(self) -> None:
        self._losing, self._since = False, None


def weak_position(found: Acceptance, threshold: float) -> int | None:
    """The first later position with a rate below `threshold`, if position 0 is healthy; else None."""
    if not found.positions or found.positions[0] < HEALTHY_FIRST:
        return None
    return next((i for i, rate in enumerate(found.positions) if i and rate < threshold), None)


class MtpHealth:
    """The state of one pool and model; `update` it at every judgement."""

    def __init__(self) -> None:
        self.state = MtpState.UNKNOWN
        self.since: float | None = None
        """When the state began; None before the first judgement."""
        self.was_healthy = False
        """Whether acceptance has been above the alert since the engine's last start."""
        self.gain: Comparison | None = None
        """The comparison that the state was judged on."""
        self._drift, self._tail, self._harm = Latch(), Latch(), Losing()

    def restarted(self) -> None:
        """Resets the verdicts: a restarted engine may have another drafter, target or k."""
        self.was_healthy = False
        for latch in (self._drift, self._tail, self._harm):
            latch.reset()

    def update(self, now: float, limits: Thresholds, found: Acceptance | None, gain: Comparison | None) -> bool:
        """Judges the latest acceptance and gain; True if the state changed.

        The state is unknown if `found` is None or has less than `MIN_DRAFTS` drafts.
        """
        before = self.state
        self.gain = gain
        self.state = self._judge(now, limits, found, gain)
        if self.state is not before or self.since is None:
            self.since = now
        return self.state is not before

    def _judge(self, now: float, limits: Thresholds, found: Acceptance | None, gain: Comparison | None) -> MtpState:
        sustain = limits.sustain
        if found is None or found.drafts < MIN_DRAFTS:
            for latch in (self._drift, self._tail, self._harm):
                latch.reset()
            return MtpState.UNKNOWN
        tail = weak_position(found, limits.tail_alert)
        low = found.rate < limits.acceptance_alert
        self.was_healthy |= not low
        no_tail = weak_position(found, min(limits.tail_alert * LEAVE, HEALTHY_FIRST)) is None
        weak = self._tail.update(now, sustain, bad=tail is not None, good=no_tail)
        recovered = found.rate >= limits.acceptance_alert * LEAVE or tail is not None
        drifting = self._drift.update(now, sustain, bad=low and tail is None, good=recovered)
        harmful = self._harm.update(now, sustain, gain)
        if harmful:
            return MtpState.HARMFUL
        if drifting:
            return MtpState.DRIFTING
        if weak:
            return MtpState.WEAK_TAIL
        if harmful is None:
            return MtpState.UNKNOWN
        if self.state is MtpState.UNKNOWN and (low or tail is not None):
            # The first bad verdict on an engine has not lasted long enough yet; healthy would be a guess.
            return MtpState.UNKNOWN
        return MtpState.HEALTHY
