"""One endpoint's circuit breaker: what its last requests say about the next one.

    OPEN lets requests through. It trips to SHUT on consecutive failures, on a low success rate within a window of
         enough answers, or on a stall.
    SHUT lets nothing through for a time that doubles with each relapse, bounded and jittered (many gateways must not
         come back in step). When that is over, or a health probe has found the server back, it becomes
    PROBATION: one trial request at a time. A good one opens the breaker with a small share of the traffic that grows
         over `slow_start`; a bad one shuts it for longer.

Answers to requests that began before the last trip say nothing about the endpoint as it is now; `epoch` identifies
them. A health probe never opens: an engine can hang behind a server that answers `/health`.
Words and states follow linkerd's breakers, where the open gate is the one that lets through.
"""

from __future__ import annotations

import math
from enum import StrEnum
from random import Random

from gateway.policy.schema import Breaker as BreakerPolicy
from gateway.upstream.window import Window

JITTER = 0.2
"""A shut time is shortened by a random share of up to this."""
FIRST_SHARE = 0.1
"""The share of its weight with which an endpoint begins its slow start."""
TRIAL_SECONDS = 2.0
"""Requests wait for the end of a trial for at most so long."""


class Gate(StrEnum):
    """The breaker's states. The values are public: metrics use them."""

    OPEN = "open"
    SHUT = "shut"
    PROBATION = "probation"


OPEN = Gate.OPEN
"""For what every request asks: looking up a member of an enum takes much longer (CPython 3.11)."""


class Trip(StrEnum):
    """Why a breaker shut."""

    FAILURES = "failures"
    SUCCESS_RATE = "success_rate"
    STALL = "stall"
    TRIAL = "trial"


class Breaker:
    """Mutable; every method that needs the time takes it as `now`, seconds of one monotonic clock."""

    __slots__ = (
        "_opened_at",
        "_policy",
        "_rng",
        "_window",
        "consecutive",
        "doubt",
        "epoch",
        "gate",
        "pace",
        "ramp_from",
        "reason",
        "shut_until",
        "trial_since",
        "trips",
    )

    def __init__(self, policy: BreakerPolicy, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self._window = Window(policy.window)
        self.gate = Gate.OPEN
        self.consecutive = 0
        self.epoch = 0
        """Counts trips. A lease remembers it, and a result of an earlier epoch is ignored."""
        self.trips = 0
        """Trips in a row: without a calm time in between."""
        self.reason: Trip | None = None
        self.shut_until = 0.0
        self.trial_since: float | None = None
        """When the running trial began; None outside of PROBATION or while none runs."""
        self.ramp_from: float | None = None
        """When the slow start began; None once it is over and all of the weight is the endpoint's."""
        self.doubt = 1.0
        """The part of its weight that other replicas' findings leave the endpoint."""
        self.pace = 1.0
        """The part of its weight that its siblings' quickness leaves it."""
        self._opened_at = 0.0

    def configure(self, policy: BreakerPolicy) -> None:
        """A reload's new thresholds. State and counts stay, but for a window of another length."""
        if policy.window != self._policy.window:
            self._window = Window(policy.window)
        self._policy = policy

    def opens_at(self, *, trial: bool = False) -> float:
        """When a request may go through: 0 while OPEN, infinite while the one trial of PROBATION runs.

        With `trial`, the shut time does not count.
        """
        if self.trial_since is not None:
            return math.inf
        return self.shut_until if self.gate is Gate.SHUT and not trial else 0.0

    def begin(self, now: float) -> bool:
        """A request goes through: True if it is the trial."""
        if self.gate is Gate.OPEN:
            return False
        self.gate = Gate.PROBATION
        self.trial_since = now
        return True

    def permit(self) -> None:
        """A health probe found the server back after it was down: the next request may be the trial."""
        if self.gate is Gate.SHUT:
            self.gate = Gate.PROBATION
            self.trial_since = None

    def succeeded(self, now: float, epoch: int) -> None:
        """A request of that epoch got a proper answer from the back end."""
        if epoch != self.epoch:
            return
        self.consecutive = 0
        self._window.add(now)
        if self.gate is not OPEN:
            self._open(now)

    def failed(self, now: float, epoch: int, *, working: bool = False) -> bool:
        """A request of that epoch failed; True if that shut the breaker.

        `working` means that the endpoint answered with a 5xx while it serves other requests, so that it is not dead:
        such a failure counts in the success rate only.
        """
        if epoch != self.epoch or self.gate is Gate.SHUT:
            return False
        if self.gate is Gate.PROBATION:
            return self.trip(now, Trip.TRIAL)
        policy, window = self._policy, self._window
        window.add(now, marked=1)
        if not working:
            self.consecutive += 1
            if policy.failures and self.consecutive >= policy.failures:
                return self.trip(now, Trip.FAILURES)
        if window.total >= policy.samples and window.total - window.marked < policy.success_rate * window.total:
            return self.trip(now, Trip.SUCCESS_RATE)
        return False

    def abandoned(self, epoch: int) -> None:
        """A request of that epoch ended without a verdict (its client left): the next one may be the trial."""
        if epoch == self.epoch and self.gate is Gate.PROBATION:
            self.trial_since = None

    def trip(self, now: float, reason: Trip) -> bool:
        """Shuts, whatever the state. Always True."""
        policy = self._policy
        # After a calm time since the last trip, this one counts as a first one.
        if self.gate is Gate.OPEN and now - self._opened_at > max(policy.window, policy.shut_max):
            self.trips = 0
        seconds = min(policy.shut * 2.0 ** min(self.trips, 32), max(policy.shut, policy.shut_max))
        self.shut_until = now + seconds * (1.0 - JITTER * self._rng.random())
        self.gate = Gate.SHUT
        self.reason = reason
        self.trips += 1
        self.epoch += 1
        self.consecutive = 0
        self.trial_since = self.ramp_from = None
        self._window.clear()
        return True

    def share(self, now: float) -> float:
        """The share of its weight that the endpoint has now: below 1 in a slow start, under doubt or while slow."""
        if self.ramp_from is None:
            return 1.0
        passed = now - self.ramp_from
        if passed >= self._policy.slow_start:
            if self.doubt == self.pace == 1.0:
                self.ramp_from = None
            return self.doubt * self.pace
        return max(FIRST_SHARE, passed / self._policy.slow_start) * self.doubt * self.pace

    def doubted(self, part: float) -> None:
        """Reduces the endpoint's weight to this share until the next call, because of other replicas' findings."""
        self.doubt = part
        self._ease()

    def paced(self, part: float) -> None:
        """Likewise, because it keeps its requests waiting longer than its siblings do."""
        self.pace = part
        self._ease()

    def _ease(self) -> None:
        if self.ramp_from is None and self.doubt * self.pace < 1.0:
            # The pickers test this one field to see whether a weight differs from the policy's.
            self.ramp_from = -math.inf

    def _open(self, now: float) -> None:
        self.gate = Gate.OPEN
        self.trial_since = None
        self._opened_at = now
        self.ramp_from = now if self._policy.slow_start else None
