"""What goes wrong in the chaos run, and when: drawn from a seed, carried out, and noted as it really happened.

Back ends: killed and started again, stopped and continued, or given a fault for some seconds; at most half of them at
one time. Redis: frozen, killed and started again, flushed. The policy is rewritten every few seconds: other weights,
an endpoint taken out or put back, another rule, now and then a file that is not valid and must change nothing.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.benchmarks.chaos_fleet import BACKENDS, Fleet

FAULTS: Mapping[str, Mapping[str, Any]] = {
    "hang": {"hang": True},
    "freeze": {"freeze": True},
    "stall": {"stall": 5},
    "cut": {"cut": 4},
    "cut at once": {"cut": 0},
    "reset": {"cut": 3, "cut_reset": True},
    "503": {"status": 503},
    "502": {"status": 502},
    "500, half": {"status": 500, "rate": 0.5},
    "error first": {"error_first": True},
    "health down": {"health_down": True},
    "slow": {"slow_first_token": 1.0, "slowdown": 3.0},
}
SIGNALS = ("kill", "stop")
REDIS = ("freeze", "kill", "flush", "restart")
MOST_SICK = BACKENDS // 2
RECOVERY = 7.0
"""Seconds after a back end's recovery until the gateway is held to have noticed: probes come every 2 seconds, two
silent ones make it down, and a breaker that a failure has shut stays so for up to 5 seconds."""
RELOAD = 3.0
"""The same for an endpoint that the policy file names again."""


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    """Seconds after the chaos began."""
    target: int | str
    """A back end's number, `redis` or `policy`."""
    what: str
    seconds: float = 0.0
    """How long it lasts."""


@dataclass(slots=True)
class Timeline:
    """When each back end could not be relied on, by the monotonic clock; the gateway's time to notice is included."""

    bad: list[list[list[float]]] = field(default_factory=lambda: [[] for _ in range(BACKENDS)])
    """By back end, intervals of begin and end."""

    def begin(self, number: int) -> list[float]:
        interval = [time.monotonic(), float("inf")]
        self.bad[number].append(interval)
        return interval

    def healthy(self, start: float, end: float) -> list[int]:
        """The back ends that were well, and in the policy, all the time between."""
        return [n for n, rows in enumerate(self.bad) if not any(a < end and b > start for a, b in rows)]


def draw(seed: int, seconds: float) -> list[Event]:
    """The schedule: the same for the same seed and length."""
    rng = Random(seed)
    events: list[Event] = []
    busy = [0.0] * BACKENDS
    at = 1.0
    while at < seconds:
        free = [n for n in range(BACKENDS) if busy[n] <= at]
        if BACKENDS - len(free) < MOST_SICK:
            number = rng.choice(free)
            what = rng.choice((*SIGNALS, *SIGNALS, *FAULTS))
            lasts = rng.uniform(1.0, 12.0)
            events.append(Event(at, number, what, lasts))
            busy[number] = at + lasts + 4.0
        at += rng.uniform(1.0, 4.0)
    at = 3.0
    while at < seconds:
        what = rng.choice(REDIS)
        lasts = rng.uniform(1.0, 8.0)
        events.append(Event(at, "redis", what, lasts))
        at += lasts + rng.uniform(3.0, 12.0)
    at = 2.0
    while at < seconds:
        events.append(Event(at, "policy", "rewrite" if rng.random() < 0.85 else "break"))
        at += rng.uniform(1.5, 4.0)
    return sorted(events, key=lambda event: event.at)


class Chaos:
    """Carries a schedule out on a fleet."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.timeline = Timeline()
        self.done: dict[str, int] = {}
        """How often each thing happened."""
        self._fleet = fleet
        self._rng = Random(seed + 1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._removed: tuple[int, list[float]] | None = None
        # A back end that is slow to start again is not hit anew before it has.
        self._turns = [asyncio.Lock() for _ in range(BACKENDS)]

    async def run(self, events: Sequence[Event]) -> None:
        """Returns when the last event is over and everything is well again."""
        began = time.monotonic()
        for event in events:
            await asyncio.sleep(max(0.0, began + event.at - time.monotonic()))
            task = asyncio.create_task(self._carry_out(event))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            name = f"{'back end' if isinstance(event.target, int) else event.target}: {event.what}"
            self.done[name] = self.done.get(name, 0) + 1
        while self._tasks:
            await asyncio.gather(*self._tasks)
        self._write(self._fleet.text(), None)

    async def _carry_out(self, event: Event) -> None:
        if event.target == "policy":
            self._rewrite(event.what)
        elif event.target == "redis":
            await self._redis(event)
        else:
            assert isinstance(event.target, int)
            async with self._turns[event.target]:
                await self._backend(event.target, event)

    async def _backend(self, number: int, event: Event) -> None:
        backend = self._fleet.backends[number]
        interval = self.timeline.begin(number)
        if event.what == "kill":
            backend.kill()
            await asyncio.sleep(event.seconds)
            backend.start()
            await asyncio.to_thread(backend.wait)
        elif event.what == "stop":
            backend.signal(signal.SIGSTOP)
            await asyncio.sleep(event.seconds)
            backend.signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(backend.faults, FAULTS[event.what])
            await asyncio.sleep(event.seconds)
            await asyncio.to_thread(backend.faults, {})
        interval[1] = time.monotonic() + RECOVERY

    async def _redis(self, event: Event) -> None:
        redis = self._fleet.redis
        if event.what == "freeze":
            redis.freeze()
            await asyncio.sleep(event.seconds)
            redis.thaw()
        elif event.what == "kill":
            redis.kill()
            await asyncio.sleep(event.seconds)
            await asyncio.to_thread(redis.start)
        elif event.what == "restart":
            redis.kill()
            await asyncio.to_thread(redis.start)
        else:
            await asyncio.to_thread(redis.flush)

    def _rewrite(self, what: str) -> None:
        rng = self._rng
        if what == "break":
            self._fleet.write_policy(self._fleet.text().replace("pools:", "pols:", 1))
            return
        without = rng.randrange(BACKENDS) if rng.random() < 0.4 else None
        rules = ("", "{name: a, when: {stream: true}, prefer: plain}", "{name: b, when: {task: code}, prefer: mtp}")
        weights = [rng.randint(1, 3) for _ in range(BACKENDS)]
        text = self._fleet.text(weights=weights, without=without, rule=rng.choice(rules))
        self._write(text, without)

    def _write(self, text: str, without: int | None) -> None:
        before, self._removed = self._removed, None
        if without is not None:
            self._removed = (without, self.timeline.begin(without))
        self._fleet.write_policy(text)
        if before is not None:
            before[1][1] = time.monotonic() + RELOAD
