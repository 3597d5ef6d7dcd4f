"""What telemetry asks of the rest of the gateway, as interfaces: the live pools, the models, the thresholds.

`gateway.upstream.pool.Pools` and the policy's own types satisfy them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from gateway.types import PoolKind


class EndpointLike(Protocol):
    """One vLLM server of a pool."""

    @property
    def url(self) -> str: ...

    @property
    def api_key(self) -> bytes | None: ...

    @property
    def in_flight(self) -> int:
        """Our own requests there now."""


class TelemetryPolicy(Protocol):
    """Seconds; an interval of None turns telemetry off."""

    @property
    def interval(self) -> float | None: ...

    @property
    def stale_after(self) -> float: ...


class SpeculativePolicy(Protocol):
    @property
    def tokens(self) -> int:
        """Drafted tokens per step, k."""


class PoolPolicy(Protocol):
    @property
    def telemetry(self) -> TelemetryPolicy: ...

    @property
    def speculative(self) -> SpeculativePolicy | None: ...

    @property
    def model(self) -> str | None:
        """The name that the back ends serve, where it differs from the policy's model."""


class PoolLike(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> PoolKind: ...

    @property
    def policy(self) -> PoolPolicy: ...

    @property
    def endpoints(self) -> Sequence[EndpointLike]: ...


class PoolsLike(Protocol):
    def __iter__(self) -> Iterator[PoolLike]: ...


class ModelLike(Protocol):
    """A model of the policy, with the pools that serve it."""

    @property
    def name(self) -> str: ...

    @property
    def pools(self) -> Sequence[str]: ...


class MtpPolicy(Protocol):
    """The thresholds of the checklist. Shares, and a window in seconds."""

    @property
    def acceptance_alert(self) -> float: ...

    @property
    def tail_alert(self) -> float: ...

    @property
    def gain_target(self) -> float: ...

    @property
    def window(self) -> float: ...


BreakEven = Callable[[str, float, int], float | None]
"""(pool, running, k) -> mean acceptance length above which drafting k tokens pays, by the pool's profile or curve."""

PlainSpeed = Callable[[str, str, str, float, float], tuple[float, float] | None]
"""(plain pool, drafting pool, model, output tokens, requests beside) -> seconds per token after the first that the
plain pool would take for the drafting pool's kind of requests, and their relative standard error, by what was learned
of its speed; None where that is too little."""


def model_of(pool: PoolLike, served: str, models: Iterable[ModelLike]) -> str:
    """The policy's model that a pool's engine serves under the name `served`.

    The engine's label is the first of its served names, which need not be the one that is sent to it; a pool that
    serves one model only settles it all the same.
    """
    ours = [model for model in models if pool.name in model.pools]
    if len(ours) == 1:
        return ours[0].name
    by_name = (model.name for model in ours if served in (model.name, pool.policy.model))
    return next(by_name, served)
