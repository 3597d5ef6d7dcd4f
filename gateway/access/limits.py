"""Limits per key: requests, tokens, input tokens and output tokens per minute, and requests at a time.

Per minute means in any 60 seconds (`window`). A request is admitted when every limit has room, and only then takes
from each of them: one request, its input tokens as estimated, the output tokens that are expected. When it ends, the
tokens are corrected to what the back end counted. Too long an answer can take a limit below zero; then nothing
passes until the window has moved on. A request at a limit is refused at once and told when to come again.

Requests at a time are counted here and, from the last exchange of views, in the other replicas; so several replicas
together can pass a limit by what they admit within one exchange, about a second. While the store is lost, each of them
has its equal share. Without one, the workers of a host count together in memory, exactly, what runs at a time and what
was taken in the minute (`state.board`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite

from gateway.access.quota import Quota, Verdict
from gateway.access.ticket import Holder, Limit, Ticket
from gateway.errors import TooManyRequests
from gateway.policy.schema import Access, AccessKey
from gateway.state.board import Board, Place
from gateway.state.store import Store

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Standing:
    """One limit as it is now."""

    limit: int
    remaining: int
    reset: float
    """Seconds until all of it is free."""


class _KeyState(Holder):
    """A key's live counters; they survive policy reloads."""

    __slots__ = ("key", "quotas")

    def __init__(self, key: AccessKey) -> None:
        super().__init__()
        self.key = key
        self.quotas: dict[Limit, Quota] = {}


_Needs = Sequence[tuple[Limit, Quota, int]]


class Limits:
    """The limits of all keys. One per process; everything but the wait for the store is synchronous."""

    def __init__(
        self, store: Store, *, clock: Callable[[], float], window: float = MINUTE, board: Board | None = None
    ) -> None:
        """`clock` is the store's. `window` is a minute for everybody but tests. `board` is for workers that share no
        store."""
        self._store = store
        self._board = board
        self._clock = clock
        self._window = window
        self._states: dict[str, _KeyState] = {}

    def apply(self, access: Access | None) -> None:
        """Follows a policy: new numbers hold from now on, counts stay, keys that are gone are forgotten."""
        keys = {key.name: key for key in access.keys} if access else {}
        self._states = {name: state for name, state in self._states.items() if name in keys or state.in_flight}
        for name, key in keys.items():
            if state := self._states.get(name):
                self._adopt(state, key)

    def try_admit(self, key: AccessKey | None, input_tokens: int = 0, expected_output: int = 0) -> Ticket | None:
        """Admits without waiting; None where only the store can say, then `admit` waits for it.

        Raises TooManyRequests, with `retry_after` and the limit's name in the message.
        """
        if key is None:
            return Ticket(None, (), self._clock)
        state = self._state(key)
        needs = self._needs(state, input_tokens, expected_output)
        now = self._clock()
        for _, quota, need in needs:
            if quota.verdict(need + quota.waiting, now) is Verdict.ASK:
                self._check_in_flight(state)
                return None
        return self._take(state, needs, now)

    async def admit(self, key: AccessKey | None, input_tokens: int = 0, expected_output: int = 0) -> Ticket:
        """Admits, and waits for the store at most its `patience`, once.

        Raises TooManyRequests as `try_admit` does.
        """
        ticket = self.try_admit(key, input_tokens, expected_output)
        if ticket is not None or key is None:
            return ticket or Ticket(None, (), self._clock)
        state = self._state(key)
        needs = self._needs(state, input_tokens, expected_output)
        for _, quota, need in needs:
            quota.waiting += need
        try:
            locally = await self._hear(needs)
            ticket = self._take(state, needs, self._clock(), locally=locally)
        finally:
            for _, quota, need in needs:
                quota.waiting -= need
                quota.release_denied(self._clock())
        return ticket

    async def _hear(self, needs: _Needs) -> bool:
        """Waits until no limit has the verdict ASK. True when the store did not answer in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._store.patience
        while True:
            now = self._clock()
            verdicts = [(quota, quota.verdict(need, now)) for _, quota, need in needs]
            lacking = [quota for quota, verdict in verdicts if verdict is Verdict.ASK]
            if not lacking or any(verdict is Verdict.REFUSED for _, verdict in verdicts):
                return False
            asked = [quota.refill_for_waiting(now) for quota in lacking]
            answers = [future for future in asked if future is not None]
            left = until - loop.time()
            if left <= 0 or len(answers) < len(asked):
                return True
            await asyncio.wait(answers, timeout=left)

    def tick(self) -> None:
        """Housekeeping about once a second: unused leases go back, debts are told."""
        now = self._clock()
        for state in self._states.values():
            for quota in state.quotas.values():
                quota.tick(now)

    def in_flight(self) -> dict[str, int]:
        """Requests in flight by key, for this replica's view."""
        return {name: state.in_flight for name, state in self._states.items() if state.in_flight}

    def standing(self, key: AccessKey | None) -> Mapping[Limit, Standing]:
        """The key's limits per minute as they are now, as far as this replica knows."""
        state = self._states.get(key.name) if key else None
        if state is None:
            return {}
        now = self._clock()
        return {
            limit: Standing(quota.capacity, quota.remaining(now), quota.reset(now))
            for limit, quota in state.quotas.items()
        }

    def _state(self, key: AccessKey) -> _KeyState:
        state = self._states.get(key.name)
        if state is None:
            state = self._states[key.name] = _KeyState(key)
            self._adopt(state, key)
        return state

    def _adopt(self, state: _KeyState, key: AccessKey) -> None:
        state.key = key
        limits = {
            Limit.REQUESTS: key.requests_per_minute,
            Limit.TOKENS: key.tokens_per_minute,
            Limit.INPUT_TOKENS: key.input_tokens_per_minute,
            Limit.OUTPUT_TOKENS: key.output_tokens_per_minute,
        }
        quotas: dict[Limit, Quota] = {}
        for limit, capacity in limits.items():
            if capacity:
                bucket = f"{key.name}:{limit.name.lower()}"
                quota = state.quotas.get(limit) or self._quota(bucket, capacity)
                quota.capacity = capacity
                quotas[limit] = quota
        state.quotas = quotas
        if key.in_flight and state.place is None and self._board is not None:
            state.place = self._board.place(key.name)
            if state.place is not None:
                state.place.say(state.in_flight)

    def _quota(self, bucket: str, capacity: int) -> Quota:
        common = self._board.window(bucket, self._window) if self._board else None
        return Quota(bucket, capacity, self._store, self._window, self._clock, common)

    def _needs(self, state: _KeyState, input_tokens: int, expected_output: int) -> _Needs:
        """What the request takes from each limit. Raises TooManyRequests where it could never pass.

        The expected output is a guess, so it is cut to what the limit can give. At least 1 is needed, so that a limit
        that is used up refuses.
        """
        needs: list[tuple[Limit, Quota, int]] = []
        for limit, quota in state.quotas.items():
            need = 1
            if limit is not Limit.REQUESTS:
                firm = 0 if limit is Limit.OUTPUT_TOKENS else input_tokens
                if firm > quota.capacity:
                    raise _too_large(state.key, limit, quota, firm)
                guess = 0 if limit is Limit.INPUT_TOKENS else min(expected_output, quota.capacity - firm)
                need = max(firm + guess, 1)
            needs.append((limit, quota, need))
        return needs

    def _check_in_flight(self, state: _KeyState) -> None:
        if not (most := state.key.in_flight):
            return
        others, replicas = self._store.others, self._store.replicas
        running = state.in_flight + others.keys.get(state.key.name, 0)
        # Where the others' requests are unknown, this replica has its share.
        if running >= (most if others.replicas + 1 >= replicas else max(most // replicas, 1)):
            raise _refusal(state.key, Limit.IN_FLIGHT, most, 1.0)

    def _take(self, state: _KeyState, needs: _Needs, now: float, *, locally: bool = False) -> Ticket:
        """All or nothing. `locally` decides what the store has not answered."""
        place = state.place
        if place is None:
            self._check_in_flight(state)
        else:
            self._take_place(state, place)
        refused: list[tuple[float, Limit, Quota]] = []
        for limit, quota, need in needs:
            verdict = quota.verdict(need, now)
            if verdict is Verdict.ASK and locally:
                verdict = quota.local_verdict(need, now)
            if verdict is not Verdict.PASS:
                refused.append((quota.retry(need, now), limit, quota))
        if not refused:
            taken = tuple((limit, quota, quota.spend(need, now)) for limit, quota, need in needs)
            over = [(limit, quota, spent.units) for limit, quota, spent in taken if quota.overdrawn(now)]
            if not over:
                return Ticket(state, taken, self._clock)
            for _, quota, spent in taken:
                quota.refund(spent.units, spent)
            refused = [(quota.retry(need, now), limit, quota) for limit, quota, need in over]
        if place is not None:
            place.say(state.in_flight)
        seconds, limit, quota = max(refused, key=lambda row: row[0])
        raise _refusal(state.key, limit, quota.capacity, seconds if isfinite(seconds) else self._window)

    def _take_place(self, state: _KeyState, place: Place) -> None:
        """Counts one more request, for the other workers to see. Raises TooManyRequests where that is one too many."""
        place.say(state.in_flight + 1)
        if (most := state.key.in_flight) and place.total() > most:
            place.say(state.in_flight)
            raise _refusal(state.key, Limit.IN_FLIGHT, most, 1.0)


def _refusal(key: AccessKey, limit: Limit, capacity: int, seconds: float) -> TooManyRequests:
    after = max(ceil(seconds), 1)
    message = f"the key `{key.name}` is at its limit of {capacity} {limit.value}; try again in {after} s"
    return TooManyRequests(message, retry_after=after)


def _too_large(key: AccessKey, limit: Limit, quota: Quota, need: int) -> TooManyRequests:
    message = f"the request needs {need} tokens, above the key `{key.name}`'s limit of {quota.capacity} {limit.value}"
    return TooManyRequests(f"{message}; it must be shorter", retry_after=ceil(quota.window))
