"""The health of one pool's drafting, with hysteresis: unknown, healthy, weak tail, drifting, harmful.

    harmful     drafting costs time: the measured gain over the plain pool is below zero, its error included
    drifting    the overall acceptance rate is low: the drafter doesn't fit its target or the traffic
    weak tail   the first position is accepted well, a later one hardly: k is too deep
    healthy     none of these
    unknown     too few drafts within the window to say, or the gain crossed zero too short a time ago

in this order: the first that holds is the state, with unknown before healthy. A low overall rate that comes from a
weak tail behind a healthy first position is called that; a deep k lowers the overall rate of a good drafter too.

A condition must hold for `sustain` before it counts and must be gone, by a tenth, for as long before it ends. It is
judged on the latest stretch with enough drafts, at least `sustain` long and within the policy's window, so that a
collapse shows within a minute of traffic and not after half a window. The gain is one `Comparison` over the policy's
window; the state and whoever shows the gain have it from here, so that they cannot contradict each other: what it says
must have lasted before it counts, but ceases to count at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.telemetry.source import MtpPolicy
from gateway.telemetry.spec_decode import Acceptance
from gateway.telemetry.tpot import Comparison

MIN_DRAFTS = 200.0
"""Drafts below which acceptance says nothing: its standard error is about 3 points there."""
HEALTHY_FIRST = 0.35
"""Rate of position 0 from which it counts as healthy; a drafter that fits accepts about 0.47 there."""
TUNED_ALERT = 0.20
"""Overall rate below which a target was probably fine-tuned without its drafter."""
LEAVE = 1.1
"""How far past its threshold a figure must be for a state to end."""


class MtpState(StrEnum):
    """The values are public: metrics and operators' pages use them."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    WEAK_TAIL = "weak_tail"
    DRIFTING = "drifting"
    HARMFUL = "harmful"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The policy's thresholds with what follows from them."""

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
        """Seconds that a condition must hold."""
        return self.window / 20.0


class Latch:
    """A condition with memory: it turns on or off only after the same verdict for `sustain` seconds."""

    __slots__ = ("_since", "on")

    def __init__(self) -> None:
        self.on = False
        self._since: float | None = None
        """Since when the verdict has been the other one."""

    def update(self, now: float, sustain: float, *, bad: bool, good: bool) -> bool:
        """`bad` and `good` may both be false: between the thresholds nothing changes."""
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
    """Whether drafting costs time: a verdict that must last to be believed and is dropped at once."""

    __slots__ = ("_losing", "_since")

    def __init__(self) -> None:
        self._losing = False
        self._since: float | None = None
        """Since when the verdict has been this one; None: never another."""

    def update(self, now: float, sustain: float, gain: Comparison | None) -> bool | None:
        """Without a comparison nothing is known to be lost. None while the verdict is too new."""
        # By the bound, so that a small sample of answers can't call a pool harmful.
        losing = gain is not None and gain.high < 0.0
        if losing is not self._losing:
            self._losing, self._since = losing, now
        return losing if self._since is None or now - self._since >= sustain else None

    def reset(self) -> None:
        self._losing, self._since = False, None


def weak_position(found: Acceptance, threshold: float) -> int | None:
    """The first position behind a healthy first one that is accepted less often than `threshold`, or None."""
    if not found.positions or found.positions[0] < HEALTHY_FIRST:
        return None
    return next((i for i, rate in enumerate(found.positions) if i and rate < threshold), None)


class MtpHealth:
    """The state of one pool and model. Feed it `update`; it keeps what hysteresis needs."""

    def __init__(self) -> None:
        self.state = MtpState.UNKNOWN
        self.since: float | None = None
        """When the state began; None before the first judgement."""
        self.was_healthy = False
        """Whether acceptance was above the alert at some time since the engine's last start."""
        self.gain: Comparison | None = None
        """What the state was judged on."""
        self._drift, self._tail, self._harm = Latch(), Latch(), Losing()

    def restarted(self) -> None:
        """The engine is a new one, perhaps with another drafter, target or k: what was judged holds no longer."""
        self.was_healthy = False
        for latch in (self._drift, self._tail, self._harm):
            latch.reset()

    def update(self, now: float, limits: Thresholds, found: Acceptance | None, gain: Comparison | None) -> bool:
        """Judges the latest stretch and the measured gain; True where the state changed.

        `found` is None, or has less than `MIN_DRAFTS` drafts, where nothing can be said.
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
            # The first verdict on an engine has not held for long enough; healthy would be a guess.
            return MtpState.UNKNOWN
        return MtpState.HEALTHY
