"""Operators' routes, on FastAPI: health, readiness, metrics, model list, explain, pools, policy, recent decisions."""

from __future__ import annotations

import asyncio
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import Gauge
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gateway.api.body import unpacked
from gateway.api.core import Core
from gateway.api.downstream import error_headers
from gateway.api.dry_run import explain
from gateway.api.head import read_head
from gateway.api.models import ModelList
from gateway.api.served import not_served, unready
from gateway.api.troubles import troubles
from gateway.discovery.keeper import counts
from gateway.errors import BadRequest, BodyTooLarge, GatewayError, MethodNotAllowed, NotFound
from gateway.exposition import page
from gateway.policy.describe import describe
from gateway.policy.schema import AccessKey
from gateway.policy.watch import ReloadState

GAUGE_SECONDS = 1.0
MOST_DECISIONS = 1000
SHOWN_BYTES = 80
"""Characters of a refused parameter that the error shows."""


def ops_router(core: Core, models: ModelList, reload_state: Callable[[], ReloadState | None]) -> APIRouter:
    """Everything that is not on the request path."""
    router = APIRouter()
    router.include_router(_for_everybody(core, models))
    router.include_router(_for_operators(core, reload_state))
    return router


def only_operators(core: Core) -> Any:
    """A dependency that admits operators only. It raises Unauthorized or Forbidden."""

    def operator(request: Request) -> None:
        core.active.keyring.check_operator(read_head(request.scope["headers"]).credential)

    return Depends(operator)


def _for_everybody(core: Core, models: ModelList) -> APIRouter:
    router = APIRouter()

    def client(request: Request) -> AccessKey | None:
        """The client's key, as on the request path. Raises Unauthorized."""
        return core.active.keyring.check(read_head(request.scope["headers"]).credential)

    @router.get("/health", summary="Alive")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/ready", summary="Ready: every model has a pool that can take traffic")
    async def ready() -> Response:
        missing = unready(core)
        state = core.store.status()
        status = "draining" if core.draining else "unready" if missing else "ready"
        body: dict[str, Any] = {"status": status, "models_without_pool": missing, "state": state.object()}
        if found := core.watch.view.disagreements():
            body["drafting_disagreements"] = [asdict(one) for one in found]
        if troubled := troubles(core):
            body["endpoints"] = [asdict(one) for one in troubled]
        if lacking := not_served(core):
            body["models_not_served"] = [asdict(one) for one in lacking]
        if failing := core.discovery.problems():
            body["discovery"] = [asdict(one) for one in failing]
        return JSONResponse(body, status_code=200 if status == "ready" else 503)

    @router.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        refresh_gauges(core)
        accept = request.headers.get("accept", "")
        # Telemetry is read here, where it changes; the text is made in a thread.
        families = list(core.watch.collector().collect())
        live, exemplars = core.metrics.shown_endpoints, core.metrics.exemplars()
        body, kind = await asyncio.to_thread(page, core.metrics.registry, families, accept, live, exemplars)
        return Response(body, headers={"content-type": kind})

    @router.get("/v1/models", summary="Models of the policy")
    async def model_list(request: Request) -> dict[str, Any]:
        return await models.everything(client(request))

    @router.get("/v1/models/{name:path}", summary="One model, by name or alias")
    async def model(name: str, request: Request) -> dict[str, Any]:
        return await (models.one(name, client(request)) if name else models.everything(client(request)))

    return router


def _for_operators(core: Core, reload_state: Callable[[], ReloadState | None]) -> APIRouter:
    router = APIRouter(dependencies=[only_operators(core)])

    @router.post(
        "/gateway/explain",
        summary="The decision for an OpenAI request body; nothing is sent upstream",
    )
    async def explained(request: Request) -> dict[str, Any]:
        active = core.active
        head = read_head(request.scope["headers"], active.policy.header_names)
        limit = active.policy.server.max_body_bytes
        body = await unpacked(head, await _body(request, limit), limit)
        return explain(active, core.learned, core.watch, body, head)

    @router.get("/gateway/pools", summary="Pools and endpoints as they are now")
    async def pools() -> dict[str, Any]:
        return {
            "pools": [describe_pool(core, name) for name in core.active.policy.pools],
            "mtp": [report.as_dict() for report in core.watch.checklist.reports()],
            "slices": [row.as_dict() for row in core.watch.slices()],
            "models": core.active.router.describe(core.watch),
            "telemetry": core.watch.view.statistics(),
        }

    @router.get("/gateway/policy", summary="The live policy and its last reload; no secrets")
    async def policy() -> dict[str, Any]:
        active, state = core.active, reload_state()
        return {
            "version": active.version,
            "hash": active.policy.version_hash,
            "source": active.policy.source,
            "reload": asdict(state) if state else None,
            "policy": describe(active.policy),
            "canary": core.canary.object() if core.canary else None,
        }

    @router.get("/gateway/decisions", summary="The last decisions, newest first; no text")
    async def decisions(limit: Annotated[int, Query(ge=1, le=MOST_DECISIONS)] = 100) -> dict[str, Any]:
        """`scope` says whose decisions these are: `all`, or those of the one `process` of several that answered."""
        rows, everybodys = await core.decisions.newest(limit)
        processes = core.store.status().replicas
        scope = "all" if everybodys or processes == 1 else "process"
        return {"decisions": rows, "scope": scope, "processes": processes, "process": os.getpid()}

    return router


async def _body(request: Request, limit: int) -> bytes:
    """Raises BodyTooLarge, and ClientDisconnect where the client leaves before its end."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise BodyTooLarge(f"the body has over {limit} bytes (server.max_body_bytes)")
    return bytes(body)


def refresh_gauges(core: Core) -> None:
    """Sets the gauges from the live objects, so that they cannot drift, and settles what was counted.

    A removed endpoint is neither up nor down, and nothing waits for a removed pool.
    """
    metrics = core.metrics
    metrics.settle()
    live = {(pool.name, endpoint.url) for pool in core.pools for endpoint in pool.endpoints}
    for gone in metrics.shown_endpoints - live:
        _drop(metrics.in_flight, 0, *gone)
        _drop(metrics.endpoint_up, math.nan, *gone)
    metrics.shown_endpoints = live
    pools = {pool.name for pool in core.pools}
    for name in metrics.shown_pools - pools:
        for gauge in (metrics.waiting, metrics.held, metrics.in_flight_limit):
            _drop(gauge, 0, name)
    metrics.shown_pools = pools
    for pool in core.pools:
        metrics.waiting.labels(pool.name).set(pool.waiting)
        metrics.held.labels(pool.name).set(sum(endpoint.held for endpoint in pool.endpoints))
        metrics.in_flight_limit.labels(pool.name).set(pool.policy.limits.in_flight)
        for endpoint in pool.endpoints:
            metrics.in_flight.labels(pool.name, endpoint.url).set(endpoint.in_flight)
            metrics.endpoint_up.labels(pool.name, endpoint.url).set(endpoint.available())
    found = counts(core.discovery.states())
    # A pool whose sources a reload has removed must not stay marked as failing.
    for name, (endpoints, failing) in {**dict.fromkeys(metrics.shown_sources - found.keys(), (0, 0)), **found}.items():
        metrics.discovered.labels(name).set(endpoints)
        metrics.discovery_failing.labels(name).set(failing)
    metrics.shown_sources = set(found)
    metrics.policy_version.set(core.active.version)
    state = core.store.status()
    metrics.state_connected.labels(state.home).set(state.connected)


def _drop(gauge: Gauge, last: float, *labels: str) -> None:
    """Removes a series, after a last value for the workers' shared files."""
    gauge.labels(*labels).set(last)
    # Discovered endpoints keep getting new addresses. With several workers a few bytes stay in the shared files,
    # which the page leaves out; that is what the library warns of.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        gauge.remove(*labels)


async def keep_gauges(core: Core) -> None:
    """Refreshes the gauges every second and at the end: with several workers another one may answer the next scrape."""
    try:
        while True:
            refresh_gauges(core)
            await asyncio.sleep(GAUGE_SECONDS)
    finally:
        refresh_gauges(core)


def describe_pool(core: Core, name: str) -> dict[str, Any]:
    """One pool and its endpoints as they are now, JSON-ready. Raises KeyError for a pool that the policy lacks."""
    pool = core.active.policy.pools[name]
    live = next((p for p in core.pools if p.name == name), None)
    others = core.store.others.endpoints
    return {
        "pool": name,
        "kind": pool.kind.value,
        "speculative_tokens": pool.speculative.tokens if pool.speculative else 0,
        "in_flight": live.in_flight if live else 0,
        "waiting": live.waiting if live else 0,
        "limit": pool.limits.in_flight,
        "discovery": [asdict(state) for state in core.discovery.states() if state.pool == name],
        "endpoints": [
            {
                "url": s.url,
                "up": s.up,
                "draining": s.draining,
                "gate": s.gate.value,
                "trip": s.trip.value if s.trip else None,
                "in_flight": s.in_flight,
                "held": s.held,
                "prompt_tokens": s.prompt_tokens,
                "started": s.started,
                "consecutive_failures": s.failures,
                "weight": s.weight,
                "slice": s.slice,
                "doubted": s.doubted,
                "elsewhere": asdict(elsewhere) if (elsewhere := others.get(f"{name} {s.url}")) else None,
            }
            for s in (endpoint.statistics() for endpoint in (live.endpoints if live else ()))
        ],
    }


def shape_errors(frame: FastAPI) -> None:
    """Gives the frame's own errors the shape of all other errors."""

    @frame.exception_handler(GatewayError)
    async def _ours(_: Request, error: GatewayError) -> Response:
        response = Response(error.body(), status_code=error.status, media_type="application/json")
        response.raw_headers += error_headers(error)
        return response

    @frame.exception_handler(ClientDisconnect)
    async def _left(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # Nobody reads it; unhandled it would be a fault in the log.

    @frame.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        kind = {404: NotFound, 405: MethodNotAllowed}.get(error.status_code, BadRequest)
        return Response(
            kind(str(error.detail)).body(),
            status_code=error.status_code,
            headers=error.headers,
            media_type="application/json",
        )

    @frame.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        bad = bad_parameter(error.errors(), request.scope.get("route"))
        return Response(bad.body(), status_code=bad.status, media_type="application/json")


def bad_parameter(rows: Sequence[Mapping[str, Any]], route: object) -> BadRequest:
    """The first parameter that cannot be used: its name, what came, and what the route takes instead."""
    row = rows[0]
    name = str(row["loc"][-1])
    came = str(row.get("input"))
    shown = came if len(came) <= SHOWN_BYTES else came[:SHOWN_BYTES] + "..."
    return BadRequest(f"`{name}` is `{shown}`; it must be {_allowed(name, row, route)}", param=name)


def _allowed(name: str, row: Mapping[str, Any], route: object) -> str:
    """In words, from the route's own declaration: the frame's error tells only the bound that was passed."""
    fields = route.dependant.query_params if isinstance(route, APIRoute) else []
    rules = [rule for field in fields if field.alias == name for rule in field.field_info.metadata]
    low, high = ([getattr(rule, end) for rule in rules if hasattr(rule, end)] for end in ("ge", "le"))
    return f"a whole number from {low[0]} to {high[0]}" if low and high else f"otherwise: {row['msg']}"
