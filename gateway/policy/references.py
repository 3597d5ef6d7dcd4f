"""What the parts of a policy say about each other: names that must exist, be unique, and mean one thing.

It reads the plain data, not the validated document, so that these problems are reported together with those of form.
Whatever has the wrong form is skipped here: `gateway.policy.document` reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256

from gateway.policy.problems import Finding, Loc, at_key, at_value, did_you_mean, path_text
from gateway.policy.values import Expanded, address, is_off
from gateway.types import PoolKind

Findings = Iterator[Finding]


def check_references(data: object, env: Mapping[str, str]) -> Findings:
    """Every reference of the policy that leads nowhere, or that contradicts another. `env` holds the keys' secrets."""
    names = _Names.of(data)
    yield from _pools(data)
    yield from _slices(data)
    yield from _models(data, names)
    yield from _rules(data, names)
    yield from _access(data, names, env)


@dataclass(frozen=True, slots=True)
class _Names:
    pools: frozenset[str]
    models: frozenset[str]
    choosing: frozenset[str]
    aliases: Mapping[str, str]
    keys: frozenset[str]

    @classmethod
    def of(cls, data: object) -> _Names:
        models = dict(_entries(data, "models"))
        return cls(
            pools=frozenset(name for name, _ in _entries(data, "pools")),
            models=frozenset(models),
            choosing=frozenset(name for name, model in models.items() if "choose" in _mapping(model)),
            aliases={alias: name for name, model in models.items() for _, alias in _texts(model, "aliases")},
            keys=frozenset(n for _, k in _items(_get(data, "access"), "keys") if isinstance(n := _get(k, "name"), str)),
        )


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _get(value: object, name: str) -> object:
    return _mapping(value).get(name)


def _entries(value: object, name: str) -> Iterable[tuple[str, object]]:
    return _mapping(_get(value, name)).items()


def _items(value: object, name: str) -> list[tuple[int, object]]:
    found = _get(value, name)
    return list(enumerate(found)) if isinstance(found, list) else []


def _texts(value: object, name: str) -> list[tuple[int, str]]:
    return [(index, item) for index, item in _items(value, name) if isinstance(item, str)]


def _shown(text: str) -> str:
    return "this value" if isinstance(text, Expanded) else f"`{text[:60]}`"


def _unknown(what: str, text: str, known: Iterable[str]) -> str:
    hint = "" if isinstance(text, Expanded) else did_you_mean(text, sorted(known))
    return f"no {what} named {_shown(text)}{hint}"


def _pools(data: object) -> Findings:
    for name, pool in _entries(data, "pools"):
        speculative = _get(pool, "speculative")
        kind = PoolKind.PLAIN if speculative is None or is_off(speculative) else PoolKind.MTP
        if name in set(PoolKind) and name != kind:
            yield at_key(("pools", name), f"rules read `{name}` as the kind, but this pool is {kind}; rename it")
        seen: dict[tuple[str, str], int] = {}
        for index, endpoint in _items(pool, "endpoints"):
            loc = ("pools", name, "endpoints", index)
            yield from _endpoint(loc, endpoint)
            for way in ("url", "dns"):
                text = endpoint if isinstance(endpoint, str) and way == "url" else _get(endpoint, way)
                if isinstance(text, str):
                    same = seen.setdefault((way, address(text)), index)
                    if same != index:
                        yield at_value(loc, f"the same {'URL' if way == 'url' else 'name'} as endpoints[{same}]")


def _endpoint(loc: Loc, endpoint: object) -> Findings:
    if not isinstance(endpoint, dict):
        return
    if sum(way in endpoint for way in ("url", "dns", "kubernetes")) != 1:
        yield at_value(loc, "expected one of `url`, `dns` and `kubernetes`")
    for option in ("refresh", "family"):
        if option in endpoint and "dns" not in endpoint:
            yield at_key((*loc, option), f"`{option}` is for `dns`")


def _slices(data: object) -> Findings:
    endpoints = [e for _, pool in _entries(data, "pools") for _, e in _items(pool, "endpoints")]
    used = {name for e in endpoints if isinstance(name := _get(e, "slice"), str)}
    for name, _ in _entries(data, "slices"):
        if name not in used:
            yield at_key(("slices", name), f"no endpoint has this slice{did_you_mean(name, sorted(used))}")


def _models(data: object, names: _Names) -> Findings:
    owners: dict[str, str] = {}
    for name, model in _entries(data, "models"):
        loc: Loc = ("models", name)
        fields = _mapping(model)
        if isinstance(model, dict) and ("pools" in fields) == ("choose" in fields):
            yield at_key(loc, "expected either `pools` or `choose`")
        elif "choose" in fields and "decisions" in fields:
            yield at_key((*loc, "decisions"), "belongs to the models that this one chooses among")
        listed: set[str] = set()
        for index, pool in _texts(model, "pools"):
            if pool not in names.pools:
                yield at_value((*loc, "pools", index), _unknown("pool", pool, names.pools))
            elif pool in listed:
                yield at_value((*loc, "pools", index), f"pool {_shown(pool)} is listed twice")
            listed.add(pool)
        for index, alias in _texts(model, "aliases"):
            at = (*loc, "aliases", index)
            if alias in names.models:
                yield at_value(at, f"{_shown(alias)} is the name of a model")
            elif alias in owners:
                yield at_value(at, f"{_shown(alias)} is already an alias of `{owners[alias]}`")
            owners.setdefault(alias, name)
        yield from _choices(loc, model, names)


def _choices(loc: Loc, model: object, names: _Names) -> Findings:
    choices = _items(model, "choose")
    for index, choice in choices:
        at = (*loc, "choose", index)
        always = isinstance(choice, dict) and choice.get("when") in (None, {})
        last = index == len(choices) - 1
        if always and not last:
            yield at_value(at, "matches everything, so that the entries after it are never reached")
        elif not always and last and isinstance(choice, dict):
            yield at_value(at, "the last entry must have no `when`: it stands for all the rest")
        target = _get(choice, "model")
        if isinstance(target, str):
            yield from _model((*at, "model"), target, names)
            if target in names.choosing:
                yield at_value((*at, "model"), f"{_shown(target)} chooses by itself; name a model that has pools")
        yield from _when((*at, "when"), _get(choice, "when"), names)


def _model(loc: Loc, text: str, names: _Names) -> Findings:
    if text in names.aliases and text not in names.models:
        yield at_value(loc, f"{_shown(text)} is an alias; write `{names.aliases[text]}`")
    elif text not in names.models:
        yield at_value(loc, _unknown("model", text, names.models))


def _when(loc: Loc, when: object, names: _Names) -> Findings:
    for field in ("key", "model"):
        value = _get(when, field)
        found = (
            [((*loc, field, i), v) for i, v in enumerate(value)]
            if isinstance(value, list)
            else [((*loc, field), value)]
        )
        for at, text in found:
            if not isinstance(text, str):
                continue
            if field == "model":
                yield from _model(at, text, names)
            elif text not in names.keys:
                yield at_value(at, _unknown("key in access.keys", text, names.keys))


def _rules(data: object, names: _Names) -> Findings:
    seen: dict[str, int] = {}
    for index, rule in _items(_get(data, "routing"), "rules"):
        loc: Loc = ("routing", "rules", index)
        fields = _mapping(rule)
        if isinstance(rule, dict) and ("prefer" in fields) == ("require" in fields):
            yield at_value(loc, "expected either `prefer` or `require`")
        for field in ("prefer", "require"):
            target = fields.get(field)
            if isinstance(target, str) and target not in {*names.pools, *PoolKind}:
                yield at_value((*loc, field), _unknown("pool or kind", target, {*names.pools, *PoolKind}))
        name = fields.get("name")
        if isinstance(name, str):
            if name in seen:
                yield at_value((*loc, "name"), f"rules[{seen[name]}] has this name already")
            seen.setdefault(name, index)
        yield from _when((*loc, "when"), fields.get("when"), names)


def _access(data: object, names: _Names, env: Mapping[str, str]) -> Findings:
    access = _get(data, "access")
    if isinstance(access, dict) and not access:
        yield at_value(("access",), "expected `keys` or `operator_key`; leave `access` out for open access")
    seen: set[str] = set()
    digests: dict[str, str] = {}
    for index, key in _items(access, "keys"):
        loc: Loc = ("access", "keys", index)
        yield from _credential(loc, key, env, digests)
        name = _get(key, "name")
        if isinstance(name, str):
            if name in seen:
                yield at_value((*loc, "name"), f"{_shown(name)} is the name of another key")
            seen.add(name)
        for i, model in _texts(key, "models"):
            if model not in names.models and model not in names.aliases:
                yield at_value((*loc, "models", i), _unknown("model", model, {*names.models, *names.aliases}))
        for i, pool in _texts(key, "pools"):
            if pool not in {*names.pools, *PoolKind}:
                yield at_value((*loc, "pools", i), _unknown("pool or kind", pool, {*names.pools, *PoolKind}))
    if "operator_key" in _mapping(access):
        yield from _credential(("access", "operator_key"), _get(access, "operator_key"), env, digests)


def _credential(loc: Loc, key: object, env: Mapping[str, str], seen: dict[str, str]) -> Findings:
    if not isinstance(key, dict):
        return
    if ("env" in key) == ("sha256" in key):
        yield at_value(loc, "expected either `env` (a variable that holds the key) or `sha256` (its digest)")
        return
    variable, digest = key.get("env"), key.get("sha256")
    if isinstance(variable, str):
        secret = env.get(variable)
        if not secret:
            state = "is empty" if secret == "" else "is not set"
            yield at_value((*loc, "env"), f"environment variable {variable[:60]} {state}")
            return
        digest = digest_of(secret)
    if isinstance(digest, str):
        if digest.lower() in seen:
            yield at_value(loc, f"the same key as {seen[digest.lower()]}")
        seen.setdefault(digest.lower(), path_text(loc))


def digest_of(secret: str) -> str:
    """The form in which a key is stored and compared: SHA-256, in hexadecimal."""
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
