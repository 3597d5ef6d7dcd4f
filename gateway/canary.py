"""The canary: a second policy that decides for a share of the requests for real, before it may decide for all.

It tries its `routing`, its `models` and its pools' `refuses`. Everything else (endpoints, limits, keys, the server,
logging) remains the live policy's, so its pools must be among the live ones. An invalid file changes nothing, and one
with pools that are not live takes no requests. The share is in the canary's own file (`canary: {share: 0.1}`), which
is watched: a new share takes effect within two seconds.

Both policies learn speeds and conversations together, as they use the same pools. How they compare is counted in
`gateway_canary_*`, see `gateway.decisions.canary`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, replace
from random import Random
from types import MappingProxyType
from typing import Any

from gateway.api.core import Active, Learned, Trial
from gateway.decisions.canary import CanaryJudge
from gateway.policy.describe import describe
from gateway.policy.load import PolicyInvalid, load_policy
from gateway.policy.schema import Model, Policy, Pool
from gateway.policy.watch import PolicyWatcher
from gateway.routing.router import Router

log = logging.getLogger("gateway.canary")


class Canary:
    """The canary's file, and what it makes of each live policy."""

    def __init__(
        self,
        path: str,
        env: Mapping[str, str],
        learned: Learned,
        judge: CanaryJudge,
        rng: Random,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when the file changes, and should call `beside` again. Raises PolicyInvalid."""
        self.judge = judge
        self.policy = load_policy(path, env)
        self.problem: str | None = None
        """Why it takes no requests although it has a share; None if nothing is wrong."""
        self._state = learned.routing.beside(rng)
        self._draw = rng.random
        self._on_change = on_change
        self._watcher = PolicyWatcher(path, env, self.policy, on_change=self._adopt, on_failure=_not_reloaded)

    def run(self) -> Coroutine[Any, Any, None]:
        """Follows the file until cancelled."""
        return self._watcher.run()

    def beside(self, live: Active) -> Active:
        """The live policy, with the canary deciding for its share if it has one."""
        missing = sorted(
            {pool for model in self.policy.models.values() for pool in model.pools} - set(live.policy.pools)
        )
        problem = f"the live policy has no pool {', '.join(missing)}" if missing else None
        if problem and problem != self.problem:
            log.error("the canary takes no requests", extra={"fields": {"problem": problem}})
        self.problem = problem
        share = 0.0 if problem else self.policy.canary.share
        self.judge.adopt(live.policy, share)
        if not share:
            return replace(live, trial=None, header_names=live.policy.header_names)
        policy = merged(self.policy, live.policy)
        own = replace(live, policy=policy, router=Router(policy, self._state), trial=None)
        trial = Trial(own, share, self._draw)
        return replace(live, trial=trial, header_names=live.policy.header_names | policy.header_names)

    def object(self) -> dict[str, Any]:
        """For operators, JSON-ready: the glance, the state of its file, and the policy itself."""
        return {**self.glance(), "reload": asdict(self._watcher.state), "policy": describe(self.policy)}

    def glance(self) -> dict[str, Any]:
        """For the status page, JSON-ready: the share, and how the two policies compare."""
        return {
            "hash": self.policy.version_hash,
            "source": self.policy.source,
            "share": self.policy.canary.share,
            "problem": self.problem,
            "error": self._watcher.state.last_error,
            "beside": self.judge.object(),
        }

    def _adopt(self, policy: Policy) -> None:
        self.policy = policy
        self._on_change()
        log.info("canary reloaded", extra={"fields": {"hash": policy.version_hash, "share": policy.canary.share}})


def _not_reloaded(error: PolicyInvalid) -> None:
    log.error("canary not reloaded; the last good one stays in use", extra={"fields": {"problems": str(error)}})


def merged(canary: Policy, live: Policy) -> Policy:
    """The live policy with the canary's routing, models and refusals."""
    pools = {name: _pool(pool, canary.pools.get(name)) for name, pool in live.pools.items()}
    models = {name: _model(model, live.models.get(name)) for name, model in canary.models.items()}
    names = {name: models[model.name] for name, model in canary.names.items()}
    return replace(
        live,
        pools=MappingProxyType(pools),
        models=MappingProxyType(models),
        names=MappingProxyType(names),
        routing=canary.routing,
        header_names=canary.header_names,
        canary=canary.canary,
        source=canary.source,
        version_hash=canary.version_hash,
    )


def _pool(live: Pool, tried: Pool | None) -> Pool:
    return live if tried is None else replace(live, refuses=tried.refuses)


def _model(tried: Model, live: Model | None) -> Model:
    """Speeds are learned by pool, model and architecture: with another one, both policies would have to start again."""
    return tried if live is None else replace(tried, architecture=live.architecture)
