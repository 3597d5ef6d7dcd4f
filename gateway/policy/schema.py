"""The policy as the gateway uses it: frozen, defaults merged, references resolved, secrets hashed or wrapped.

`gateway.policy.load` makes one from YAML; a reload makes a whole new one, and nothing is ever patched in place.
Everything that a consumer needs is importable from here. Durations are seconds; None is `off`; a limit of 0 is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.policy.document import DEFAULT_OBJECTIVE
from gateway.policy.sections import (
    Breaker,
    Canary,
    Defaults,
    Endpoint,
    Engine,
    Health,
    Limits,
    Logging,
    Mtp,
    Retry,
    SecondOpinion,
    Server,
    Slice,
    Speculative,
    Telemetry,
    Timeouts,
)
from gateway.policy.sources import DnsName, FoundEndpoint, Pods, Source, Where
from gateway.policy.when import Facts, Numbers, When
from gateway.profiles import Catalog
from gateway.types import Need, PoolKind

__all__ = [
    "DEFAULT_MTP_REFUSES",
    "DEFAULT_OBJECTIVE",
    "Access",
    "AccessKey",
    "Architecture",
    "Breaker",
    "Canary",
    "Choice",
    "Defaults",
    "DnsName",
    "Endpoint",
    "Engine",
    "Facts",
    "FoundEndpoint",
    "Health",
    "Limits",
    "Logging",
    "Model",
    "Mtp",
    "Numbers",
    "Objective",
    "Pods",
    "Policy",
    "Pool",
    "Reasoning",
    "Retry",
    "Routing",
    "Rule",
    "SecondOpinion",
    "Server",
    "Slice",
    "Source",
    "Speculative",
    "Target",
    "Telemetry",
    "Timeouts",
    "When",
    "Where",
]

Architecture = Literal["dense", "moe"]
Reasoning = Literal["never", "optional", "always"]
Objective = Literal["expected_time", "fleet", "static"]

DEFAULT_MTP_REFUSES = frozenset({Need.MIN_P, Need.LOGIT_BIAS, Need.STRUCTURED, Need.STRUCTURED_THINKING, Need.LOGPROBS})
"""vLLM refuses the first two with speculative decoding; the others have given wrong answers there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Endpoints that serve a request alike."""

    name: str
    kind: PoolKind
    """MTP where `speculative` is given."""
    endpoints: tuple[Endpoint, ...]
    sources: tuple[Source, ...] = ()
    """What finds more endpoints while the gateway runs; see `gateway.discovery`."""
    speculative: Speculative | None = None
    engine: Engine = field(default_factory=Engine)
    model: str | None = None
    """The name to send upstream; None sends the policy's model name."""
    profile: str | None = None
    """Built-in hardware (`h200`), with its model (`h200/e4b`), or a profile file beside the policy (`mine.yaml`)."""
    speeds: Catalog | None = field(default=None, repr=False, compare=False)
    """What the profile file says; None for a built-in profile."""
    refuses: frozenset[Need] = frozenset()
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    health: Health = field(default_factory=Health)
    telemetry: Telemetry = field(default_factory=Telemetry)
    retry: Retry = field(default_factory=Retry)
    breaker: Breaker = field(default_factory=Breaker)


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of a model's `choose`. The last one always matches."""

    when: When
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What clients may name. It has either `pools`, or `choose` and then stands for other models."""

    name: str
    pools: tuple[str, ...] = ()
    choose: tuple[Choice, ...] = ()
    architecture: Architecture | None = None
    aliases: tuple[str, ...] = ()
    context_length: int | None = None
    modalities: frozenset[str] | None = None
    """None: not said, so nothing is gated on it."""
    reasoning: Reasoning = "optional"
    decisions: bool = False
    """Whether a pure choice among labels may be answered through `/v1/decisions`: see `gateway.api.labels`."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a rule, or a client's `x-gateway-pool`, points to: a kind of pool or one pool."""

    kind: PoolKind | None = None
    pool: str | None = None

    def accepts(self, pool: Pool) -> bool:
        return pool.kind is self.kind if self.kind is not None else pool.name == self.pool

    def __str__(self) -> str:
        return str(self.kind or self.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`require` does not yield to anything; a preference yields to gates and saturation."""

    name: str
    when: When
    target: Target
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    objective: Objective = DEFAULT_OBJECTIVE
    threshold: int = 64
    """Predicted output tokens from which the static objective takes MTP; the tie-break elsewhere."""
    stickiness: float | None = 600.0
    """Time to live in seconds; None is off."""
    exploration: float = 0.01
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """A client's key: its digest, never the key."""

    name: str
    sha256: bytes = field(repr=False)
    """32 bytes."""
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    input_tokens_per_minute: int = 0
    output_tokens_per_minute: int = 0
    in_flight: int = 0
    models: frozenset[str] | None = None
    """Names of models, aliases resolved; None allows all."""
    pools: frozenset[str] | None = None
    """Names of pools, kinds resolved; None allows all."""
    priority: int = 0
    """Higher goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    keys: tuple[AccessKey, ...] = ()
    operator_key: bytes | None = field(default=None, repr=False)
    """SHA-256 of the key for operator endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    pools: Mapping[str, Pool]
    models: Mapping[str, Model]
    version: int = 1
    slices: Mapping[str, Slice] = field(default_factory=dict)
    """Shared limits, by the name that endpoints give their slice."""
    server: Server = field(default_factory=Server)
    defaults: Defaults = field(default_factory=Defaults)
    routing: Routing = Routing()
    mtp: Mtp = field(default_factory=Mtp)
    access: Access | None = None
    """None: open to everybody."""
    second_opinion: SecondOpinion | None = None
    canary: Canary = field(default_factory=Canary)
    logging: Logging = field(default_factory=Logging)
    source: str = ""
    """The file's name, for people."""
    version_hash: str = ""
    """First 12 hexadecimal digits of the SHA-256 of the file's bytes."""
    header_names: frozenset[str] = frozenset()
    """Lower-case names of the request headers that any condition looks at."""
    names: Mapping[str, Model] = field(default_factory=dict, repr=False)
    """Every name and alias that a client may use."""

    def resolve(self, name: str) -> Model | None:
        """The model that a client's name or alias means."""
        return self.names.get(name)

    def choose(self, model: Model, facts: Facts) -> Model:
        """The model that serves the request: `model` itself, or what its `choose` list says."""
        for choice in model.choose:
            if choice.when.matches(facts):
                return self.models[choice.model]
        return model

    def target(self, text: str) -> Target | None:
        """`plain`, `mtp` or a pool's name; None for anything else. Case does not count, except between two pools that
        it alone tells apart."""
        if text in (PoolKind.PLAIN, PoolKind.MTP):
            return Target(kind=PoolKind(text))
        if text in self.pools:
            return Target(pool=text)
        lower = text.lower()
        if lower in (PoolKind.PLAIN, PoolKind.MTP):
            return Target(kind=PoolKind(lower))
        alike = [name for name in self.pools if name.lower() == lower]
        return Target(pool=alike[0]) if len(alike) == 1 else None
