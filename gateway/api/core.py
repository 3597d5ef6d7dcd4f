"""What every routed request needs, gathered in one object by `gateway.app.build`; and the policy as it is live."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from gateway.access.keys import Keyring
from gateway.access.limits import Limits
from gateway.api.afterwards import Afterwards
from gateway.api.exchange import Observer
from gateway.api.opinion import OpinionDesk
from gateway.api.time_left import Deadlines
from gateway.api.usage import UsageHabits
from gateway.decisions.log import DecisionLog
from gateway.discovery.keeper import Discovery
from gateway.errors import BadRequest, UnknownModel
from gateway.estimate.estimator import Estimator
from gateway.metrics import Metrics
from gateway.policy.schema import AccessKey, Model, Policy
from gateway.request.features import extract
from gateway.request.parse import Body
from gateway.request.tokens import TokenEstimator
from gateway.routing.router import Router
from gateway.routing.state import RoutingState
from gateway.state.store import Store
from gateway.telemetry.checklist import MtpChecklist
from gateway.telemetry.export import TelemetryCollector
from gateway.telemetry.slices import SliceReport
from gateway.telemetry.view import TelemetryView
from gateway.types import Api, Estimate, Features, Hints, LoadView, Outcome, Trace
from gateway.upstream.pools import Pools


@dataclass(frozen=True, slots=True)
class Active:
    """A policy and what is compiled from it. A request takes the live one once and keeps it to its end."""

    policy: Policy
    router: Router
    keyring: Keyring
    opinion: OpinionDesk | None
    version: int
    """The number of policies that have been live in this process."""
    header_names: frozenset[str]
    """The headers that conditions look at, those of a canary included."""
    trial: Trial | None = None
    """The canary, if there is one that takes a share."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A policy that decides for a share of the live one's requests."""

    active: Active
    share: float
    draw: Callable[[], float]
    """A random number from 0 to 1, for requests that belong to no conversation."""

    def takes(self, model: str | None, features: Features, hints: Hints) -> bool:
        """Whether the canary decides this request. A conversation stays with one policy in every process, and one that
        is the canary's remains so when the share grows. Models that the canary lacks are the live policy's."""
        policy = self.active.policy
        if not (policy.resolve(model) if model else len(policy.models) == 1):
            return False
        place = place_of(features, hints)
        return (self.draw() if place is None else place) < self.share


def place_of(features: Features, hints: Hints) -> float | None:
    """A conversation's number from 0 to 1, the same in every process; None outside conversations."""
    if hints.session:
        key = hints.session.encode("utf-8", "surrogatepass")
    elif features.thread_key:
        key = b"%d" % features.thread_key
    else:
        return None
    return int.from_bytes(blake2b(key, digest_size=8, person=b"canary").digest()) / 2**64


def activate(
    policy: Policy, version: int, state: RoutingState | None = None, opinion: OpinionDesk | None = None
) -> Active:
    """Compiles a policy, at the start and on every reload. `state` is what routing has learned."""
    return Active(policy, Router(policy, state), Keyring(policy.access), opinion, version, policy.header_names)


THINKS: Mapping[str, bool | None] = {"always": True, "never": False, "optional": None}
"""A model's `reasoning`, as the estimator takes it; None leaves it to the request."""


class Learned:
    """All that is learned from outcomes. It outlives policies and holds no text."""

    def __init__(self, estimator: Estimator, tokens: TokenEstimator, routing: RoutingState) -> None:
        self.estimator = estimator
        self.tokens = tokens
        self.routing = routing

    def features(self, body: Body, api: Api, hints: Hints) -> Features:
        """Hop 2. Templates that are known well are not read again."""
        return extract(body, api, hints, self.tokens, self.estimator.reading)

    def estimate(self, features: Features, model: Model) -> Estimate:
        """Hop 3, given whether the policy's model thinks and how much room its context leaves."""
        length = model.context_length
        room = None if length is None else max(length - features.input_tokens, 1)
        return self.estimator.estimate(features, thinking=THINKS[model.reasoning], room=room)

    def observe(self, outcome: Outcome) -> float | None:
        """Learns from a finished request that was noted. Returns its regret in seconds, or None if unknown."""
        self.estimator.observe(outcome)
        regret = self.routing.learn(outcome)
        features, usage = outcome.features, outcome.usage
        if features and usage:
            self.tokens.observe(features.model, features.profile, usage.prompt_tokens)
        return regret

    def skip(self, outcome: Outcome) -> None:
        """Forgets a finished request that is not to be learned from."""
        if outcome.features is not None:
            self.estimator.forget(outcome.features)

    def note(self, outcome: Outcome) -> None:
        """Notes at once what the next request may need of a finished one: where their conversation is cached."""
        self.routing.note(outcome)


class LiveView(LoadView, Protocol):
    """The router's view of the live pools, and what telemetry knows beyond it."""

    view: TelemetryView
    checklist: MtpChecklist

    def collector(self) -> TelemetryCollector: ...

    def slices(self) -> list[SliceReport]: ...


class CanaryPolicy(Protocol):
    """Gives the live policy the canary's share."""

    def beside(self, live: Active) -> Active: ...

    def object(self) -> dict[str, Any]: ...

    def glance(self) -> dict[str, Any]: ...


class Tracer(Protocol):
    """Begins a trace for each request, and sends the finished ones between `start` and `aclose`."""

    def start(self) -> None: ...

    def begin(self, scope: Mapping[str, Any], started: float) -> Trace: ...

    def observe(self, outcome: Outcome) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Core:
    """The parts that all requests of a process share. `gateway.app.compose` makes it."""

    # What a request meets, in that order:
    active: Active
    """The live policy; `gateway.app.adopt` swaps it."""
    clock: Callable[[], float]
    new_id: Callable[[], str]
    tracer: Tracer | None
    """None where tracing is off."""
    limits: Limits
    learned: Learned
    watch: LiveView
    pools: Pools
    usage_habits: UsageHabits = field(default_factory=UsageHabits)
    afterwards: Afterwards
    """The observers of outcomes, who follow some milliseconds after a request's end."""
    deadlines: Deadlines = field(init=False)
    """The total time of those that run."""
    ended: tuple[Observer, Observer] = field(init=False)
    """What its end calls at once."""

    # What operators' routes and background tasks need besides:
    discovery: Discovery
    store: Store
    metrics: Metrics
    decisions: DecisionLog
    canary: CanaryPolicy | None = None

    # What it counts, for draining and the limit on requests:
    running: int = 0
    """Requests that have begun and not ended."""
    draining: bool = False
    """Set once the process is to stop: running requests may end, no new one begins."""
    turned_away: int = 0
    """Requests refused because of that."""

    def __post_init__(self) -> None:
        self.deadlines = Deadlines(self.clock)
        self.ended = (self.learned.note, self.afterwards.add)


def find_model(policy: Policy, name: str | None, key: AccessKey | None = None) -> Model:
    """The policy's model for a client's name. A missing name means the only model, where there is only one.

    Raises BadRequest for a missing name, UnknownModel with the nearest names for an unknown one; of the names, those
    that `key` may use are told.
    """
    if not name:
        if len(policy.models) == 1:
            return next(iter(policy.models.values()))
        raise BadRequest(f"`model` is missing; this gateway serves {_listed(policy, key)}", param="model")
    if model := policy.resolve(name):
        return model
    shown = name if len(name) <= 80 else name[:80] + "..."
    known = {usable.lower(): usable for usable in _usable(policy, policy.names, key)}
    near = [known[lower] for lower in difflib.get_close_matches(name[:80].lower(), known, n=3)]
    hint = f"did you mean {_quoted(near)}?" if near else f"this gateway serves {_listed(policy, key)}"
    raise UnknownModel(f"the model `{shown}` does not exist; {hint}", param="model")


def first_model(policy: Policy, key: AccessKey | None) -> Model:
    """The first model that the key may use; for one that may use none, the policy's first."""
    every = _usable(policy, policy.models, key) or list(policy.models)
    return policy.models[every[0]]


def _usable(policy: Policy, names: Iterable[str], key: AccessKey | None) -> list[str]:
    """Those of the models' names and aliases that the key may use."""
    if key is None or key.models is None:
        return list(names)
    return [name for name in names if (model := policy.resolve(name)) is not None and model.name in key.models]


def _listed(policy: Policy, key: AccessKey | None) -> str:
    every = _usable(policy, policy.models, key)
    more = f" and {len(every) - 10} more" if len(every) > 10 else ""
    return _quoted(every[:10]) + more


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
