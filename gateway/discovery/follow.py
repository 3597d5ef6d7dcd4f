"""Which way each kind of place is followed."""

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
    """Follows names by `resolve`, and pods in the cluster that the environment tells of. Connects to nothing yet."""

    def factor() -> float:
        return 0.9 + 0.2 * rng.random()

    async def follow(where: Where, listener: Listener) -> None:
        if isinstance(where, DnsName):
            await follow_name(where, listener, resolve, sleep, factor)
        else:
            # With httpx, which only those need at the start that look for pods.
            from gateway.discovery.cluster import Cluster
            from gateway.discovery.pods import follow_pods

            await follow_pods(where, listener, cluster or Cluster.of(env), sleep, factor)

    return follow
