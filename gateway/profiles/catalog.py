"""The profiles as data: reading them from YAML, and finding the one that a policy or a command means.

A policy says `profile: g4-slice` and names models as it likes, so `match_profile` looks for the model's size in its
name (`gemma-4-26b`, `google/gemma-4-E4B-it`), then goes by its architecture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, TypeVar

import yaml

from gateway.profiles.speed import Acceptance, Attention, Decode, Prefill, Profile
from gateway.types import Task

DEFAULT_HARDWARE = "g4-slice"

CLASSES: Mapping[str, tuple[Task, ...]] = {
    "code": (Task.CODE,),
    "math": (Task.MATH, Task.REASONING),
    "json": (Task.STRUCTURED_JSON, Task.TOOL_CALL, Task.EXTRACTION),
}
"""Tasks by class of acceptance; a task named nowhere is prose."""

_SIZES = (
    ("26b-a4b", re.compile(r"26b|a4b|moe", re.IGNORECASE)),
    ("31b", re.compile(r"31b", re.IGNORECASE)),
    ("12b", re.compile(r"12b", re.IGNORECASE)),
    ("e4b", re.compile(r"(?<!a)4b", re.IGNORECASE)),
    ("e2b", re.compile(r"e?2b", re.IGNORECASE)),
)
_BY_ARCHITECTURE = {"moe": "26b-a4b", "dense": "e4b"}

_Terms = TypeVar("_Terms", Decode, Prefill, Attention)


class ProfileError(ValueError):
    """A profile file that does not say what it must."""


class UnknownProfile(LookupError):
    """No such hardware or model; the message lists the names there are."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Catalog:
    """Profiles by hardware, then by model."""

    profiles: Mapping[str, Mapping[str, Profile]]

    def hardware(self) -> tuple[str, ...]:
        return tuple(self.profiles)

    def models(self, hardware: str) -> tuple[str, ...]:
        """Raises UnknownProfile."""
        return tuple(self._of(hardware))

    def get(self, hardware: str, model: str) -> Profile:
        """The profile of a model by its size (`e4b`) or its architecture (`dense`, `moe`).

        Raises UnknownProfile.
        """
        models = self._of(hardware)
        profile = models.get(_BY_ARCHITECTURE.get(model.lower(), model.lower()))
        if profile is None:
            names = ", ".join([*models, *_BY_ARCHITECTURE])
            raise UnknownProfile(f"no model {model!r} in profile {hardware!r}; it has: {names}")
        return profile

    def match(self, hardware: str, model_name: str, architecture: str | None = None) -> Profile:
        """The best profile for a model known by a free name and, perhaps, by `dense` or `moe`.

        `hardware` may name the model too, as `g4-slice/26b-a4b`; that settles it. A size in the name that contradicts
        the stated architecture yields to the architecture. Without any hint the model counts as dense.

        Raises UnknownProfile for the hardware, or for a model named in it.
        """
        hardware, _, named = hardware.partition("/")
        if named:
            return self.get(hardware, named)
        models = self._of(hardware)
        for size, pattern in _SIZES:
            profile = models.get(size)
            if profile is not None and pattern.search(model_name):
                if architecture is None or profile.moe == (architecture == "moe"):
                    return profile
                break
        return self.get(hardware, architecture or "dense")

    def only(self, model_name: str, architecture: str | None = None) -> Profile:
        """As `match`, for a file about one piece of hardware. A file about one model means it whatever its name.

        Raises UnknownProfile.
        """
        if len(self.profiles) != 1:
            raise UnknownProfile(f"describes {len(self.profiles)} kinds of hardware; keep one in the file")
        (hardware, models), *_ = self.profiles.items()
        if len(models) == 1:
            return next(iter(models.values()))
        return self.match(hardware, model_name, architecture)

    def _of(self, hardware: str) -> Mapping[str, Profile]:
        models = self.profiles.get(hardware)
        if models is None:
            raise UnknownProfile(f"no profile {hardware!r}; there are: {', '.join(self.profiles)}")
        return models


def parse_catalog(text: str) -> Catalog:
    """Reads a profile file: `hardware: {NAME: {source, acceptance, models: {...}}}` plus named `acceptance` sets.

    Raises ProfileError, which says where.
    """
    try:
        document = yaml.safe_load(text)
        shared = {name: _acceptance(sets) for name, sets in document.get("acceptance", {}).items()}
        return Catalog(
            {
                hardware: {
                    model: _profile(hardware, model, {**about, **entry}, shared)
                    for model, entry in about["models"].items()
                }
                for hardware, about in document["hardware"].items()
            }
        )
    except yaml.YAMLError as error:
        raise ProfileError(f"not YAML: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"profile file: {error}") from error


@lru_cache(maxsize=64)
def known_catalog(text: str) -> Catalog:
    """As `parse_catalog`; the same text gives the same objects, so that a reload knows that speeds have not changed."""
    return parse_catalog(text)


def _profile(hardware: str, model: str, entry: Mapping[str, Any], shared: Mapping[str, Any]) -> Profile:
    given = entry["acceptance"]
    decode = _terms(Decode, entry["decode"])
    return Profile(
        hardware=hardware,
        model=model,
        moe=decode.experts > 0,
        source=" ".join(str(entry["source"]).split()),
        decode=decode,
        prefill=_terms(Prefill, entry["prefill"]),
        attention=_terms(Attention, entry.get("attention", {})),
        by_task=shared[given] if isinstance(given, str) else _acceptance(given),
    )


def _terms(kind: type[_Terms], values: Mapping[str, Any]) -> _Terms:
    unknown = set(values) - {field.name for field in fields(kind)}
    if unknown:
        raise ValueError(f"{kind.__name__.lower()} has no {', '.join(sorted(unknown))}")
    return kind(**{name: float(value) for name, value in values.items()})


def _acceptance(sets: Mapping[str, Any]) -> dict[Task, Acceptance]:
    """Every task's acceptance, from lists of unconditional rates or one conditional rate for all positions."""
    classes = {
        name: Acceptance.of(tuple(rates) if isinstance(rates, list) else (float(rates),))
        for name, rates in sets.items()
    }
    by_task = {task: classes["prose"] for task in Task}
    for name, tasks in CLASSES.items():
        by_task.update(dict.fromkeys(tasks, classes[name]))
    return by_task


@cache
def builtin_catalog() -> Catalog:
    """The profiles that come with the gateway, read on first use."""
    return parse_catalog(files("gateway.profiles").joinpath("speeds.yaml").read_text("utf-8"))


def get_profile(hardware: str, model: str) -> Profile:
    """A built-in profile by hardware and model size or architecture. Raises UnknownProfile."""
    return builtin_catalog().get(hardware, model)


def match_profile(hardware: str, model_name: str, architecture: str | None = None) -> Profile:
    """A built-in profile for a model known by a free name; see `Catalog.match`. Raises UnknownProfile."""
    return builtin_catalog().match(hardware, model_name, architecture)
