"""One vLLM server as the gateway sees it: its connector, which of our requests run there, and whether it may be used.

Usable means found up by the probe, not draining, not resting, and let through by its breaker. Nearly always all of that
holds, so it is kept as one flag, `ready`, which every event that could change it updates. Only an endpoint that is not
ready is checked against the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from gateway.policy.schema import Breaker as BreakerPolicy
from gateway.types import Result
from gateway.upstream.breaker import OPEN, TRIAL_SECONDS, Breaker, Gate, Trip
from gateway.upstream.client import Connector, Timeouts
from gateway.upstream.lease import Lease, SharedLimit
from gateway.upstream.prefill import Prefill
from gateway.upstream.statistics import EndpointStatistics

WORKING_SECONDS = 5.0
"""Seconds for which an answer proves that the endpoint works."""
DOUBTED = 0.25
"""The share of its weight that an idle endpoint keeps if most replicas have found it broken; below one half."""
ONE_AT_A_TIME = 0.001
"""What remains of that share while a request runs there."""
FAULTS = frozenset({Result.BACKEND_ERROR, Result.TRUNCATED, Result.TIMEOUT})
ALIVE = frozenset({Result.OK, Result.CLIENT_ERROR})


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
        "prefill",
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
        """The name that was resolved to the address in the URL, if any; the connector sends it as Host."""
        self.slice: str | None = None
        self.shared: SharedLimit | None = None
        """The limit that it shares with other endpoints of its slice."""
        self.prefill = Prefill(clock)
        """The prompts that wait there for their first token, and those that wait here for their turn."""
        self.in_flight = 0
        self.started = 0
        self.leases: set[Lease] = set()
        self.streaming = 0
        """Leases past their first byte."""
        self.answered_at = -math.inf
        self.generated_at = -math.inf
        """When its `/metrics` last counted new tokens, for any client: a whole answer's only sign of life."""
        self.heard_at = -math.inf
        """When its `/metrics` last gave a count of tokens."""
        self.moved = False
        """Whether any piece has come since `stall` last looked. The relay sets it for every piece."""
        self.longest_wait = 0.0
        """Seconds that a stream here had waited for its first byte when `pace` last looked."""
        self.silent = 0.0
        """Seconds of silence while something ran here, as `stall` counts them."""
        self.probed_up = True
        """The result of the last health probe; True until the first one, so that the gateway starts instantly."""
        self.said_hung = False
        """Whether other replicas have found that it hangs."""
        self.draining = False
        self.rests_until = 0.0
        self.ready = True
        self.on_change: Callable[[], None] = lambda: None
        """Called when `ready` flips."""

    def refresh(self) -> None:
        """Updates `ready`; call it after anything that it depends on may have changed."""
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
        """The one predicate that decides whether a new request may go here, apart from limits."""
        return self.ready or self.opens_at() <= self.clock()

    @property
    def found_broken(self) -> bool:
        """Whether its breaker or its probe has found that it does not work."""
        return self.breaker.gate is not Gate.OPEN or not self.probed_up

    def opens_at(self, *, trial: bool = False) -> float:
        """When it may take its next request, as far as known now; infinite if some event must happen first.

        With `trial`, the breaker's shut time does not count, so that a trial request may go before its end.
        """
        if not self.probed_up or self.draining or self.weight <= 0:
            return math.inf
        return max(self.rests_until, self.breaker.opens_at(trial=trial))

    @property
    def held(self) -> int:
        """Requests of those in flight of which it has been sent nothing yet."""
        return self.prefill.waiting

    def room(self) -> bool:
        """Whether its own limit and its slice's leave a slot."""
        shared = self.shared
        return (not self.limit or self.in_flight < self.limit) and (
            shared is None or not shared.limit or shared.in_flight < shared.limit
        )

    def promising(self, now: float, patience: float) -> bool:
        """Whether waiting for it makes sense: it can take requests, or that will be known within `patience` seconds."""
        if self.ready:
            return True
        began = self.breaker.trial_since
        if began is not None and self.probed_up and not self.draining and self.weight > 0:
            return now - began < min(patience, TRIAL_SECONDS)
        return self.opens_at() <= now + min(patience, TRIAL_SECONDS)

    def working(self, now: float) -> bool:
        """Whether it is serving some request, and so is not dead whatever it answers to others."""
        return self.streaming > 0 or now - self.answered_at < WORKING_SECONDS

    def share(self, now: float) -> float:
        """Its weight, less during a slow start and under doubt."""
        if self.breaker.ramp_from is None:
            return self.weight
        return self.weight * self.breaker.share(now) * (ONE_AT_A_TIME if self.doubted and self.in_flight else 1.0)

    @property
    def doubted(self) -> bool:
        """Whether most replicas have found it broken although this one has not. See `doubt.py`."""
        return self.breaker.doubt < 0.5

    def doubt(self, part: float, *, hung: bool) -> None:
        """Reduces its weight to `part` because of other replicas' findings; `hung` if it hangs for them."""
        self.breaker.doubted(part)
        self.said_hung = hung

    def rest(self, seconds: float) -> None:
        """Sends it no new requests for a while, as the back end asked. Not a failure."""
        self.rests_until = max(self.rests_until, self.clock() + seconds)
        self.refresh()

    def probed(self, up: bool) -> None:
        """Takes a health probe's result. An endpoint that is back is used at once, as a trial if need be."""
        if up and not self.probed_up:
            self.breaker.permit()
            self.rests_until = 0.0
        went_down = self.probed_up and not up
        self.probed_up = up
        self.refresh()
        if went_down:
            self.move_waiting()

    def stalled(self) -> None:
        """Takes the finding that it hangs: requests run, and nothing comes."""
        self.silent = 0.0
        self.breaker.trip(self.clock(), Trip.STALL)
        self.refresh()
        self.move_waiting()

    def move_waiting(self) -> None:
        """Lets requests that have no byte yet go to another endpoint, if there is one."""
        for lease in [lease for lease in self.leases if not lease.answered]:
            if lease.move is not None:
                lease.move(anyway=False)

    def move_held(self) -> None:
        """Lets requests of which nothing was sent yet go to another endpoint, if there is one."""
        for lease in [lease for lease in self.leases if self.prefill.holds(lease)]:
            if lease.move is not None:
                lease.move(anyway=False)

    def end_waiting(self) -> None:
        """Ends requests whose extra time is meant for a working engine, if this one's metrics show that it is idle."""
        limit, now = self.timeouts.first_byte, self.clock()
        if limit is None or not self.counts_tokens(now) or now - self.generated_at < limit:
            return
        for lease in [lease for lease in self.leases if lease.extra and not lease.answered]:
            if lease.move is not None and now - lease.sent >= limit:
                lease.move(anyway=True)

    def judge(self, lease: Lease, result: Result) -> None:
        """Passive health: what a request's end says about this endpoint."""
        breaker, now = self.breaker, self.clock()
        if result in ALIVE or (lease.client_fault and result in FAULTS):
            breaker.succeeded(now, lease.epoch)
        elif result not in FAULTS or lease.blameless:
            # A client that left says nothing about the back end.
            breaker.abandoned(lease.epoch)
        elif result is Result.TIMEOUT and not lease.answered and self._last_sign(lease) <= (lease.sent + now) / 2:
            # Nobody has had a first byte in the latter half of the limit, though this one and perhaps others waited:
            # no need to count to five. In the first half, those that were sent before it may have had theirs.
            if lease.epoch == breaker.epoch:
                self.stalled()
        else:
            was_ready = self.ready
            if breaker.failed(now, lease.epoch, working=lease.refused and self.working(now)) and not was_ready:
                # A failed trial leaves `ready` as it was, but ends the hope of those who waited for it.
                self.on_change()
        if (breaker.gate is OPEN) is not self.ready:
            self.refresh()

    def _last_sign(self, lease: Lease) -> float:
        """When it last showed that it is working on requests like this one."""
        return max(self.answered_at, self.generated_at) if lease.extra else self.answered_at

    def counts_tokens(self, now: float) -> bool:
        """Whether its `/metrics` have recently counted tokens, so that an idle engine is known from a working one."""
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
            prompt_tokens=self.prefill.tokens,
            held=self.held,
        )

    def __repr__(self) -> str:
        state = "draining" if self.draining else self.breaker.gate.value if self.probed_up else "down"
        return f"<Endpoint {self.url} {state} in_flight={self.in_flight}>"
