"""`Document` -> `Policy`: defaults merged into pools, names resolved, secrets turned to digests. Nothing can fail here:
form and references have been checked before."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from gateway.policy.document import (
    Document,
    EndpointFields,
    KeyFields,
    ModelFields,
    OperatorKeyFields,
    PoolFields,
    RuleFields,
)
from gateway.policy.references import digest_of
from gateway.policy.schema import (
    DEFAULT_MTP_REFUSES,
    Access,
    AccessKey,
    Choice,
    Model,
    Policy,
    Pool,
    Routing,
    Rule,
    Target,
)
from gateway.policy.sections import Defaults, Endpoint, Section
from gateway.policy.sources import DnsName, Source, Where
from gateway.profiles import Catalog
from gateway.types import PoolKind


def build(
    document: Document,
    *,
    source: str,
    version_hash: str,
    env: Mapping[str, str],
    speeds: Mapping[str, Catalog] = MappingProxyType({}),
) -> Policy:
    """`speeds` are the profile files, by the name that pools give them."""
    pools = {
        name: _pool(name, fields, document.defaults, speeds.get(fields.profile or ""))
        for name, fields in document.pools.items()
    }
    models = {name: _model(name, fields) for name, fields in document.models.items()}
    names = {alias: model for model in models.values() for alias in model.aliases} | models
    rules = tuple(_rule(index, fields) for index, fields in enumerate(document.routing.rules, start=1))
    routing = document.routing
    conditions = [rule.when for rule in rules] + [c.when for model in models.values() for c in model.choose]
    return Policy(
        version=document.version,
        server=document.server,
        defaults=document.defaults,
        pools=MappingProxyType(pools),
        models=MappingProxyType(models),
        slices=MappingProxyType(dict(document.slices)),
        routing=Routing(
            objective=routing.objective,
            threshold=routing.threshold,
            stickiness=routing.stickiness.ttl if routing.stickiness is not None else None,
            exploration=routing.exploration,
            rules=rules,
        ),
        mtp=document.mtp,
        access=_access(document, pools, names, env),
        second_opinion=document.second_opinion,
        canary=document.canary,
        logging=document.logging,
        source=source,
        version_hash=version_hash,
        header_names=frozenset().union(*(when.header_names for when in conditions)),
        names=MappingProxyType(names),
    )


def _pool(name: str, fields: PoolFields, defaults: Defaults, speeds: Catalog | None) -> Pool:
    kind = PoolKind.PLAIN if fields.speculative is None else PoolKind.MTP
    refuses = frozenset(fields.refuses) if fields.refuses is not None else None
    return Pool(
        name=name,
        kind=kind,
        endpoints=tuple(
            Endpoint(url=row.url, weight=row.weight, api_key=row.api_key, slice=row.slice)
            for row in fields.endpoints
            if row.url is not None
        ),
        sources=tuple(
            Source(where=where, weight=row.weight, api_key=row.api_key, slice=row.slice)
            for row in fields.endpoints
            if (where := _where(row)) is not None
        ),
        speculative=fields.speculative,
        engine=fields.engine,
        model=fields.model,
        profile=fields.profile,
        speeds=speeds,
        refuses=refuses if refuses is not None else DEFAULT_MTP_REFUSES if kind is PoolKind.MTP else frozenset(),
        timeouts=_merged(defaults.timeouts, fields.timeouts),
        limits=_merged(defaults.limits, fields.limits),
        health=_merged(defaults.health, fields.health),
        telemetry=_merged(defaults.telemetry, fields.telemetry),
        retry=_merged(defaults.retry, fields.retry),
        breaker=_merged(defaults.breaker, fields.breaker),
    )


def _where(fields: EndpointFields) -> Where | None:
    return DnsName(fields.dns, fields.refresh, fields.family) if fields.dns is not None else fields.kubernetes


S = TypeVar("S", bound=Section)


def _merged(base: S, own: S) -> S:
    """`base` with what `own` says itself; a value that `own` has only by default does not count."""
    return base.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


def _model(name: str, fields: ModelFields) -> Model:
    return Model(
        name=name,
        pools=fields.pools or (),
        choose=tuple(Choice(choice.when, choice.model) for choice in fields.choose or ()),
        architecture=fields.architecture,
        aliases=fields.aliases,
        context_length=fields.context_length,
        modalities=frozenset(fields.modalities) if fields.modalities is not None else None,
        reasoning=fields.reasoning,
        decisions=fields.decisions,
    )


def _rule(index: int, fields: RuleFields) -> Rule:
    target = fields.prefer or fields.require or ""
    is_kind = target in set(PoolKind)
    return Rule(
        name=fields.name or f"rule {index}",
        when=fields.when,
        target=Target(kind=PoolKind(target)) if is_kind else Target(pool=target),
        required=fields.require is not None,
    )


def _access(
    document: Document, pools: Mapping[str, Pool], names: Mapping[str, Model], env: Mapping[str, str]
) -> Access | None:
    fields = document.access
    if fields is None:
        return None
    operator = fields.operator_key
    return Access(
        keys=tuple(_key(key, pools, names, env) for key in fields.keys),
        operator_key=_digest(operator, env) if operator is not None else None,
    )


def _digest(fields: OperatorKeyFields, env: Mapping[str, str]) -> bytes:
    return bytes.fromhex(fields.sha256 or digest_of(env[fields.env or ""]))


def _key(fields: KeyFields, pools: Mapping[str, Pool], names: Mapping[str, Model], env: Mapping[str, str]) -> AccessKey:
    allowed = None
    if fields.pools is not None:
        wanted = set(fields.pools)
        allowed = frozenset(pool.name for pool in pools.values() if pool.name in wanted or pool.kind in wanted)
    return AccessKey(
        name=fields.name,
        sha256=_digest(fields, env),
        requests_per_minute=fields.requests_per_minute,
        tokens_per_minute=fields.tokens_per_minute,
        input_tokens_per_minute=fields.input_tokens_per_minute,
        output_tokens_per_minute=fields.output_tokens_per_minute,
        in_flight=fields.in_flight,
        models=frozenset(names[name].name for name in fields.models) if fields.models is not None else None,
        pools=allowed,
        priority=fields.priority,
    )
