"""`/v1/responses/{id}` and `/v1/responses/{id}/cancel`: sent to the endpoint that stores the response.

vLLM stores responses in the process that made them. So the id is read from the beginning of every answer to
`/v1/responses` and kept with its endpoint, for the latest `KEPT` answers of this process. For an unknown id (of another
worker or replica, or from before a restart) each endpoint is asked in turn, and the first that knows it answers; so
nothing needs to be shared. Such a request costs no engine time and is not queued.

An id that was made under one key is unknown to other keys. Ids of other workers are protected only by being secret.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.api.body import read_body
from gateway.api.core import Core
from gateway.api.dialect import RESPONSES, Dialect
from gateway.api.forward import admit, relay, rewriting
from gateway.api.handler import Handler, Incoming
from gateway.api.passthrough import allowed, check_path
from gateway.api.sending import request_headers, request_target
from gateway.errors import ConnectFailed, MethodNotAllowed, NotFound, NothingAvailable, UpstreamError, UpstreamTimeout
from gateway.policy.schema import AccessKey, Model, Policy
from gateway.types import Decision, Reason, Result
from gateway.upstream.call import Opened
from gateway.upstream.headers import is_event_stream
from gateway.upstream.lease import Lease

KEPT = 20_000
_ID = re.compile(rb'"id"\s*:\s*"([\x21\x23-\x5b\x5d-\x7e]{1,256})"')
PREFIX = "/v1/responses/"


@dataclass(frozen=True, slots=True)
class Home:
    """Where a response is stored."""

    model: str
    pool: str
    endpoint: str
    asked: str | None
    """The client's name for the model."""
    served: str
    key: str | None


class Homes:
    """The latest responses by id; a bounded number, of which the oldest is forgotten first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._homes: OrderedDict[str, Home] = OrderedDict()

    def learn(self, beginning: bytes, home: Home) -> None:
        """Reads the id from the beginning of an answer, whose first `id` is the response's own."""
        if found := _ID.search(beginning):
            self._homes[found[1].decode()] = home
            if len(self._homes) > self._kept:
                self._homes.popitem(last=False)

    def find(self, response_id: object, key: AccessKey | None) -> Home | None:
        """Raises NotFound for a response of another key."""
        home = self._homes.get(response_id) if isinstance(response_id, str) else None
        if home is not None and key is not None and home.key != key.name:
            raise NotFound(f"no response with id `{str(response_id)[:80]}`")
        return home


class StoredResponse(Handler):
    """One response by its id."""

    def __init__(self, core: Core, homes: Homes) -> None:
        super().__init__(core)
        self._homes = homes

    def dialect(self, path: str) -> Dialect:
        return RESPONSES

    async def serve(self, incoming: Incoming) -> None:
        scope, exchange, policy = incoming.scope, incoming.exchange, incoming.active.policy
        check_path(scope["raw_path"])
        if scope["method"] not in ("GET", "POST", "DELETE"):
            error = MethodNotAllowed(f"{scope['path']} takes GET, POST and DELETE")
            error.allow = "GET, POST, DELETE, OPTIONS"
            raise error
        raw = await read_body(incoming)
        home = self._homes.find(scope["path"].removeprefix(PREFIX).partition("/")[0], exchange.key)
        model = _model(policy, home, exchange.key)
        await admit(self.core, incoming, model, 0, 0)
        exchange.decision = Decision(
            model=model.name, pool=home.pool if home else model.pools[0], reason=Reason.PASS_THROUGH
        )
        total = policy.pools[exchange.decision.pool].timeouts.total if exchange.decision.pool in policy.pools else None
        deadline = None if total is None else exchange.started + total
        with self.core.deadlines.until(deadline):
            opened = await self._open(incoming, home, raw)
            exchange.lease, exchange.response = opened.lease, opened.response
        rewrite = None
        if home is not None and (rewrite := rewriting(policy, home.asked, home.served)) is not None:
            exchange.served = home.served
        await relay(self.core, incoming, opened, rewrite, deadline)

    async def _open(self, incoming: Incoming, home: Home | None, raw: bytes) -> Opened:
        """The answer of the endpoint that has the response; else the last endpoint's own answer.

        Raises UpstreamError, UpstreamTimeout or NothingAvailable where no endpoint answers.
        """
        last: Opened | None = None
        failure: UpstreamError | UpstreamTimeout | None = None
        for lease in self._places(incoming, home):
            if last is not None:
                last.response.close()
                last.lease.release(Result.OK)
            try:
                last = await self._ask(incoming, lease, raw)
            except (UpstreamError, UpstreamTimeout) as error:
                last, failure = None, error
                continue
            if last.response.status != 404:
                return last
        if last is not None:
            return last
        raise failure or NothingAvailable("no endpoint that may have this response is up", retry_after=1)

    def _places(self, incoming: Incoming, home: Home | None) -> Iterator[Lease]:
        """A place at the response's endpoint, or at each one in turn."""
        policy, key = incoming.active.policy, incoming.exchange.key
        models = [model for model in policy.models.values() if model.pools and may_use(key, model)]
        usable = dict.fromkeys(name for model in models for name in allowed(model, key))
        for pool in self.core.pools:
            if pool.name not in usable or (home is not None and pool.name != home.pool):
                continue
            urls = {endpoint.url for endpoint in pool.endpoints}
            for url in urls if home is None else urls & {home.endpoint}:
                if (lease := pool.lease(urls - {url})) is not None:
                    yield lease

    async def _ask(self, incoming: Incoming, lease: Lease, raw: bytes) -> Opened:
        exchange, endpoint = incoming.exchange, lease.endpoint
        exchange.attempts += 1
        exchange.endpoint, exchange.sent_upstream = endpoint.url, self.core.clock()
        try:
            response = await endpoint.connector.send(
                incoming.scope["method"].encode(),
                request_target(incoming),
                request_headers(incoming, endpoint),
                raw,
                endpoint.timeouts,
            )
        except ConnectFailed:
            lease.release(Result.BACKEND_ERROR)
            raise
        except BaseException:
            # A response that is missing or slow to come says nothing about how the engine answers others.
            lease.release(Result.CLIENT_CLOSED)
            raise
        return Opened(lease, response, None, is_event_stream(response.headers))


def may_use(key: AccessKey | None, model: Model) -> bool:
    return (key is None or key.models is None or model.name in key.models) and (
        key is None or key.pools is None or bool(key.pools & set(model.pools))
    )


def _model(policy: Policy, home: Home | None, key: AccessKey | None) -> Model:
    """For the record, and for the key's limits. Raises NotFound for a key that may use nothing."""
    if home is not None and (known := policy.models.get(home.model)) is not None:
        return known
    usable = (model for model in policy.models.values() if model.pools and may_use(key, model))
    if (first := next(usable, None)) is None:
        raise NotFound("no response with this id")
    return first
