"""Chooses how each kind of source is followed: DNS names or Kubernetes pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from gateway.discovery.dns import Resolve, follow_name, system_resolver
from gateway.discovery.found import Follow, Listener, Sleep
from gateway.policy.schema import DnsName, Where

if TYPE_CHECKING:
    from gateway.discovery.cluster import Cluster


def follower(
    env: Mapping[str, str],
    rng: Random,
    *,
    resolve: Resolve = system_resolver,
    cluster: Cluster | None = None,
    sleep: Sleep = asyncio.sleep,
) -> Follow:
    """Follows names with `resolve`, and pods in the cluster that the environment names. Connects to nothing yet."""

    def factor() -> float:
        return 0.9 + 0.2 * rng.random()

    async def follow(where: Where, listener: Listener) -> None:
        if isinstance(where, DnsName):
            await follow_name(where, listener, resolve, sleep, factor)
        else:
            # Imported here because of httpx, which only gateways that look for pods need at the start.
            from gateway.discovery.cluster import Cluster
            from gateway.discovery.pods import follow_pods

            await follow_pods(where, listener, cluster or Cluster.of(env), sleep, factor)

    return follow
