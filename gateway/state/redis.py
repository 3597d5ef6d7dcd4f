"""State in Redis: two lanes, one for quotas that requests may wait for, one for everything else.

A background task exchanges views about once a second, carries the decision log along, and probes what is lost. The
request path touches Redis in one place, `reserve`, and only for the length of `patience`: when a pipeline has been
under way for longer, or the last few were slow, `prompt` turns False and nobody waits at all.

After three consecutive failures on a lane Redis counts as lost (`Link`), and everything continues locally until a probe
succeeds. Errors are on the safe side: units granted by a reply that got lost come back when they expire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gateway.state.lane import Command, Lane
from gateway.state.link import Link
from gateway.state.redis_connect import Address
from gateway.state.scripts import EXCHANGE, GIVE_BACK, RECENT, RESERVE
from gateway.state.store import WINDOW_SLOTS, Ask, Grant, Others, Status, View, merge
from gateway.state.views import pack, unpack_all

log = logging.getLogger("gateway.state")

LEARNED_TTL = 30 * 86400.0
"""Seconds until what a replica learned is gone, if it does not renew it."""
MOST_VIEWS = 1024
MOST_LEARNED = 64
"""Replicas whose learned state is kept, newest first."""
SLOW_STRIKES = 3
"""Consecutive slow pipelines after which no request waits for Redis."""
_LOG_BATCH = 256
_PING = Command(None, "", ("PING",))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """Times in seconds, and the length of the shared decision log."""

    patience: float = 0.004
    """That a request may wait. Event loops round timers up by a millisecond, so it is 5 ms at most."""
    deadline: float = 0.25
    """For a pipeline."""
    interval: float = 1.0
    """Between exchanges with the other replicas."""
    view_ttl: float = 10.0
    """Until the view of a replica that died is gone."""
    log_length: int = 100_000
    """Entries, about."""

    def waiting(self, seconds: float) -> RedisSettings:
        """The same for requests that may wait so long, which a pipeline must outlast."""
        return replace(self, patience=seconds, deadline=max(self.deadline, seconds))


DEFAULTS = RedisSettings()


class RedisStore:
    """A `Store`. Create it anywhere, `start` it on the serving loop."""

    shared = True

    def __init__(
        self,
        address: Address,
        *,
        replica: str,
        rng: Random,
        settings: RedisSettings = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`replica` is this process's name among all that share the Redis."""

        def lane(name: str) -> Lane:
            link = Link(name, clock=clock, wall=wall, rng=rng)
            return Lane(lambda: address.connect(settings.deadline), link, clock=clock, deadline=settings.deadline)

        self.patience = settings.patience
        self.replicas = 1
        self._replica = replica
        self._prefix = address.prefix
        self._settings = settings
        self._clock, self._rng = clock, rng
        self._quota = lane("redis (limits)")
        self._quota.slow_after = settings.patience
        self._bulk = lane("redis")
        self._returns: dict[str, dict[int, int]] = {}
        """Units to give back by bucket and slot; they go with the next question about the bucket, or the next sync."""
        self._others = Others()
        self._heard = clock()
        self._log: deque[bytes] = deque(maxlen=4096)
        self._dropped = 0
        self._view: Callable[[], View] = View
        self._task: asyncio.Task[None] | None = None

    async def start(self, view: Callable[[], View]) -> None:
        self._view = view
        self._quota.start()
        self._bulk.start()
        await self.sync()
        self._task = asyncio.create_task(self._sync_forever(), name="gateway-redis-sync")

    async def aclose(self) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._bulk.link.connected:
            await self._flush_log()
            await self._reply(self._exchange("views", b"", self._settings.view_ttl, MOST_VIEWS, "drop"))
        await self._quota.aclose()
        await self._bulk.aclose()

    @property
    def prompt(self) -> bool:
        lane = self._quota
        # The other lane's failures count too: it notices a dead Redis even when no request has asked lately.
        sound = lane.link.sound and self._bulk.link.sound
        return sound and lane.strikes < SLOW_STRIKES and lane.busy_for < self.patience

    @property
    def others(self) -> Others:
        return self._others if self._clock() - self._heard <= self._settings.view_ttl else Others()

    def status(self) -> Status:
        """Connected means both lanes; the time is the later change's while all is well, else the first loss's."""
        links = (self._quota.link, self._bulk.link)
        lost = [link for link in links if not link.connected]
        since = min(link.since for link in lost) if lost else max(link.since for link in links)
        return Status(
            home="redis",
            connected=not lost,
            since=since,
            error=lost[0].error if lost else None,
            replicas=self.replicas,
            dropped=self._dropped,
        )

    def reserve(self, ask: Ask) -> asyncio.Future[Grant | None] | None:
        if not self._quota.link.allows():
            return None
        self._flush_returns(ask.bucket)
        slot = ask.window / WINDOW_SLOTS
        args = (ask.need, ask.want, ask.debt, ask.capacity, round(slot * 1e6), WINDOW_SLOTS + 1, 2 * self.replicas)
        reply = self._quota.submit(Command(RESERVE, self._bucket(ask.bucket), args))
        if reply is None:
            return None
        # Redis counts the units for one slot longer than the window, from no earlier than now: so long they are good.
        until = self._clock() + slot
        granted: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()

        def answer(done: asyncio.Future[Any]) -> None:
            if not granted.done():
                granted.set_result(_grant(done.result(), until))

        reply.add_done_callback(answer)
        return granted

    def give_back(self, bucket: str, units: int, slot: int) -> None:
        if units > 0 and self._quota.link.connected:
            slots = self._returns.setdefault(bucket, {})
            slots[slot] = slots.get(slot, 0) + units

    def _flush_returns(self, bucket: str) -> None:
        for slot, units in self._returns.pop(bucket, {}).items():
            self._quota.submit(Command(GIVE_BACK, self._bucket(bucket), (slot, units)))

    async def share(self, name: str, blob: bytes | None) -> Mapping[str, bytes] | None:
        if not self._bulk.link.connected:
            return None
        what = "read" if blob is None else "put"
        rows = await self._reply(self._exchange(f"learned:{name}", blob or b"", LEARNED_TTL, MOST_LEARNED, what))
        return None if rows is None else _pairs(rows)

    def append(self, entry: bytes) -> None:
        self._dropped += len(self._log) == self._log.maxlen
        self._log.append(entry)

    async def recent(self, limit: int) -> list[bytes]:
        """Of all replicas while connected, else those of this one that wait to be sent."""
        if limit <= 0:
            return []
        rows = None
        if self._bulk.link.connected:
            await self._flush_log()
            rows = await self._reply(Command(RECENT, self._key("decisions"), (limit,)))
        return list(self._log)[-limit:][::-1] if rows is None else list(rows)

    async def sync(self) -> None:
        """One exchange with the other replicas; also the probe of what is lost."""
        if self._quota.link.allows() and not (self._quota.link.connected and self._bulk.link.connected):
            # A lane without traffic would find out about a loss, or a recovery, at the expense of a request.
            await self._reply(_PING, self._quota)
        for bucket in list(self._returns):
            self._flush_returns(bucket)
        if not self._bulk.link.allows():
            return
        command = self._exchange("views", pack(self._view()), self._settings.view_ttl, MOST_VIEWS, "put")
        rows = await self._reply(command)
        if rows is None:
            return
        views = unpack_all(_pairs(rows))
        views.pop(self._replica, None)
        self._others, self._heard = merge(views), self._clock()
        self.replicas = len(views) + 1
        await self._flush_log()

    async def _sync_forever(self) -> None:
        while True:
            # Jitter, so that replicas started together do not come together for ever.
            await asyncio.sleep(self._settings.interval * self._rng.uniform(0.8, 1.2))
            try:
                await self.sync()
            except Exception:
                # Losses are handled below; what comes here is a fault in `view`, which must not end the exchange.
                log.exception("shared state: an exchange of views failed")

    async def _flush_log(self) -> None:
        """Sends the entries that wait; after a failure they wait on, up to the buffer's length."""
        while self._log:
            entries = [self._log.popleft() for _ in range(min(_LOG_BATCH, len(self._log)))]
            head = ("XADD", self._key("decisions"), "MAXLEN", "~", self._settings.log_length, "*", "d")
            sent = [self._bulk.submit(Command(None, "", (*head, entry))) for entry in entries]
            replies = [None if future is None else await _settled(future) for future in sent]
            failed = [entry for entry, reply in zip(entries, replies, strict=True) if reply is None]
            if failed:
                room = (self._log.maxlen or 0) - len(self._log)
                kept = failed[-room:] if room else []
                self._dropped += len(failed) - len(kept)
                self._log.extendleft(reversed(kept))
                return

    async def _reply(self, command: Command, lane: Lane | None = None) -> Any:
        future = (lane or self._bulk).submit(command)
        return None if future is None else await _settled(future)

    def _exchange(self, name: str, blob: bytes, ttl: float, most: int, what: str) -> Command:
        return Command(EXCHANGE, self._key(name), (self._replica, blob, round(ttl * 1e6), most, what))

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    def _bucket(self, bucket: str) -> str:
        return f"{self._prefix}:limit:{bucket}"


async def _settled(future: asyncio.Future[Any]) -> Any:
    """The future's result; the lane keeps its future when the one who waits is cancelled."""
    await asyncio.wait((future,))
    return future.result()


def _pairs(rows: Any) -> dict[str, bytes]:
    if not rows:
        return {}
    return {name.decode("utf-8", "replace"): blob for name, blob in zip(rows[::2], rows[1::2], strict=True)}


def _grant(reply: Any, until: float) -> Grant | None:
    if reply is None:
        return None
    units, free, wait, slot, epoch = reply
    return Grant(units=units, free=free, retry=wait / 1e6, slot=int(slot), epoch=epoch, until=until)
