"""The gateway as the ingress deployment of a Ray Serve application: `gateway_app:application`.

Every replica is a whole gateway that `gateway.app.build` made, with its own probes and its own learning, shared through
Redis where a URL is given. Ray's proxies spread requests over replicas and add replicas by ongoing requests.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ray import serve
from ray.serve.config import AutoscalingConfig

METRICS = "PROMETHEUS_MULTIPROC_DIR"


class Options(BaseModel):
    """The application's arguments: `serve run gateway_app:application policy=FILE`, or `args` in serve.yaml."""

    policy: str
    """The policy file, at the same path on every node."""
    redis_url: str = ""
    """Shared limits and learning. Without it each replica has its own, and a key's limits hold per replica."""
    min_replicas: int = 1
    max_replicas: int = 4
    target_ongoing_requests: float = 64.0
    """Requests per replica, streams included, at which Ray adds another."""
    max_ongoing_requests: int = 1000
    """Beyond so many a replica gets no more; above the policy's own places and queues, so that these decide."""
    log_level: str = "info"


def application(options: Options) -> serve.Application:
    """The application that `serve run` and `serve deploy` start."""
    # Each deployment counts from zero; its replicas of one node count together, as workers of `gateway serve` do.
    folder = Path(tempfile.gettempdir()) / f"gateway-ray-{uuid.uuid4().hex}"

    def build_gateway() -> Any:
        # Runs in the replica. The metrics' folder must be known before anything of them is imported.
        folder.mkdir(mode=0o700, exist_ok=True)
        os.environ[METRICS] = str(folder)
        from gateway.app import build
        from gateway.logs import configure
        from gateway.policy.load import load_policy
        from gateway.settings import Settings

        configure("text", options.log_level)
        settings = Settings(policy=options.policy, redis_url=options.redis_url, host="127.0.0.1")
        return build(settings, load_policy(options.policy, os.environ), env=os.environ)

    deployment = serve.deployment(
        name="gateway",
        max_ongoing_requests=options.max_ongoing_requests,
        autoscaling_config=AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            target_ongoing_requests=options.target_ongoing_requests,
            upscale_delay_s=5,
            downscale_delay_s=300,
        ),
        ray_actor_options={"num_cpus": 1},
        health_check_period_s=10,
        # A replica that is scaled away lets its streams end; as long as the policy's server.grace or longer.
        graceful_shutdown_timeout_s=60,
    )(serve.ingress(build_gateway)())
    return deployment.bind()
