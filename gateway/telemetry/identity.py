"""The identity of a back end: vLLM version, served model names, context lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a back end's model list."""

    name: str
    root: str | None
    """The model behind the name; it changes when a fine-tuned model replaces it."""
    parent: str | None
    """The base model of an adapter (LoRA); None for a base model."""
    max_model_len: int | None
    """Tokens, prompt and output together."""


@dataclass(frozen=True, slots=True)
class Identity:
    """From `/version` and `/v1/models`; None or empty where unknown."""

    version: str | None = None
    models: tuple[ServedModel, ...] = ()

    def context_length(self, name: str) -> int | None:
        """Of the model served as `name`, else the shortest of all, so that a gate does not admit too long a request."""
        lengths = {model.name: model.max_model_len for model in self.models if model.max_model_len}
        return lengths.get(name) or min((n for n in lengths.values() if n), default=None)

    def as_dict(self) -> dict[str, object]:
        return {
            "version": self.version,
            "models": [
                {"name": m.name, "root": m.root, "parent": m.parent, "max_model_len": m.max_model_len}
                for m in self.models
            ],
        }


def parse_version(body: bytes) -> str | None:
    """The version in a `/version` body, or None. Never raises."""
    parsed = _json(body)
    return _text(parsed.get("version")) if isinstance(parsed, dict) else None


def parse_models(body: bytes) -> tuple[ServedModel, ...]:
    """The entries with a name in a `/v1/models` body. Never raises."""
    parsed = _json(body)
    rows = parsed.get("data") if isinstance(parsed, dict) else None
    models = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and (name := _text(row.get("id"))):
            length = row.get("max_model_len")
            known = length if type(length) is int and length > 0 else None
            models.append(ServedModel(name, _text(row.get("root")), _text(row.get("parent")), known))
    return tuple(models)


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _text(value: object) -> str | None:
    return value[:256] if isinstance(value, str) and value else None
