"""Prompts before one engine, shortest first: what an engine is sent beyond 1.5 steps' worth waits here instead.

An engine computes prompts in the order in which they came, some thousand tokens a step. With a step's worth and half of
another it has its next step's prompts in time, and whatever else it is sent only stands in its queue, where a short
prompt waits for all the long ones that came before. So once `limit` tokens wait there for their first token, further
requests wait here. They keep their slots: nothing is refused for it, and nothing is decided anew. They go on in the
order of `fair.FairQueue`, with the prompt's tokens as work.

A stream's prompt is computed when its first byte comes; if nothing comes, it counts for `SLACK` times the expected
time, so that a lost request does not hold others up for longer. Of a whole (non-stream) answer nothing tells: its first
byte is its last. It waits for its turn like all others, but does not count once it is sent; to count it for an expected
time would leave the engine idle where that is too long, and what is held back makes it longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import NamedTuple

from gateway.upstream.fair import FairQueue

PATIENCE = 100.0
"""See `fair`. More makes the mean time in overload shorter (simulated, 400: by 1 to 32 %) and the longest ones longer
(p99 by up to 49 %)."""
SECONDS_PER_TOKEN = 1e-5
"""Turns tokens into the queue's unit of work; a usual GPU's order of magnitude."""
SLACK = 4.0
SHORTEST, LONGEST = 0.05, 60.0
"""Seconds that a lost prompt counts for at least and at most, whatever the expectation."""
LOOK = 1.0
"""Most seconds between two looks for lost prompts while any request waits."""

_ENGINE = "engine"
"""The queue's name for its only pool."""


class Prompt(NamedTuple):
    """One request's prompt. A tuple, because every request makes one."""

    tokens: int
    """Those that are not cached."""
    expected: Callable[[], float]
    """Tells the seconds to the first token."""
    stream: bool

    def ends(self, sent: float) -> float:
        """When it stops to count even if nothing has been heard."""
        return sent + min(max(self.expected() * SLACK, SHORTEST), LONGEST)


class _Held:
    """A prompt that waits here: an entry of the queue."""

    __slots__ = ("go", "key", "order", "owner", "places", "priority", "prompt", "work", "works")

    def __init__(self, owner: Hashable, prompt: Prompt, go: Callable[[], None], priority: int, key: str | None) -> None:
        self.owner = owner
        self.prompt = prompt
        self.go = go
        self.order = (_ENGINE,)
        self.work = prompt.tokens * SECONDS_PER_TOKEN
        self.works = (self.work,)
        self.places = 0
        self.priority = priority
        self.key = key


class Prefill:
    """The prompts of one engine. Times are those of `clock`."""

    __slots__ = ("_clock", "_queue", "_sent", "_timer", "_waiting", "limit", "tokens")

    def __init__(self, clock: Callable[[], float], limit: int = 0) -> None:
        self.limit = limit
        """Tokens; 0 is no limit. A single longer prompt goes alone."""
        self.tokens = 0
        """Of the streams' prompts that were sent and are not known to be computed."""
        self._clock = clock
        self._sent: dict[Hashable, tuple[Prompt, float]] = {}
        """Those, by request, with the time of sending."""
        self._waiting: dict[Hashable, _Held] = {}
        self._queue: FairQueue[_Held] = FairQueue(PATIENCE)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait here."""
        return len(self._waiting)

    def holds(self, owner: Hashable) -> bool:
        """Whether this request waits here, so that nothing of it was sent."""
        return owner in self._waiting

    def take(self, owner: Hashable, prompt: Prompt) -> bool:
        """Whether the request may be sent now, which is then taken as done. Else let it `wait`."""
        if self.limit and (self._waiting or not self._fits(prompt.tokens)):
            return False
        self._count(owner, prompt)
        return True

    def add(
        self, owner: Hashable, prompt: Prompt, go: Callable[[], None], priority: int = 0, key: str | None = None
    ) -> None:
        """Lets a request wait for its turn, when `go` is called. `left` takes it out at any time."""
        held = self._waiting[owner] = _Held(owner, prompt, go, priority, key)
        self._queue.add(held)
        self.serve()

    async def wait(self, owner: Hashable, prompt: Prompt, priority: int = 0, key: str | None = None) -> None:
        """Returns when the request may be sent. Whoever cancels this calls `left`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(owner, prompt, lambda: None if turn.done() else turn.set_result(None), priority, key)
        self._watch()
        await turn

    def left(self, owner: Hashable) -> None:
        """Call at a request's first byte and at its end: its prompt is computed, or nobody waits for it any more."""
        if (sent := self._sent.pop(owner, None)) is not None:
            self.tokens -= sent[0].tokens
        elif self._waiting and (held := self._waiting.pop(owner, None)) is not None:
            self._queue.remove(held)
        if self._waiting:
            self.serve()

    def serve(self) -> None:
        """Sends those whose turn it is."""
        while self._waiting:
            first = self._queue.first((_ENGINE,))
            assert first is not None
            if self.limit and not self._fits(first.prompt.tokens):
                return
            self._queue.serve(first)
            del self._waiting[first.owner]
            self._count(first.owner, first.prompt)
            first.go()

    def opens_at(self) -> float:
        """When the next prompt stops to count, if nothing is heard. Something must have been sent."""
        return min(prompt.ends(sent) for prompt, sent in self._sent.values())

    def _watch(self) -> None:
        """Keeps a timer, as long as any wait, that serves them when prompts stop to count."""
        if self._timer is None and self._waiting:
            # What is sent until then may stop to count earlier than all that is there now.
            delay = min(max(self.opens_at() - self._clock(), 0.0), LOOK)
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.serve()
        self._watch()

    def _fits(self, tokens: int) -> bool:
        if not self.tokens or self.tokens + tokens <= self.limit:
            return True
        now = self._clock()
        for owner in [owner for owner, (prompt, sent) in self._sent.items() if prompt.ends(sent) <= now]:
            self.tokens -= self._sent.pop(owner)[0].tokens
        return not self.tokens or self.tokens + tokens <= self.limit

    def _count(self, owner: Hashable, prompt: Prompt) -> None:
        if prompt.stream:
            self._sent[owner] = prompt, self._clock()
            self.tokens += prompt.tokens
