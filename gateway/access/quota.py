"""One limit of one key, decided without I/O wherever possible.

With a shared store the replica holds *leases*: units already counted there, good for a second. A request spends from
them; when they run low more are fetched in the background, and only a request that finds too few has to wait. How
many are fetched beyond the need follows the traffic, up to a 20th of the limit; small limits go one by one, so that
exactly as many pass as the limit says. Leases not spent in time go back.

Without a shared store, or while it is lost, the replica decides by its own window and its fair share, the limit over
the replicas last known. What it admits then is a debt that the store hears of when it is back. When the store comes
back without its counters (another epoch), the replica tells it again what it has used in the window. Workers of one
host that have no store share their window instead (`state.minutes`), and with it the whole limit.

A lease is spent within the time for which the store holds its units longer than the window, and each unit is leased
once; hence the sum over replicas stays within the limit in every window, as long as the store is not lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from gateway.access.window import Window
from gateway.state.minutes import SharedWindow
from gateway.state.store import WINDOW_SLOTS, Ask, Grant, Store

_LARGEST_SHARE = 20
_DENIAL = 1 / 600
"""A refusal of the store is believed for this part of the window: 0.1 s of a minute."""


class Verdict(Enum):
    PASS = "pass"
    REFUSED = "refused"
    ASK = "ask"
    """Only the store can say."""


@dataclass(slots=True)
class _Lease:
    slot: int
    units: int
    size: int
    until: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What one request took from one quota, so that it can be corrected."""

    units: int
    at: int
    """The slot of the replica's own window."""
    slot: int | None
    """The store's slot; None where the replica decided for itself."""
    epoch: bytes | None


class Quota:
    """`verdict`, then `spend`, without giving way to other tasks in between."""

    def __init__(
        self,
        bucket: str,
        capacity: int,
        store: Store,
        window: float,
        clock: Callable[[], float],
        common: SharedWindow | None = None,
    ) -> None:
        """`common` counts for all processes that have no shared store."""
        self.bucket = bucket
        self.capacity = capacity
        self.window = window
        self.waiting = 0
        """Units that requests wait for now."""
        self._store = store
        self._clock = clock
        self._own = common or Window(window)
        self._common = common is not None
        self._leases: deque[_Lease] = deque()
        self._balance = 0
        self._chunk = 1
        self._debt = 0
        self._telling = 0
        """Debt that is on its way to the store."""
        self._epoch: bytes | None = None
        self._free: int | None = None
        self._heard = self._shared_out = float("-inf")
        self._denied_until = self._retry_at = float("-inf")
        self._refilling: asyncio.Future[Grant | None] | None = None

    def verdict(self, need: int, now: float) -> Verdict:
        """What can be said about `need` units now, as the store stands."""
        if self._store.shared:
            self._expire(now)
            if need <= self._balance:
                return Verdict.PASS
            if self._store.prompt:
                return Verdict.REFUSED if now < self._denied_until else Verdict.ASK
            # Slow or lost: nobody waits, but units that come late serve the requests after this one.
            self.refill(now, want=max(need, self._chunk))
        return self.local_verdict(need, now)

    def local_verdict(self, need: int, now: float) -> Verdict:
        """By this replica's fair share. A need above the whole share passes when nothing of it is used.

        What the store said within a slot of the window holds against the share: one late answer among prompt ones must
        not let through what the other replicas have used.
        """
        self._shared_out = now
        fits = self._own.used(now) + min(need, self._share) <= self._share
        if fits and self._free is not None and now - self._heard < self.window / WINDOW_SLOTS and self._store.shared:
            fits = need <= self._free + self._balance - self._debt - self._telling
        return Verdict.PASS if fits else Verdict.REFUSED

    def spend(self, need: int, now: float) -> Spent:
        """Takes `need` units: from leases if they suffice, else on the replica's own account."""
        at = self._own.add(need, now)
        if not self._store.shared or need > self._balance:
            self._debt += need if self._store.shared else 0
            return Spent(need, at, None, None)
        spent = Spent(need, at, self._leases[0].slot if self._leases else None, self._epoch)
        self._consume(need)
        if self._chunk > 1 and self._balance < self._chunk // 4 and now >= self._denied_until and self._store.prompt:
            self.refill(now, want=self._chunk)
        return spent

    def overdrawn(self, now: float) -> bool:
        """Whether another process has taken the same units meanwhile as were just spent here."""
        return self._common and self._own.used(now) > self.capacity

    def charge(self, units: int, now: float) -> None:
        """Takes units that have been used already, even beyond the limit."""
        self._own.add(units, now)
        if not self._store.shared:
            return
        self._expire(now)
        if units <= self._balance:
            self._consume(units)
        else:
            self._debt += units

    def refund(self, units: int, spent: Spent) -> None:
        """Gives units of `spent` back, as if they had not been taken."""
        self._own.take_back(units, spent.at)
        self._denied_until = float("-inf")
        if spent.slot is None:
            self._debt -= min(units, self._debt)
        elif spent.epoch == self._epoch:
            self._store.give_back(self.bucket, units, spent.slot)

    def retry(self, need: int, now: float) -> float:
        """Seconds after which `need` units may pass."""
        if now < self._denied_until:
            return self._retry_at - now
        return self._own.wait(min(need, self._share), self._share, now)

    def refill(self, now: float, *, need: int = 0, want: int = 0) -> asyncio.Future[Grant | None] | None:
        """Asks the store, unless that is under way. None: it cannot answer."""
        if self._refilling is not None:
            return self._refilling
        # What has left the window is no longer owed.
        debt = min(self._debt, self._own.used(now))
        ask = Ask(
            bucket=self.bucket,
            capacity=self.capacity,
            window=self.window,
            need=need,
            want=max(need, want),
            debt=debt,
        )
        future = self._store.reserve(ask)
        if future is not None:
            self._debt, self._telling = 0, debt
            self._refilling = future
            future.add_done_callback(partial(self._refilled, ask))
        return future

    def refill_for_waiting(self, now: float) -> asyncio.Future[Grant | None] | None:
        return self.refill(now, need=max(self.waiting - self._balance, 0), want=self._chunk)

    def tick(self, now: float) -> None:
        """Gives back what was not spent in time, and tells the store of debts. About once a second."""
        if self._store.shared:
            self._expire(now)
            if self._debt:
                self.refill(now)

    def release_denied(self, now: float) -> None:
        """Gives back a partial grant that did not suffice, so that others with smaller needs get it."""
        if not self.waiting and now < self._denied_until:
            while self._leases:
                self._give_back(self._leases.popleft())

    def remaining(self, now: float) -> int:
        """Units left, as far as this replica knows; of its share, where that has lately decided."""
        left = self._share - self._own.used(now)
        if self._store.shared and now - self._shared_out >= self.window / WINDOW_SLOTS:
            left = self.capacity - self._own.used(now)
            if self._free is not None and now - self._heard < self.window:
                left = min(left, self._free + self._balance)
        return max(left, 0)

    def reset(self, now: float) -> float:
        """Seconds until the whole limit is free again, as far as this replica knows."""
        if seconds := self._own.empty_in(now):
            return seconds
        return 0.0 if self.remaining(now) >= self._share else self.window

    @property
    def _share(self) -> int:
        return self.capacity if self._common else max(self.capacity // self._store.replicas, 1)

    def _refilled(self, ask: Ask, future: asyncio.Future[Grant | None]) -> None:
        self._refilling, self._telling = None, 0
        grant = None if future.cancelled() else future.result()
        if grant is None:
            self._debt += ask.debt
            return
        now = self._clock()
        if grant.epoch != self._epoch:
            self._start_epoch(grant.epoch, now, ask.debt)
        if now - self._heard < self.window / WINDOW_SLOTS and grant.units >= ask.want > 0:
            self._chunk = min(max(2 * self._chunk, 2 * ask.need), max(self.capacity // _LARGEST_SHARE, 1))
        self._free, self._heard = grant.free, now
        # An answer that came late pays for what was let through meanwhile.
        paid = min(grant.units, self._debt)
        self._debt -= paid
        if units := grant.units - paid:
            self._leases.append(_Lease(grant.slot, units, units, grant.until))
            self._balance += units
        if grant.units < ask.need:
            self._denied_until = now + min(grant.retry, self.window * _DENIAL)
            self._retry_at = now + grant.retry

    def _start_epoch(self, epoch: bytes, now: float, told: int) -> None:
        """The store counts from nothing: what this replica has used and not just told is owed again."""
        self._debt += max(self._own.used(now) - told - self._debt, 0)
        self._leases.clear()
        self._balance = 0
        self._epoch = epoch

    def _consume(self, units: int) -> None:
        self._balance -= units
        while units:
            lease = self._leases[0]
            part = min(units, lease.units)
            lease.units -= part
            units -= part
            if not lease.units:
                self._leases.popleft()

    def _expire(self, now: float) -> None:
        while self._leases and self._leases[0].until < now:
            lease = self._leases.popleft()
            if lease.units * 2 >= lease.size:
                self._chunk = max(self._chunk // 2, 1)
            self._give_back(lease)

    def _give_back(self, lease: _Lease) -> None:
        self._balance -= lease.units
        self._store.give_back(self.bucket, lease.units, lease.slot)
