"""The Store protocol: the few verbs that shared state needs, and the values that travel through them.

A store is asked synchronously and answers from what it knows; whatever needs I/O is handed to the store's own tasks.
No request ever owns a command, so a client that leaves cannot cancel one half-way. When the home of the state is
lost, verbs say so at once (None, or nothing) and callers go on with their local view.

- quota: `reserve` takes units out of a limit that all replicas share; `give_back` returns what was not used.
- views: each replica publishes its own small view, which expires unless it is renewed; `others` is the rest, merged.
- learned state: `share` publishes this replica's blob under a name and returns every replica's.
- decision log: `append` to a bounded stream, `recent` reads its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

WINDOW_SLOTS = 60
"""Counters of a sliding window: one per second of a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for units of one limit."""

    bucket: str
    """Which limit of whom, unique across the policy."""
    capacity: int
    window: float
    """Seconds over which `capacity` holds."""
    need: int = 0
    """Units that somebody waits for."""
    want: int = 0
    """Units that would be of use soon, if plenty are left."""
    debt: int = 0
    """Units already used without asking; counted even beyond the capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The answer to an `Ask`. The units are already counted against the limit."""

    units: int
    """0 and more; fewer than `need` where no more were left."""
    free: int
    """Units left for everybody after this grant; below 0 after a debt."""
    retry: float
    """Seconds until `need` could be granted, if nobody else takes units; 0 where it was."""
    slot: int
    """The counter that holds these units, for `give_back`."""
    epoch: bytes
    """Changes when the home lost this limit's counters."""
    until: float
    """The units may be spent until then, on the store's clock; after it they must be given back."""


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One endpoint as one replica sees it."""

    in_flight: int = 0
    shut: bool = False
    """Whether the replica has found it broken."""
    works: bool = False
    """Whether it has answered the replica of late. Neither: the replica has nothing to say."""
    hung: bool = False
    """Shut, because it hangs."""


@dataclass(frozen=True, slots=True)
class View:
    """What one replica tells the others. Small: one entry per endpoint and per key in use."""

    endpoints: Mapping[str, EndpointView] = field(default_factory=dict)
    """By whatever names an endpoint alike in every replica, such as `pool url`."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """Requests in flight by the name of the API key."""


@dataclass(frozen=True, slots=True)
class EndpointSum:
    """One endpoint as the other replicas see it together."""

    in_flight: int
    shut: int
    """Replicas that have found it broken."""
    works: int = 0
    """Replicas that it has answered of late."""
    hung: int = 0
    """Replicas for which it hangs."""


@dataclass(frozen=True, slots=True)
class Others:
    """The live views of all replicas but this one, added up."""

    replicas: int = 0
    endpoints: Mapping[str, EndpointSum] = field(default_factory=dict)
    keys: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where the state lives and whether it is reached, for `/ready` and a metric."""

    home: str
    """`memory` or `redis`."""
    connected: bool
    """False: limits hold per replica, and the others' views are missing."""
    since: float
    """Seconds since the epoch at which `connected` took its value."""
    error: str | None = None
    """Class of the last error while not connected."""
    replicas: int = 1
    """Live replicas, this one included, as last known."""
    dropped: int = 0
    """Decision log entries lost to a full buffer."""

    def object(self) -> dict[str, object]:
        """For JSON; `error` and `dropped` only where there is one."""
        shown: dict[str, object] = {"home": self.home, "connected": self.connected, "since": self.since}
        shown["replicas"] = self.replicas
        if self.error:
            shown["error"] = self.error
        if self.dropped:
            shown["dropped"] = self.dropped
        return shown


class Store(Protocol):
    """What the gateway asks of its shared state."""

    @property
    def shared(self) -> bool:
        """Whether limits are shared at all; False means that `reserve` always answers None."""

    @property
    def prompt(self) -> bool:
        """Whether `reserve` can be expected to answer within `patience`."""

    @property
    def patience(self) -> float:
        """Seconds that a request may wait for `reserve`."""

    @property
    def replicas(self) -> int:
        """Replicas that share the limits, this one included, as last known; at least 1."""

    @property
    def others(self) -> Others:
        """The other replicas' views, as of the last exchange; empty when that was too long ago."""

    async def start(self, view: Callable[[], View]) -> None:
        """Begins to exchange views; `view` is called about once a second. A home out of reach is no error."""

    async def aclose(self) -> None:
        """Withdraws this replica's view, ends the store's tasks and closes its connections."""

    def status(self) -> Status: ...

    def reserve(self, ask: Ask) -> asyncio.Future[Grant | None] | None:
        """Units of a shared limit. None, at once or later: the home cannot say, so decide locally.

        The future belongs to the store: wait for it with `asyncio.wait` and do not cancel it.
        """

    def give_back(self, bucket: str, units: int, slot: int) -> None:
        """Returns units of a grant that were not used. What cannot be delivered comes back by expiry."""

    async def share(self, name: str, blob: bytes | None) -> Mapping[str, bytes] | None:
        """Publishes this replica's learned state (None: only reads); every replica's, its own included, by replica.

        Entries of replicas that are gone stay, so that a restart loses nothing. None: the home cannot say.
        """

    def append(self, entry: bytes) -> None:
        """Adds to the decision log. Never blocks; the oldest entries go first."""

    async def recent(self, limit: int) -> list[bytes]:
        """The newest entries of the decision log, newest first."""


def merge(views: Mapping[str, View]) -> Others:
    """Adds up views of several replicas."""
    endpoints: dict[str, list[int]] = {}
    keys: dict[str, int] = {}
    for view in views.values():
        for name, endpoint in view.endpoints.items():
            said = (endpoint.in_flight, endpoint.shut, endpoint.works, endpoint.hung)
            endpoints[name] = [total + one for total, one in zip(endpoints.get(name, (0, 0, 0, 0)), said, strict=True)]
        for name, count in view.keys.items():
            keys[name] = keys.get(name, 0) + count
    return Others(len(views), {name: EndpointSum(*sums) for name, sums in endpoints.items()}, keys)
