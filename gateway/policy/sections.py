"""The sections of a policy that are used just as they are written. All are frozen and refuse unknown names.

Durations are seconds as float; None where the policy says `off`. Defaults stand here and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from gateway.policy.values import (
    Count,
    Origin,
    Path,
    Release,
    Seconds,
    SecondsOrOff,
    SecondsOrZero,
    Share,
    Slug,
    Switch,
    Text,
    Url,
    Weight,
    Whole,
    text,
    unless_off,
)


class Section(BaseModel):
    """A mapping of the policy file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=False)


class Server(Section):
    max_body_bytes: Count = 50_000_000
    heartbeat: SecondsOrOff = None
    """How long a stream may be silent before an SSE comment is sent."""
    grace: SecondsOrZero = 30.0
    """How long running requests may go on after a stop signal."""
    decision_headers: Switch = True
    """Whether answers carry `x-gateway-*` headers."""
    client_hints: Switch = True
    """Whether `x-gateway-*` request headers are heeded."""
    max_requests: Count = 8192
    """Requests in this process at one time, waiting ones included; above that (or short of file descriptors): 503."""
    answer_model: Literal["client", "served"] = "client"
    """The `model` of an answer: the name that the client used, or the one that the back end serves."""
    cors: tuple[Origin, ...] = ()
    """Origins whose pages may call from a browser, or `*`; empty for none."""
    ask_usage: Switch = True
    """Whether the gateway asks for a stream's token counts if the client does not, and hides them from it. Without them
    nothing is learned from such streams."""
    guided: Literal["translate", "refuse", "pass"] = "translate"
    """What happens to the `guided_*` fields, which vLLM ignores since 0.12: see `gateway.api.guided`."""


class Timeouts(Section):
    connect: Seconds = 2.0
    first_byte: SecondsOrOff = 300.0
    """Longest wait for a stream's first token. An engine sends nothing of a non-streamed answer before its last token:
    if its `/metrics` show that it is working, such an answer gets one and a half times what `max_tokens` take at the
    pool's pace on top. `total` bounds both."""
    idle: SecondsOrOff = 60.0
    """Longest silence within an answer."""
    total: SecondsOrOff = 1800.0


class Limits(Section):
    """Per pool. 0: no limit."""

    in_flight: Whole = 256
    connections: Whole = 0
    queue: Whole = 1024
    queue_wait: SecondsOrZero = 30.0
    """0s: nothing waits."""
    prefill: Whole = 12288
    """Prompt tokens at one endpoint that wait for their first token; further requests wait here, shortest first. One
    and a half times the engine's `--max-num-batched-tokens`, which vLLM tells nowhere."""


class Health(Section):
    interval: SecondsOrOff = 5.0
    path: Path = "/health"


class Telemetry(Section):
    interval: SecondsOrOff = 1.0
    stale_after: Seconds = 10.0


class Retry(Section):
    attempts: Whole = 2
    """Requests sent to back ends for one client request, the first included. A refused connection sends nothing."""
    budget: Share = 0.2
    """Retries as a share of recent traffic; 0 allows none. A refused connection costs nothing."""


class Breaker(Section):
    """When an endpoint stops getting requests because its last ones failed, and how it comes back."""

    failures: Whole = 5
    """Consecutive failures that shut it; 0 for no such limit."""
    success_rate: Share = 0.5
    """Shut below this share of good answers within `window`; 0 for no such limit."""
    samples: Count = 20
    """Answers within `window` below which the success rate says nothing."""
    window: Seconds = 30.0
    shut: Seconds = 5.0
    """For how long, the first time; each relapse doubles it, up to `shut_max`."""
    shut_max: Seconds = 60.0
    slow_start: SecondsOrZero = 10.0
    """Time from a successful trial request to the full share of the traffic."""
    stall: SecondsOrOff = 30.0
    """Longest silence on all of an endpoint's running streams at once."""


class Defaults(Section):
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    health: Health = Health()
    telemetry: Telemetry = Telemetry()
    retry: Retry = Retry()
    breaker: Breaker = Breaker()


def _secret(value: object) -> SecretStr:
    return value if isinstance(value, SecretStr) else SecretStr(text(value))


class Treatment(Section):
    """How an endpoint is used, whether it is listed or found."""

    weight: Weight = 1.0
    """Share of the pool's traffic relative to the others; 0 takes none."""
    api_key: Annotated[SecretStr, BeforeValidator(_secret)] | None = None
    slice: Text | None = None
    """GPU and slice that the engine runs on; pools with the same slice share it."""


class Endpoint(Treatment):
    url: Url
    """Without a trailing slash and without /v1."""


class Slice(Section):
    """What all pools on one slice of a GPU share."""

    in_flight: Whole = 0
    """Requests running on it at one time; 0 for no limit."""


class Speculative(Section):
    method: Slug = "mtp"
    tokens: Annotated[Count, Field(le=32)]
    """Drafted tokens per step, k."""


class Engine(Section):
    vllm: Release | None = None
    """Version, such as "0.30". None is asked from the back end."""


class Mtp(Section):
    """When a pool's drafting counts as degraded, see `telemetry.mtp`."""

    acceptance_alert: Share = 0.25
    tail_alert: Share = 0.15
    gain_target: Annotated[Weight, Field(le=10)] = 0.10
    window: Seconds = 600.0


class SecondOpinion(Section):
    """A classifier that is asked how long an answer will be, if the estimate is unsure and much time depends on it."""

    url: Url
    """An OpenAI-compatible server that takes `structured_outputs`, without /v1."""
    model: Text
    api_key: Annotated[SecretStr, BeforeValidator(_secret)] | None = None
    below_confidence: Share = 0.4
    """Estimates with at least this confidence are trusted."""
    timeout: Seconds = 0.1
    """How long its answer is waited for."""


class Canary(Section):
    """The share of requests that a policy decides while it is the canary (`--canary-policy`); no effect otherwise."""

    share: Share = 0.05
    """0 takes none."""


class Logging(Section):
    requests: Share = 1.0
    """Share of requests that get a line."""
    prompts: Switch = False
    decisions: Annotated[Text | None, BeforeValidator(unless_off)] = None
    """File of JSON lines, a row for each request; None writes none."""
    decisions_bytes: Count = 64_000_000
    """Size at which the file is renamed and a new one begun."""
