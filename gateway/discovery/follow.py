"""Which way each kind of place is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

from gateway.discovery.cluster import Cluster
from gateway.discovery.dns import Resolve, follow_name, system_resolver
from gateway.discovery.found import Follow, Listener, Sleep
from gateway.discovery.pods import follow_pods
from gateway.policy.schema import DnsName, Where


def follower(
    env: Mapping[str, str],
    rng: Random,
    *,
    resolve: Resolve = system_resolver,
    cluster: Cluster | None = None,
    sleep: Sleep = asyncio.sleep,
) -> Follow:
    """Follows names by `resolve`, and pods in the cluster that the environment tells of. Connects to nothing yet."""
    cluster = cluster or Cluster.of(env)

    def factor() -> float:
        return 0.9 + 0.2 * rng.random()

    async def follow(where: Where, listener: Listener) -> None:
        if isinstance(where, DnsName):
            await follow_name(where, listener, resolve, sleep, factor)
        else:
            await follow_pods(where, listener, cluster, sleep, factor)

    return follow
