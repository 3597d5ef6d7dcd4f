"""Opens the upstream answer to a request: the attempt loop. The first body byte is the point of no return.

A place is taken or waited for (`admission`); the request is sent; a failure that another endpoint may not have
(`retry` has the classes and the argument) goes to another endpoint of the pool once, then to the next pool of the
decision, and never twice to one endpoint. Where nothing is left to try, the last failure is raised, or the back end's
own answer is passed on.

"Nothing delivered" lasts for a stream until its first event has come whole, and for any other answer until all of it
has, as long as it is small enough to gather. An endpoint that is found dead in that time lets its requests go, but for
those whose answer is already on its way through the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.errors import GatewayError, NothingAvailable, UpstreamError, UpstreamTimeout, clear_tracebacks
from gateway.types import Result
from gateway.upstream.call import Call, Opened
from gateway.upstream.client import Dropped, Response
from gateway.upstream.headers import is_event_stream, is_packed_stream
from gateway.upstream.late import why_late
from gateway.upstream.lease import Lease, heed_refusal
from gateway.upstream.pools import Pools
from gateway.upstream.retry import (
    FREE,
    RETRY_STATUSES,
    WITHOUT_BUDGET,
    Hung,
    Moved,
    class_of,
    class_of_answer,
    first_event,
    first_event_ended,
)
from gateway.upstream.verdict import fault_of

GATHER_BYTES = 4_194_304
"""A whole answer up to this size is gathered before its status goes out."""
SAME_POOL = 2
"""Attempts in one pool before the next pool comes first."""
TURNS = 8
"""Turns of the event loop that an answer has to get from the socket to its request before a dead endpoint is given up:
what its last act was need not be computed again. It takes 3 by the lean connector, 4 by httpx."""


class Attempts:
    """The attempt loop of one request. Its public fields stay readable when `open` raises or is cancelled."""

    __slots__ = (
        "_call",
        "_dropped",
        "_ended",
        "_lease",
        "_moved",
        "_on_retry",
        "_pools",
        "_spent",
        "_task",
        "_tried",
        "count",
        "endpoint",
        "pool",
        "sent_at",
        "waited",
    )

    def __init__(self, pools: Pools, on_retry: Callable[[str, str], None]) -> None:
        self._pools = pools
        self._on_retry = on_retry
        """Called with the pool and the error class of each attempt that is followed by another."""
        self._call: Call
        self._lease: Lease
        self._task: asyncio.Task[Any] | None = None
        self._moved = self._ended = False
        self._tried: set[str] = set()
        self._dropped: str | None = None
        """The URL of an endpoint whose kept connection broke before a byte, and which may be asked once more."""
        self._spent: dict[str, int] = {}
        """Requests sent, by pool."""
        self.count = 0
        """Requests sent to back ends; a connection that failed sent nothing."""
        self.endpoint: str | None = None
        self.pool: str | None = None
        self.sent_at: float | None = None
        """When the last attempt began."""
        self.waited = 0.0
        """Seconds spent waiting for a place."""

    async def open(self, call: Call) -> Opened:
        """Returns the first answer worth relaying. Call once.

        Raises the last attempt's error, or NothingAvailable or TooManyRequests when there is no place to be had.
        """
        self._call, self._task = call, asyncio.current_task()
        self._tried.update(call.exclude)
        order = tuple(call.pools)
        lease = self._pools.admission.take(order, self._tried, call.endpoint) or await self._wait(order, urgent=False)
        if (pool := self._pools.find(lease.pool)) is not None:
            pool.budget.deposit(lease.since)
        while True:
            opened, error = await self._try(lease)
            reason = class_of(error)
            if opened:
                reason = class_of_answer(opened.response.status, opened.first, opened.fault, streams=opened.streams)
            if reason in FREE:
                self.count -= 1
            else:
                self._spent[lease.pool] = self._spent.get(lease.pool, 0) + 1
            following = await self._follow(reason, lease, opened) if reason else None
            if following is not None:
                lease = following
                if error is not None:
                    clear_tracebacks(error)
            elif error is not None:
                raise error
            elif opened is not None:
                return opened

    async def _try(self, lease: Lease) -> tuple[Opened, None] | tuple[None, GatewayError]:
        """One attempt. A failed one has released its lease."""
        self.count += 1
        self._lease = lease
        self._tried.add(lease.endpoint.url)
        self.endpoint, self.pool = lease.endpoint.url, lease.pool
        self.sent_at = self._pools.clock()
        call = self._call
        lease.move, lease.stream = self._move, call.stream
        if lease.endpoint.counts_tokens(self.sent_at):
            # Only for an engine that its page shows at work; of one that tells nothing the limit is all there is.
            lease.extra = call.extra()
        prefill = lease.endpoint.prefill
        try:
            prompt = call.prompt(lease)
            if prompt is not None and not prefill.take(lease, prompt):
                await prefill.wait(lease, prompt, call.priority, call.key)
                lease.sent = self._pools.clock()
            opened = await _attempt(lease, call, self._pools)
            lease.move = None
            return opened, None
        except NothingAvailable as full:
            lease.release(Result.REJECTED)
            return None, full
        except UpstreamTimeout as late:
            lease.release(Result.BACKEND_ERROR if late.phase == "connect" else Result.TIMEOUT)
            return None, late if late.phase != "first_byte" else why_late(late, lease, call.first())
        except UpstreamError as failed:
            lease.release(Result.BACKEND_ERROR)
            if isinstance(failed, Dropped):
                self._dropped = lease.endpoint.url
            return None, failed
        except asyncio.CancelledError:
            # The client left, or the endpoint was found dead. Neither says anything new about it.
            held = prefill.holds(lease)
            lease.release(Result.CLIENT_CLOSED)
            moved, self._moved = self._moved, False
            if moved and self._task is not None and not self._task.uncancel():
                if self._ended:
                    return None, Hung("the back end hangs, and sent no first byte in time", phase="first_byte")
                if held:
                    return None, NothingAvailable("its back end died or left before its turn came", retry_after=1)
                return None, Moved("the back end was found dead while the request waited for its first byte")
            raise
        except BaseException:
            lease.release(Result.CLIENT_CLOSED)
            raise

    async def _follow(self, reason: str, lease: Lease, opened: Opened | None) -> Lease | None:
        """A place for the next attempt, or None where there is to be none. Ends the one before."""
        call, admission, now = self._call, self._pools.admission, self._pools.clock()
        if (reason not in FREE and self.count >= call.attempts) or not call.again():
            return None
        pool = self._pools.find(lease.pool)
        # What a broken endpoint had is moved, not added: the budget is for repeating what others would meet as well.
        budget = pool.budget if pool is not None and reason not in WITHOUT_BUDGET else None
        if budget is not None and budget.share > 0 and lease.endpoint.found_broken:
            budget = None
        if budget is not None and not budget.has(now):
            return None
        order = tuple(sorted(call.pools, key=lambda name: self._spent.get(name, 0) >= SAME_POOL))
        exclude = self._tried | self._pools.laggards(order) if reason == "late" else self._tried
        following = admission.take(order, exclude)
        if following is None and not admission.worth_waiting(order, exclude):
            following = self._afresh(order) or admission.try_shut(order, exclude)
            if following is None:
                return None
        if budget is not None:
            budget.withdraw(now)
        if opened is not None:
            opened.response.close()
            lease.release(Result.BACKEND_ERROR)
        self._on_retry(lease.pool, reason)
        return following or await self._wait(order, urgent=True)

    def _afresh(self, order: tuple[str, ...]) -> Lease | None:
        """The same endpoint once more, where its kept connection broke before a byte: likely its idle limit's doing."""
        dropped, self._dropped = self._dropped, None
        return self._pools.admission.take(order, self._tried - {dropped}, dropped) if dropped else None

    async def _wait(self, order: tuple[str, ...], *, urgent: bool) -> Lease:
        call, began = self._call, self._pools.clock()
        exclude = self._tried if urgent else call.exclude
        try:
            return await self._pools.admission.wait(
                order, call.work(), call.priority, call.key, exclude=exclude, urgent=urgent
            )
        finally:
            self.waited += self._pools.clock() - began

    def _move(self, *, anyway: bool) -> None:
        """The endpoint was found dead: gives it up, as long as that is allowed and there is another, or `anyway`."""
        lease = self._lease
        self._give_up(lease, anyway, 0 if lease.endpoint.prefill.holds(lease) else TURNS)

    def _give_up(self, lease: Lease, anyway: bool, turns: int) -> None:
        """Does so after some turns of the event loop, unless the answer turns out to have come."""
        if self._moved or self._task is None or lease.move is None:
            return
        if turns:
            self._task.get_loop().call_soon(self._give_up, lease, anyway, turns - 1)
            return
        call, worth = self._call, self._pools.admission.worth_waiting
        held = lease.endpoint.prefill.holds(lease)
        elsewhere = self.count - held < call.attempts and call.again() and worth(tuple(call.pools), self._tried)
        if held and self.count == 1 and all(self._pools.find(name) is None for name in call.pools):
            # A reload took its pools away before anything was sent: it is for the caller to decide anew.
            elsewhere = True
        if elsewhere or anyway:
            self._moved, self._ended = True, not elsewhere
            self._task.cancel()


async def _attempt(lease: Lease, call: Call, pools: Pools) -> Opened:
    endpoint = lease.endpoint
    response = await endpoint.connector.send(
        call.method, call.target, call.headers(endpoint), call.body(lease.pool), endpoint.timeouts, lease.extra
    )
    status = response.status
    if status in (429, 503):
        others = sum(pool.ready for name in call.pools if (pool := pools.find(name)) is not None) > 1
        heed_refusal(lease, status, response.headers, pools.clock(), others=others)
    lease.refused = status >= 500
    streams = is_event_stream(response.headers)
    if status in RETRY_STATUSES or (streams and not call.wait_for_first):
        return Opened(lease, response, None, streams)
    try:
        first = await response.read()
        fault = fault_of(response, first, streams=streams, json=call.json)
        begun = not streams or first_event_ended(first)
        # A page, an error with a good status or a comment does not show that the engine works.
        if fault is None and begun and not lease.refused:
            lease.first_byte(pools.clock())
        if not begun or not (streams or response.ended or is_packed_stream(response.headers)):
            reading = first_event(response, first, lease.left(pools.clock())) if streams else _gather(response, first)
            first = await reading
            fault = fault_of(response, first, streams=streams, json=call.json)
    except BaseException:
        response.close()
        raise
    if fault is not None:
        lease.refused = True
        lease.client_fault = 400 <= fault < 500
    return Opened(lease, response, first, streams, fault)


async def _gather(response: Response, first: bytes) -> bytes:
    """The whole of a small answer, so that one that breaks off in the middle can still be asked for elsewhere."""
    pieces, size = [first], len(first)
    while first and not response.ended and size <= GATHER_BYTES:
        first = await response.read()
        pieces.append(first)
        size += len(first)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
