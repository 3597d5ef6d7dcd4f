"""The policy for people: as JSON for the operators' endpoint, and what looks like a mistake although it is valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pydantic import BaseModel, SecretStr

from gateway.policy.engines import faults
from gateway.policy.schema import Numbers, Policy, Rule, When
from gateway.policy.values import address
from gateway.policy.when import ALWAYS
from gateway.types import Need, PoolKind
from gateway.words import NONE, OTHER

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def describe(policy: Policy) -> dict[str, object]:
    """The policy, JSON-ready and without secrets: a back end's key is `"set"`, a client's key its name and limits."""
    return _fields(policy)


def _fields(value: DataclassInstance) -> dict[str, object]:
    # What `repr` leaves out is secret or derived.
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.repr}


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return "set"
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Numbers):
        if value.values is not None:
            return sorted(value.values)
        return {k: v for k in ("at_least", "below") if (v := getattr(value, k)) is not None}
    if isinstance(value, When):
        # A condition's absent fields say nothing; elsewhere None means off.
        items = ((f.alias or n, getattr(value, n)) for n, f in type(value).model_fields.items())
        return {name: _plain(item) for name, item in items if item is not None}
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def warnings(policy: Policy) -> list[str]:
    """What looks like a mistake although it is valid: one line each, for the log at start and for `gateway check`."""
    return [*_of_pools(policy), *_of_models(policy), *_of_rules(policy), *_of_the_rest(policy)]


def _of_pools(policy: Policy) -> Iterator[str]:
    used = {name for model in policy.models.values() for name in model.pools}
    kinds: dict[str, tuple[str, PoolKind]] = {}
    for name, pool in policy.pools.items():
        if name in (OTHER, NONE):
            yield f"pools.{name}: metrics say `{name}` for {'no pool' if name == NONE else 'pools that are gone'} too"
        if name not in used:
            yield f"pools.{name}: no model uses this pool"
        for fault in faults(pool, pool.engine.vllm):
            yield f"pools.{name}: {fault}"
        if not any([*(row.weight for row in pool.endpoints), *(source.weight for source in pool.sources)]):
            yield f"pools.{name}: every endpoint has weight 0, so that the pool takes no traffic"
        if pool.telemetry.interval is not None and pool.telemetry.stale_after < pool.telemetry.interval:
            yield f"pools.{name}: telemetry.stale_after is shorter than its interval; figures will always be stale"
        for endpoint in pool.endpoints:
            other, kind = kinds.setdefault(address(endpoint.url), (name, pool.kind))
            if kind is not pool.kind:
                yield f"pools.{name}: {endpoint.url} is also in {other}; one server is either plain or MTP"


def _of_models(policy: Policy) -> Iterator[str]:
    for name, model in policy.models.items():
        kinds = {policy.pools[pool].kind for pool in model.pools}
        if name == OTHER:
            yield f"models.{name}: metrics say `{name}` for unknown models too"
        if model.decisions and model.reasoning == "always":
            yield f"models.{name}: always thinks, so that `decisions` never applies"
        elif model.decisions and all(Need.LOGPROBS in policy.pools[pool].refuses for pool in model.pools):
            yield f"models.{name}: decisions read log probabilities, which all its pools refuse"
        if len(kinds) == 1:
            yield f"models.{name}: has only {kinds.pop()} pools, so that there is nothing to choose"
        elif PoolKind.MTP in kinds and model.architecture is None and policy.routing.objective != "static":
            yield f"models.{name}: names no architecture; drafting pays differently on dense and moe"


def _of_rules(policy: Policy) -> Iterator[str]:
    ended: Rule | None = None
    for rule in policy.routing.rules:
        if ended is not None:
            yield f"rule `{rule.name}` can never match: `{ended.name}` before it matches everything"
        elif rule.when == ALWAYS:
            ended = rule
        meant = [policy.models[name] for name in rule.when.model or policy.models if name in policy.models]
        reachable = {pool for model in meant for pool in model.pools}
        if not any(rule.target.accepts(policy.pools[pool]) for pool in reachable):
            yield f"rule `{rule.name}` can never choose {rule.target}: none of its models has such a pool"


def _of_the_rest(policy: Policy) -> Iterator[str]:
    if policy.logging.prompts:
        yield "logging.prompts: prompts are written to the log"
    if policy.access is not None and not policy.access.keys:
        yield "access: has an operator key only; everybody may use the models"
    for index, rule in enumerate(policy.routing.rules):
        if rule.required and rule.when == ALWAYS:
            yield f"routing.rules[{index}]: requires {rule.target} for everything; nothing else is ever used"
