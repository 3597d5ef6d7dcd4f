"""One vLLM server as the gateway sees it: its connector, what of ours runs there, and whether it may be used.

Usable = found up by the probe, not draining, not resting, its breaker lets through. Nearly always all of that holds,
so it is kept as one flag, `ready`, which every event that could change it sets anew; only an endpoint that is not
ready is looked at with the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gateway.policy.schema import Breaker as BreakerPolicy
from gateway.types import Result
from gateway.upstream.breaker import TRIAL_SECONDS, Breaker, Gate, Trip
from gateway.upstream.client import Connector, Timeouts
from gateway.upstream.lease import Lease, SharedLimit

WORKING_SECONDS = 5.0
"""How long an answer shows that the endpoint works."""
DOUBTED = 0.25
"""The part of its weight that is left to an idle endpoint which most replicas have found broken: below a half."""
ONE_AT_A_TIME = 0.001
"""What is left of that while a request runs there."""
FAULTS = frozenset({Result.BACKEND_ERROR, Result.TRUNCATED, Result.TIMEOUT})
ALIVE = frozenset({Result.OK, Result.CLIENT_ERROR})


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """A snapshot for asserts, `/gateway/pools` and the status page."""

    url: str
    up: bool
    """May take a request now, room aside."""
    draining: bool
    in_flight: int
    started: int
    failures: int
    """Consecutive failures; any answer that is the back end's own sets it to 0."""
    weight: float
    slice: str | None
    probed_up: bool = True
    gate: Gate = Gate.OPEN
    trip: Trip | None = None
    """Why the breaker last shut."""
    rests: float = 0.0
    """Seconds for which the back end asked, or its refusal is taken to ask, for no more requests."""
    streaming: int = 0
    doubted: bool = False
    """Most replicas that know say that it is broken."""


class Endpoint:
    """A back end's live state. It is keyed by its URL within a pool and survives policy reloads."""

    __slots__ = (
        "answered_at",
        "api_key",
        "breaker",
        "clock",
        "connector",
        "draining",
        "generated_at",
        "heard_at",
        "host",
        "in_flight",
        "leases",
        "limit",
        "longest_wait",
        "moved",
        "on_change",
        "probed_up",
        "ready",
        "rests_until",
        "said_hung",
        "shared",
        "silent",
        "slice",
        "started",
        "streaming",
        "timeouts",
        "url",
        "weight",
    )

    def __init__(
        self,
        url: str,
        connector: Connector,
        timeouts: Timeouts,
        breaker: BreakerPolicy,
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        self.url = url
        self.connector = connector
        self.timeouts = timeouts
        self.breaker = Breaker(breaker, rng)
        self.clock = clock
        self.api_key: bytes | None = None
        self.weight = 1.0
        self.limit = 0
        """Connections at one time; 0 is no limit."""
        self.host: str | None = None
        """The name that the connector says for the address in the URL, where one was resolved."""
        self.slice: str | None = None
        self.shared: SharedLimit | None = None
        """What it shares with other endpoints of its slice."""
        self.in_flight = 0
        self.started = 0
        self.leases: set[Lease] = set()
        self.streaming = 0
        """Leases past their first byte."""
        self.answered_at = -math.inf
        self.generated_at = -math.inf
        """When its own page last told of new tokens, whoever got them: all that a whole answer shows of its making."""
        self.heard_at = -math.inf
        """When its page last told how many tokens it has made."""
        self.moved = False
        """Whether any piece has come since `stall` last looked. Set by whoever relays, per piece."""
        self.longest_wait = 0.0
        """Seconds that a stream here had waited for its first byte when `pace` last looked."""
        self.silent = 0.0
        """Seconds of silence while something ran here, as `stall` counts them."""
        self.probed_up = True
        """What the last health probe said; optimistic until the first one, so that a start is instant."""
        self.said_hung = False
        """Whether it is doubted because it hangs for other replicas."""
        self.draining = False
        self.rests_until = 0.0
        self.ready = True
        self.on_change: Callable[[], None] = lambda: None
        """Called when `ready` flips."""

    def refresh(self) -> None:
        """Sets `ready` after anything that it depends on may have changed."""
        if self.rests_until and self.rests_until <= self.clock():
            self.rests_until = 0.0
        ready = (
            self.breaker.gate is Gate.OPEN
            and self.probed_up
            and not self.draining
            and not self.rests_until
            and self.weight > 0
        )
        if ready is not self.ready:
            self.ready = ready
            self.on_change()

    def available(self) -> bool:
        """The one predicate that decides whether a new request may go here, room aside."""
        return self.ready or self.opens_at() <= self.clock()

    @property
    def found_broken(self) -> bool:
        """Its breaker or its probe has found that it does not work, whatever one request met there."""
        return self.breaker.gate is not Gate.OPEN or not self.probed_up

    def opens_at(self, *, trial: bool = False) -> float:
        """When it may take its next request, by what is known now; infinite where an event must come first.

        With `trial`, the breaker's shut time does not count, so that a trial request may go before its end.
        """
        breaker = self.breaker
        if not self.probed_up or self.draining or self.weight <= 0 or breaker.trial_since is not None:
            return math.inf
        return max(self.rests_until, breaker.shut_until if breaker.gate is Gate.SHUT and not trial else 0.0)

    def room(self) -> bool:
        """Whether its own limit and its slice's leave a place."""
        shared = self.shared
        return (not self.limit or self.in_flight < self.limit) and (
            shared is None or not shared.limit or shared.in_flight < shared.limit
        )

    def promising(self, now: float, patience: float) -> bool:
        """Whether waiting for it makes sense: it can take requests, or it will be known within `patience` seconds."""
        if self.ready:
            return True
        began = self.breaker.trial_since
        if began is not None and self.probed_up and not self.draining and self.weight > 0:
            return now - began < min(patience, TRIAL_SECONDS)
        return self.opens_at() <= now + min(patience, TRIAL_SECONDS)

    def working(self, now: float) -> bool:
        """Whether it serves somebody, so that it is no dead one whatever it says to others."""
        return self.streaming > 0 or now - self.answered_at < WORKING_SECONDS

    def share(self, now: float) -> float:
        """Its weight, less during a slow start and under doubt."""
        if self.breaker.ramp_from is None:
            return self.weight
        return self.weight * self.breaker.share(now) * (ONE_AT_A_TIME if self.doubted and self.in_flight else 1.0)

    @property
    def doubted(self) -> bool:
        """Most replicas that know say that it is broken, though this one has not found it so. See `doubt.py`."""
        return self.breaker.doubt < 0.5

    def doubt(self, part: float, *, hung: bool) -> None:
        """Leaves it that part of its weight, as other replicas' findings are; `hung`: it hangs for them."""
        self.breaker.doubted(part)
        self.said_hung = hung

    def rest(self, seconds: float) -> None:
        """No new requests for a while, at the back end's own wish. Not a failure."""
        self.rests_until = max(self.rests_until, self.clock() + seconds)
        self.refresh()

    def probed(self, up: bool) -> None:
        """Takes a health probe's finding. Back after down it is used at once, if need be as a trial."""
        if up and not self.probed_up:
            self.breaker.permit()
            self.rests_until = 0.0
        went_down = self.probed_up and not up
        self.probed_up = up
        self.refresh()
        if went_down:
            self.move_waiting()

    def stalled(self) -> None:
        """Found hung: nothing moves although requests run."""
        self.silent = 0.0
        self.breaker.trip(self.clock(), Trip.STALL)
        self.refresh()
        self.move_waiting()

    def move_waiting(self) -> None:
        """Lets requests that have no byte yet go to another endpoint, where there is one."""
        for lease in [lease for lease in self.leases if not lease.answered]:
            if lease.move is not None:
                lease.move(False)

    def end_waiting(self) -> None:
        """Gives whole answers up whose extra time is for an engine at work, where this one says that it is not."""
        limit, now = self.timeouts.first_byte, self.clock()
        if limit is None or not self.tells(now) or now - self.generated_at < limit:
            return
        for lease in [lease for lease in self.leases if lease.more and not lease.answered]:
            if lease.move is not None and now - lease.since >= limit:
                lease.move(True)

    def judge(self, lease: Lease, result: Result) -> None:
        """Passive health: what a request's end says about this endpoint."""
        breaker, now = self.breaker, self.clock()
        if result in ALIVE or (lease.client_fault and result in FAULTS):
            breaker.succeeded(now, lease.epoch)
        elif result not in FAULTS or lease.blameless:
            # A client that left says nothing about the back end.
            breaker.abandoned(lease.epoch)
        elif result is Result.TIMEOUT and not lease.answered and self._last_sign(lease) <= (lease.since + now) / 2:
            # Nobody has had a first byte in the latter half of the limit, though this one and perhaps others waited:
            # no need to count to five. In the first half, those that were sent before it may have had theirs.
            if lease.epoch == breaker.epoch:
                self.stalled()
        else:
            was_ready = self.ready
            if breaker.failed(now, lease.epoch, working=lease.refused and self.working(now)) and not was_ready:
                # A failed trial leaves `ready` as it was, but ends the hope of those who waited for it.
                self.on_change()
        if (breaker.gate is Gate.OPEN) is not self.ready:
            self.refresh()

    def _last_sign(self, lease: Lease) -> float:
        """When it last showed that it is at work on requests like this one."""
        return max(self.answered_at, self.generated_at) if lease.more else self.answered_at

    def tells(self, now: float) -> bool:
        """Whether its page says of late how many tokens it has made, so that one at rest is known from one at work."""
        return now - self.heard_at < WORKING_SECONDS

    def statistics(self) -> EndpointStatistics:
        return EndpointStatistics(
            url=self.url,
            up=self.available(),
            draining=self.draining,
            in_flight=self.in_flight,
            started=self.started,
            failures=self.breaker.consecutive,
            weight=self.weight,
            slice=self.slice,
            probed_up=self.probed_up,
            gate=self.breaker.gate,
            trip=self.breaker.reason,
            rests=max(self.rests_until - self.clock(), 0.0) if self.rests_until else 0.0,
            streaming=self.streaming,
            doubted=self.doubted,
        )

    def __repr__(self) -> str:
        state = "draining" if self.draining else self.breaker.gate.value if self.probed_up else "down"
        return f"<Endpoint {self.url} {state} in_flight={self.in_flight}>"
