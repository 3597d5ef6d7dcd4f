"""The catalogue (catalog.yaml) as types: models, slices, what an engine needs besides, vLLM's releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from gateway.deployments.versions import Broken, Engines, Note, Range, Variable, Version


class Weights(StrEnum):
    """How the target's weights are stored."""

    BF16 = "bf16"
    FP8 = "fp8"
    """The bf16 checkpoint, quantised by vLLM while it loads; embeddings stay bf16."""
    NVFP4 = "nvfp4"


class UnknownName(LookupError):
    """No such model or slice; the message lists the names there are."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The decoder's dimensions, as in config.json. Every `period`-th layer sees the whole context, others `window`."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    global_kv_heads: int
    shared_kv_layers: int
    """The last layers, which read an earlier layer's keys and values and have no cache of their own."""
    period: int
    window: int
    per_layer_input: int
    wide_shared: bool
    """Layers that share keys and values have an MLP of twice the width."""
    k_eq_v: bool
    """Global layers compute keys only and use them as values too."""
    experts: int = 0
    expert_intermediate: int = 0
    vocabulary: int = 262144
    head: int = 256
    global_head: int = 512

    def is_global(self, layer: int) -> bool:
        return layer % self.period == self.period - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A ready-made quantised repository and the size of its weights, 10^9 bytes."""

    repository: str
    gigabytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A Gemma 4 target with the assistant that is paired with it."""

    name: str
    repository: str
    assistant: str
    served_name: str
    profile: str
    context: int
    """Longest context that the model was made for, tokens."""
    shape: Shape
    tower_parameters: float
    """Vision and audio encoders and projections."""
    drafter_parameters: float
    depth: int
    """Draft tokens to start with."""
    weights: tuple[Weights, ...]
    nvfp4: Checkpoint | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A GPU or the part of one that an engine gets."""

    name: str
    gib: float
    """Memory that the engine sees."""
    share: float
    """The part of it that vLLM may use."""
    resource: str
    """The resource's name in Kubernetes."""
    profile: str
    """Hardware in the speed profiles. A larger slice has more bandwidth and arithmetic alike, so the batch at which
    drafting stops paying is taken as the quarter slice's."""
    source: str
    aliases: tuple[str, ...] = ()

    @property
    def is_mig(self) -> bool:
        return self.resource.startswith("nvidia.com/mig-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """GiB besides weights and KV cache."""

    graphs_plain: float
    graphs_mtp: float
    runtime: float
    source: str


@dataclass(frozen=True, slots=True)
class Catalog:
    models: Mapping[str, Model]
    slices: Mapping[str, Slice]
    overhead: Overhead
    engines: Engines

    def model(self, name: str) -> Model:
        """By name, served name or repository, in any case; raises UnknownName."""
        wanted = name.lower()
        for found in self.models.values():
            if wanted in (found.name.lower(), found.served_name, found.repository.lower()):
                return found
        raise UnknownName(f"no model {name!r}; there are {', '.join(self.models)}")

    def slice(self, name: str) -> Slice:
        """By name or alias, in any case; raises UnknownName."""
        wanted = name.lower()
        for found in self.slices.values():
            if wanted == found.name or wanted in found.aliases:
                return found
        raise UnknownName(f"no slice {name!r}; there are {', '.join(self.slices)}")


@cache
def catalog() -> Catalog:
    """The catalogue that ships with the program."""
    raw: dict[str, Any] = yaml.safe_load(files("gateway.deployments").joinpath("catalog.yaml").read_text("utf-8"))
    return Catalog(
        {name: _model(name, row) for name, row in raw["models"].items()},
        {
            name: Slice(name=name, **{**row, "aliases": tuple(row.get("aliases", ()))})
            for name, row in raw["slices"].items()
        },
        Overhead(**raw["overhead"]),
        _engines(raw["vllm"]),
    )


def _model(name: str, row: dict[str, Any]) -> Model:
    return Model(
        name=name,
        **{
            **row,
            "shape": Shape(**row["shape"]),
            "weights": tuple(Weights(kind) for kind in row["weights"]),
            "nvfp4": Checkpoint(**row["nvfp4"]) if "nvfp4" in row else None,
        },
    )


def _engines(raw: dict[str, Any]) -> Engines:
    return Engines(
        default=Version.parse(raw["default"]),
        checked=tuple(Version.parse(text) for text in raw["checked"]),
        guard_from=Version.parse(raw["guard_from"]),
        fp8_cache_mtp_from=Version.parse(raw["fp8_cache_mtp_from"]),
        broken=tuple(
            Broken(where=_range(row), why=row["why"], works=Version.parse(row["works"]), source=row["source"])
            for row in raw["broken"]
        ),
        environment=tuple(
            Variable(where=_range(row), name=row["name"], value=row["value"], source=row["source"])
            for row in raw["environment"]
        ),
        notes=tuple(Note(where=_range(row), text=row["text"]) for row in raw["notes"]),
    )


def _range(row: dict[str, Any]) -> Range:
    return Range(
        since=Version.parse(row["from"]) if "from" in row else None,
        before=Version.parse(row["before"]) if "before" in row else None,
        models=frozenset(row.get("models", ())),
        mtp_only=row.get("mtp", False),
    )
