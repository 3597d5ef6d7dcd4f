"""From a Redis URL to a way of making clients.

redis://[user:password@]host[:6379][/db]           one server; rediss:// with TLS
unix:///path/to/redis.sock[?db=N]                  one server on this machine
redis+sentinel://[...@]host[:26379],host/name[/db] the master `name` that these Sentinels agree on; rediss+sentinel://
redis+cluster://[...@]host[:6379],host             a cluster, found from any of its nodes; rediss+cluster://

Query parameters are redis-py's (`?ssl_ca_certs=/path`), besides two of our own: `prefix=NAME` keeps several gateways
apart on one server (default `gateway`), `sentinel_password=...` is for the Sentinels themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from gateway.settings import InvalidSetting
from gateway.state.lane import Client, Pipeline

_FORMS = "redis://, rediss://, unix://, redis+sentinel://HOST,HOST/NAME or redis+cluster://HOST,HOST"


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, read."""

    connect: Callable[[float], Client]
    """Makes a client that has no connection yet; the argument limits each wait for the socket, in seconds."""
    prefix: str
    """The first part of every key."""


def read_url(url: str) -> Address:
    """Raises InvalidSetting for a URL that no client can be made of; the message quotes no credentials."""
    try:
        return _read(url)
    except (ValueError, TypeError) as error:
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting(f"the Redis URL cannot be read; it must be {_FORMS}") from None


def _read(url: str) -> Address:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    prefix = query.pop("prefix", "gateway")
    sentinel_password = query.pop("sentinel_password", None)
    tls, _, kind = parts.scheme.partition("+")
    user, _, hosts = parts.netloc.rpartition("@")
    if not kind and tls in ("redis", "rediss", "unix"):
        plain = urlunsplit((tls, parts.netloc, parts.path, urlencode(query), ""))
        if tls == "unix":
            # urlunsplit leaves out the empty host that redis-py wants to see.
            plain = f"unix://{parts.netloc}{parts.path}" + (f"?{urlencode(query)}" if query else "")
        _options(plain)
        return Address(lambda wait: _single(plain, wait), prefix)
    if kind not in ("sentinel", "cluster") or tls not in ("redis", "rediss"):
        raise InvalidSetting(f"the Redis URL begins with {parts.scheme}://; it must be {_FORMS}")
    nodes = [_host_port(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(",")]
    name, _, db = parts.path.strip("/").partition("/")
    if kind == "sentinel" and not name:
        raise InvalidSetting("the Redis URL names no master; it must be redis+sentinel://HOST,HOST/NAME")
    login = f"{user}@" if user else ""
    path = db if kind == "sentinel" else ""
    options = _options(urlunsplit((tls, f"{login}any", path, urlencode(query), "")))
    options.pop("host", None)
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    if kind == "cluster":
        return Address(lambda wait: _cluster(nodes, options, wait), prefix)
    return Address(lambda wait: _behind_sentinel(nodes, name, sentinel_password, options, wait), prefix)


def _options(url: str) -> dict[str, Any]:
    return dict(parse_url(url))


def _host_port(text: str, default: int) -> tuple[str, int]:
    parts = urlsplit("//" + text)
    if not parts.hostname:
        raise InvalidSetting(f"the Redis URL has an empty host; it must be {_FORMS}")
    return parts.hostname, parts.port or default


def _limits(wait: float) -> dict[str, Any]:
    # No retries inside the client: the lane knows better whether anybody still waits.
    return {"socket_timeout": wait, "socket_connect_timeout": wait, "retry": Retry(NoBackoff(), 0)}


class _Servers:
    """redis-py's clients in the form that a lane needs."""

    def __init__(self, client: Any, *others: Any, **pipeline: Any) -> None:
        self._client = client
        self._others = others
        self._pipeline = pipeline

    def pipeline(self) -> Pipeline:
        made: Pipeline = self._client.pipeline(**self._pipeline)
        return made

    async def aclose(self) -> None:
        for client in (self._client, *self._others):
            await client.aclose()


def _single(url: str, wait: float) -> Client:
    return _Servers(Redis.from_url(url, **_limits(wait)), transaction=False)


def _behind_sentinel(
    nodes: list[tuple[str, int]], name: str, password: str | None, options: dict[str, Any], wait: float
) -> Client:
    own = {**_limits(wait), "password": password, **({"ssl": True} if options.get("ssl") else {})}
    # redis-py leaves this constructor without types.
    make: Any = Sentinel
    sentinel = make(nodes, sentinel_kwargs=own, **options, **_limits(wait))
    return _Servers(sentinel.master_for(name), *sentinel.sentinels, transaction=False)


def _cluster(nodes: list[tuple[str, int]], options: dict[str, Any], wait: float) -> Client:
    startup = [ClusterNode(host, port) for host, port in nodes]
    return _Servers(RedisCluster(startup_nodes=startup, **options, **_limits(wait)))
