"""Chooses the connector for an endpoint's URL: the lean one for plain `http://`, httpx for everything else."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from gateway.upstream.client import Connector
from gateway.upstream.lean import LeanConnector

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept; vLLM's server closes it after 5."""


def connect(
    url: str,
    *,
    host: str | None = None,
    via: Literal["auto", "lean", "httpx"] = "auto",
    limit: int = 0,
    keep_alive: float = KEEP_ALIVE,
    http2: bool = False,
    trust_env: bool = False,
    verify: bool | str = True,
) -> Connector:
    """The connector for one origin; opens nothing yet. A path in the URL is put before every target.

    `host` is the name that was resolved to the address in the URL, for the Host header and for TLS. `limit` bounds
    concurrent exchanges (0: no limit). `http2`, `trust_env` (proxies from the environment) and https need httpx, which
    `auto` chooses then; `verify` (False, or a path to a CA bundle) is for https.

    Raises ValueError for a URL that is not `http(s)://host[:port][/path]`, and for `via="lean"` with what it cannot do.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http:// or https:// URL: {url!r}")
    if parts.username or parts.query or parts.fragment:
        raise ValueError(f"a back end's URL must have no user, query or fragment: {parts.hostname}")
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    prefix = parts.path.rstrip("/").encode("ascii")
    needs_httpx = tls or http2 or trust_env
    if via == "lean" and needs_httpx:
        raise ValueError("the lean connector supports plain HTTP/1.1 only, without a proxy")
    if via == "lean" or (via == "auto" and not needs_httpx):
        return LeanConnector(parts.hostname, port, name=host, prefix=prefix, limit=limit, keep_alive=keep_alive)
    # The import is a good part of the start, and vLLM speaks plain HTTP.
    from gateway.upstream.httpx_client import HttpxConnector

    address = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return HttpxConnector(
        f"{parts.scheme}://{address}:{port}",
        name=host,
        prefix=prefix,
        limit=limit,
        keep_alive=keep_alive,
        http2=http2,
        trust_env=trust_env,
        verify=verify,
    )
