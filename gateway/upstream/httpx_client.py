"""The other connector: httpx, for TLS, HTTP/2 and proxies. It behaves like the lean one, at several times the cost.

Each exchange runs in a task of its own that owns everything of httpx's. The task is cancelled exactly once, however
often its user is, because a second cancellation during httpcore's clean-up would leak the connection.

httpx cannot tell whether a server took a request before it closed an idle connection. After a reset the request counts
as not taken and is sent again once, on a new or freshly checked connection; after an orderly close it is not, and the
caller is told (Dropped). Nor can httpx receive an answer while it is still sending the body, or drop a connection on
which bytes follow an answer, so the lean connector copes better with back ends that break HTTP's rules.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy

import h11
import httpx

from gateway.errors import (
    BadUpstreamResponse,
    ConnectFailed,
    ConnectionLost,
    GatewayError,
    NothingAvailable,
    UpstreamTimeout,
)
from gateway.upstream.client import ConnectorStatistics, Dropped, Extra, Headers, Timeouts
from gateway.upstream.headers import SWITCHED, head_fault
from gateway.upstream.httpx_response import HttpxResponse


def translate(error: httpx.TransportError) -> GatewayError:
    """Our error for one of httpx's. Read timeouts are not among them, as this module enforces them itself."""
    match error:
        case httpx.ConnectTimeout():
            return UpstreamTimeout("connecting to the back end took too long", phase="connect")
        case httpx.PoolTimeout():
            return NothingAvailable("all connections to the back end are in use", retry_after=1)
        case httpx.TimeoutException():
            return UpstreamTimeout("the back end fell silent", phase="idle")
        case httpx.ConnectError() | httpx.ProxyError() | httpx.UnsupportedProtocol():
            return ConnectFailed(f"cannot connect to the back end: {error}")
        case httpx.RemoteProtocolError() if not _was_cut(error):
            # h11 tells a 101 by a state of its own.
            fault = SWITCHED if "_SWITCH_UPGRADE" in str(error) else error
            return BadUpstreamResponse(f"the back end did not answer in HTTP: {fault}")
        case httpx.LocalProtocolError():
            return BadUpstreamResponse(f"the exchange with the back end broke HTTP's rules: {error}")
    return ConnectionLost("the back end closed the connection before its answer was complete")


def _was_cut(error: httpx.RemoteProtocolError) -> bool:
    """Whether httpx's protocol error is merely a connection that ended too soon."""
    # Broken syntax is h11's complaint; httpcore itself raises for a missing answer and for HTTP/2's resets.
    core = error.__cause__
    complaint = core.__context__ if core else None
    return not isinstance(complaint, h11.RemoteProtocolError) or str(complaint).startswith("peer closed connection")


def _trusted(verify: bool | str) -> ssl.SSLContext | bool:
    """Whose certificates count: those of the bundle, of OpenSSL's own variables if one is set, else httpx's."""
    if isinstance(verify, str):
        return ssl.create_default_context(cafile=verify)
    if verify and ("SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ):
        # The library reads them itself, and takes one that leads nowhere for an empty list.
        return ssl.create_default_context()
    return verify


class _Reset(ConnectionLost):
    """An idle connection was reset before the answer's head."""


class HttpxConnector:
    """See `client.Connector`. `limit` bounds concurrent exchanges; 0 is no limit."""

    def __init__(
        self,
        origin: str,
        *,
        name: str | None = None,
        prefix: bytes = b"",
        limit: int = 0,
        keep_alive: float = 4.0,
        http2: bool = False,
        trust_env: bool = False,
        verify: bool | str = True,
    ) -> None:
        """`origin` is `scheme://host:port`; `name` stands in for its host in the Host header and for TLS; `verify` is
        False, or a path to a CA bundle."""
        context = _trusted(verify)
        self._url = httpx.URL(origin)
        self._name = name
        self._prefix = prefix
        self._limit = limit
        self._trust_env = trust_env
        self._client = httpx.AsyncClient(
            http2=http2,
            trust_env=trust_env,
            # Reading the system's certificates takes tens of milliseconds, in vain where no TLS can occur.
            verify=context if self._url.scheme == "https" or trust_env else False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=keep_alive),
            # A cookie of one client's answer must not travel with another's request.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )
        self._exchanges: set[HttpxResponse] = set()
        self._opened = 0
        self._closing = False

    async def send(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
        extra: Extra | None = None,
    ) -> HttpxResponse:
        if self._limit and len(self._exchanges) >= self._limit:
            raise NothingAvailable("all connections to the back end are in use", retry_after=1)
        if any(b"\n" in part or b"\r" in part for pair in [(target, b""), *headers] for part in pair):
            raise ValueError("a line break in a request's target or headers")
        if extra is not None and timeouts.first_byte is not None:
            # Asked at once, not when it is late: beside all that httpx does it costs nothing.
            timeouts = replace(timeouts, first_byte=timeouts.first_byte + extra())
        response = self._start(method, target, headers, body, timeouts)
        try:
            await response.wait_for_head()
        except _Reset:
            if not isinstance(body, bytes):
                raise
            response = self._start(method, target, headers, body, timeouts)
            await response.wait_for_head()
        return response

    def statistics(self) -> ConnectorStatistics:
        pool = getattr(self._client._transport_for_url(self._url), "_pool", None)
        # httpx has no public access to its pool; if a later httpx has no such attribute, the figure is 0.
        idle = sum(connection.is_idle() for connection in pool.connections) if pool is not None else 0
        return ConnectorStatistics(active=len(self._exchanges), idle=idle, opened=self._opened)

    def __repr__(self) -> str:
        return f"<HttpxConnector {self._url} {self.statistics()}>"

    async def aclose(self) -> None:
        self._closing = True
        if not self._exchanges:
            await self._client.aclose()

    def _start(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
    ) -> HttpxResponse:
        if self._client.is_closed:
            raise ConnectFailed("the connector is closed")
        response = HttpxResponse(timeouts)

        async def trace(event: str, info: Mapping[str, object]) -> None:
            if event.endswith("connect_tcp.complete"):
                self._opened += 1
            response.on_event(event)

        limits = {"connect": timeouts.connect, "write": timeouts.idle, "read": None, "pool": None}
        extensions: dict[str, object] = {"timeout": limits, "trace": trace}
        url = self._url
        if self._trust_env:
            # httpcore would send the "target" extension to a proxy, in place of the absolute URL or CONNECT's address.
            url = url.copy_with(raw_path=self._prefix + target)
        else:
            extensions["target"] = self._prefix + target
        if self._name is not None:
            extensions["sni_hostname"] = self._name
            port = f":{self._url.port}" if self._url.port else ""
            headers = [(b"host", f"{self._name}{port}".encode("ascii")), *headers]
        request = httpx.Request(method.decode("ascii"), url, headers=headers, content=body, extensions=extensions)
        task = asyncio.get_running_loop().create_task(self._run(request, response))
        self._exchanges.add(response)
        response.attach(task)
        return response

    async def _run(self, request: httpx.Request, response: HttpxResponse) -> None:
        error: Exception | None = None
        try:
            await self._relay(request, response)
        except (httpx.ReadError, httpx.WriteError) as lost:
            fresh = not response.reused or response.has_head
            error = translate(lost) if fresh else _Reset("the back end had closed the connection")
        except httpx.TransportError as failed:
            error = translate(failed)
            if type(error) is ConnectionLost and response.reused and not response.has_head:
                error = Dropped("the back end closed the connection without an answer")
        except Exception as other:
            # Ours (broken framing), or whatever the body's iterator raised, which belongs to the caller of `send`.
            error = other
        finally:
            self._exchanges.discard(response)
            if self._closing and not self._exchanges:
                await self._client.aclose()
        response.on_end(error)

    async def _relay(self, request: httpx.Request, response: HttpxResponse) -> None:
        answer = await self._client.send(request, stream=True)
        try:
            headers = [(name.lower(), value) for name, value in answer.headers.raw]
            if fault := head_fault(answer.status_code, headers):
                raise BadUpstreamResponse(f"the back end did not answer in HTTP: {fault}")
            response.on_head(answer.status_code, headers)
            async for piece in answer.aiter_raw():
                await response.on_piece(piece)
        finally:
            await answer.aclose()
