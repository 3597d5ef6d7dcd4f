"""The interfaces that telemetry needs from the rest of the gateway: live pools, models, thresholds.

`gateway.upstream.pool.Pools` and the policy's types implement them as they are.
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
        """Our own requests at the endpoint now."""

    @property
    def held(self) -> int:
        """Those of them that it has not been sent yet."""


class TelemetryPolicy(Protocol):
    """In seconds; an interval of None turns telemetry off."""

    @property
    def interval(self) -> float | None: ...

    @property
    def stale_after(self) -> float: ...


class SpeculativePolicy(Protocol):
    @property
    def tokens(self) -> int:
        """Draft tokens per step, k."""


class PoolPolicy(Protocol):
    @property
    def telemetry(self) -> TelemetryPolicy: ...

    @property
    def speculative(self) -> SpeculativePolicy | None: ...

    @property
    def model(self) -> str | None:
        """The served model name, where it differs from the policy's."""


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
    """A model of the policy and the pools that serve it."""

    @property
    def name(self) -> str: ...

    @property
    def pools(self) -> Sequence[str]: ...


class MtpPolicy(Protocol):
    """Thresholds of the checklist: shares 0..1, the window in seconds."""

    @property
    def acceptance_alert(self) -> float: ...

    @property
    def tail_alert(self) -> float: ...

    @property
    def gain_target(self) -> float: ...

    @property
    def window(self) -> float: ...


BreakEven = Callable[[str, float, int], float | None]
"""(pool, running, k) -> mean acceptance length above which k draft tokens pay, by the pool's profile or curve."""

PlainSpeed = Callable[[str, str, str, float, float], tuple[float, float] | None]
"""(plain pool, drafting pool, model, output tokens, requests beside) -> (TPOT in seconds, relative standard error) of
the plain pool for requests like the drafting pool's, from its learned speed curve; None where too little is known."""


def model_of(pool: PoolLike, served: str, models: Iterable[ModelLike]) -> str:
    """The policy's name of the model that a pool's engine reports as `served`.

    The engine reports the first of its served names, which may differ from the name that requests use. If the pool
    serves only one model, it must be that one.
    """
    ours = [model for model in models if pool.name in model.pools]
    if len(ours) == 1:
        return ours[0].name
    by_name = (model.name for model in ours if served in (model.name, pool.policy.model))
    return next(by_name, served)
