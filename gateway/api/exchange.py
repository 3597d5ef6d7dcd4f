"""The record of one request while it runs, and the one place where it ends.

`Exchange.finish` closes the upstream answer, releases the lease and makes the `Outcome`, exactly once, however the
request ends. Metrics, logs and learning read the outcome; nothing else learns from a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.access.ticket import Ticket
from gateway.policy.schema import AccessKey, Policy
from gateway.types import Decision, Estimate, Features, Outcome, Reason, Result, Trace, Usage
from gateway.upstream.client import Response
from gateway.upstream.lease import Lease

Observer = Callable[[Outcome], None]


class Exchange:
    """Mutable on purpose: each hop writes what it finds, and `finish` reads it."""

    __slots__ = (
        "_observers",
        "attempts",
        "canary",
        "decision",
        "endpoint",
        "error",
        "estimate",
        "features",
        "finish_reason",
        "finished",
        "first_byte",
        "key",
        "lease",
        "model",
        "on_first",
        "policy",
        "questions",
        "request_id",
        "response",
        "result",
        "sent_upstream",
        "served",
        "started",
        "status",
        "ticket",
        "trace",
        "translated",
        "usage",
        "waited",
        "whole",
    )

    def __init__(self, request_id: str, started: float, observers: Sequence[Observer]) -> None:
        self.request_id = request_id
        self.started = started
        self._observers = observers
        self.features: Features | None = None
        self.estimate: Estimate | None = None
        self.decision: Decision | None = None
        self.key: AccessKey | None = None
        self.ticket: Ticket | None = None
        self.trace: Trace | None = None
        self.canary: str | None = None
        """The canary policy's hash, if the canary decides."""
        self.policy: Policy | None = None
        """The one that decided anew after a reload; None: the one that was live when the request came."""
        self.model: str | None = None
        """The policy's, once it is known."""
        self.lease: Lease | None = None
        self.response: Response | None = None
        self.endpoint: str | None = None
        self.served: str | None = None
        """The model's name at the back end, where the answer is written to have the client's."""
        self.sent_upstream: float | None = None
        self.waited = 0.0
        self.whole = False
        """Whether the whole answer, up to its end mark, had been sent when the client left."""
        self.first_byte: float | None = None
        self.attempts = 0
        self.questions = 0
        """Those of the attempts that asked for a label only: nothing of the request itself was sent."""
        self.translated: tuple[str, ...] = ()
        """Fields of the body that were translated to their new name."""
        self.on_first: Callable[[bytes], None] | None = None
        """Called with the beginning of the back end's answer: a stream's first event, else all that was gathered."""
        self.status = 0
        self.result = Result.BACKEND_ERROR
        """Set by the hops; a request that ends without explanation counts as failed."""
        self.error: str | None = None
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.finished = False

    def went_to(self, pool: str | None) -> None:
        """Notes in which pool it was tried last: another one may have had a place sooner, or have taken over. What is
        counted and learned from the end is about that one."""
        decided = self.decision
        if decided is None or pool is None or decided.pool == pool:
            return
        reason = decided.reason if decided.reason is Reason.PASS_THROUGH else Reason.SPILL
        self.decision = replace(decided, pool=pool, reason=reason, detail="", endpoint=None)

    def finish(self, now: float) -> None:
        """Ends the request. A second call does nothing."""
        if self.finished:
            return
        self.finished = True
        if self.response:
            self.response.close()
        if self.lease:
            self.lease.release(self.result)
        if self.ticket:
            self.ticket.settle(self.usage, reached=self.attempts > 0)
        outcome = Outcome(
            request_id=self.request_id,
            result=self.result,
            status=self.status,
            started=self.started,
            ended=now,
            features=self.features,
            estimate=self.estimate,
            decision=self.decision,
            endpoint=self.endpoint,
            usage=self.usage,
            finish_reason=self.finish_reason,
            sent_upstream=self.sent_upstream,
            waited=self.waited,
            first_byte=self.first_byte,
            attempts=self.attempts,
            key=self.key.name if self.key else None,
            error=self.error,
            trace=self.trace,
            canary=self.canary,
            model=self.model,
        )
        for observe in self._observers:
            observe(outcome)
