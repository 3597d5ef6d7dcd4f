"""The policy file as it is written: one pydantic model per mapping, checked for form but not yet for references.

`gateway.policy.build` turns a `Document` into the `Policy` that the rest of the gateway reads.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.policy.sections import (
    Breaker,
    Canary,
    Defaults,
    Engine,
    Health,
    Limits,
    Logging,
    Mtp,
    Retry,
    SecondOpinion,
    Section,
    Server,
    Slice,
    Speculative,
    Telemetry,
    Timeouts,
    Treatment,
)
from gateway.policy.sources import DEFAULT_REFRESH, Family, Pods
from gateway.policy.values import (
    Count,
    Filled,
    Name,
    Seconds,
    Share,
    Signed,
    Slug,
    Switch,
    Text,
    Url,
    Whole,
    text,
    unless_off,
    wrong,
)
from gateway.policy.when import ALWAYS, When
from gateway.types import Need

DEFAULT_OBJECTIVE: Literal["expected_time", "fleet", "static"] = "fleet"


def _sha256(value: object) -> str:
    digest = text(value).lower()
    if re.fullmatch(r"[0-9a-f]{64}", digest) is None:
        raise wrong("expected the SHA-256 of the key, 64 hexadecimal digits")
    return digest


def _variable(value: object) -> str:
    found = text(value)
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", found, re.ASCII) is None:
        raise wrong("expected the name of an environment variable, not the key itself")
    return found


def _need(value: object) -> object:
    return Need(value) if isinstance(value, str) and value in set(Need) else value


Digest = Annotated[str, BeforeValidator(_sha256)]
Variable = Annotated[str, BeforeValidator(_variable)]


class EndpointFields(Treatment):
    """Exactly one of `url`, `dns` and `kubernetes`; the last two stand for every endpoint that is found there."""

    url: Url | None = None
    dns: Url | None = None
    refresh: Seconds = DEFAULT_REFRESH
    """With `dns`: how often it is resolved anew. So is `family`: which addresses count."""
    family: Family = "any"
    kubernetes: Pods | None = None


def _url_alone(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


EndpointEntry = Annotated[EndpointFields, BeforeValidator(_url_alone)]
"""A URL alone stands for an endpoint with that URL."""


class PoolFields(Section):
    endpoints: Annotated[tuple[EndpointEntry, ...], Filled]
    speculative: Annotated[Speculative | None, BeforeValidator(unless_off)] = None
    engine: Engine = Engine()
    model: Name | None = None
    profile: Text | None = None
    refuses: tuple[Annotated[Need, BeforeValidator(_need)], ...] | None = None
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    health: Health = Health()
    telemetry: Telemetry = Telemetry()
    retry: Retry = Retry()
    breaker: Breaker = Breaker()


class ChoiceFields(Section):
    when: When = ALWAYS
    model: Name


class ModelFields(Section):
    pools: Annotated[tuple[Slug, ...], Filled] | None = None
    choose: Annotated[tuple[ChoiceFields, ...], Filled] | None = None
    architecture: Literal["dense", "moe"] | None = None
    aliases: tuple[Name, ...] = ()
    context_length: Count | None = None
    modalities: Annotated[tuple[Literal["text", "image", "audio", "video"], ...], Filled] | None = None
    reasoning: Literal["never", "optional", "always"] = "optional"
    decisions: Switch = False


class Stickiness(Section):
    ttl: Seconds = 600.0


class RuleFields(Section):
    name: Text | None = None
    when: When = ALWAYS
    prefer: Slug | None = None
    require: Slug | None = None


class RoutingFields(Section):
    objective: Literal["expected_time", "fleet", "static"] = DEFAULT_OBJECTIVE
    threshold: Whole = 64
    stickiness: Annotated[Stickiness | None, BeforeValidator(unless_off)] = Stickiness()
    exploration: Share = 0.01
    rules: tuple[RuleFields, ...] = ()


class OperatorKeyFields(Section):
    env: Variable | None = None
    sha256: Digest | None = None


class KeyFields(OperatorKeyFields):
    name: Name
    requests_per_minute: Whole = 0
    tokens_per_minute: Whole = 0
    input_tokens_per_minute: Whole = 0
    output_tokens_per_minute: Whole = 0
    in_flight: Whole = 0
    models: Annotated[tuple[Name, ...], Filled] | None = None
    pools: Annotated[tuple[Slug, ...], Filled] | None = None
    priority: Signed = 0


class AccessFields(Section):
    keys: Annotated[tuple[KeyFields, ...], Filled] = ()
    operator_key: OperatorKeyFields | None = None


class Document(Section):
    version: Annotated[Literal[1], BeforeValidator(lambda value: _version(value))] = 1
    server: Server = Server()
    defaults: Defaults = Defaults()
    pools: Annotated[dict[Slug, PoolFields], Filled]
    models: Annotated[dict[Name, ModelFields], Filled]
    slices: dict[Text, Slice] = Field(default_factory=dict)
    routing: RoutingFields = RoutingFields()
    mtp: Mtp = Mtp()
    access: AccessFields | None = None
    second_opinion: Annotated[SecondOpinion | None, BeforeValidator(unless_off)] = None
    canary: Canary = Canary()
    logging: Logging = Logging()


def _version(value: Any) -> int:
    if value == "1":
        raise wrong("expected the number 1, without quotes")
    if value is True or value != 1 or isinstance(value, float):
        raise wrong("this gateway reads version 1")
    return 1
