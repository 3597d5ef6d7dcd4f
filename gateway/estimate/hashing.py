"""The keys under which a request's answers are remembered, from broad to narrow.

A key is a hash of hashes that `Features` holds, salted with the model and whether it thinks; never of text. Python
hashes a tuple of integers alike in every process, so that workers and replicas agree.
"""

from __future__ import annotations

from hashlib import blake2b

from gateway.types import Features

LEVELS = ("model", "system", "shape", "form", "head", "tail", "template", "size")
"""Broad to narrow: each level corrects what the one before says."""
_MASK = (1 << 64) - 1


def name_key(name: str) -> int:
    """64-bit key of a model's name."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def keys_of(features: Features, model_key: int, thinking: bool | None = None) -> tuple[int, ...]:
    """One 64-bit key a level, 0 where the request has nothing to say on it. `thinking`: the resolved switch."""
    thinks = 2 if thinking is None else int(thinking)
    salt = hash((model_key, thinks))
    system, shape = features.system_key, features.shape_key
    size = features.input_tokens
    parts = (
        (0, salt, 1),
        (1, salt, system) if system else None,
        (2, salt, shape, system) if shape else None,
        (3, salt, features.form_key, system) if features.form_key else None,
        (4, salt, features.head_key, system) if features.head_key else None,
        (5, salt, features.tail_key, system) if features.tail_key else None,
        (6, salt, features.template_key) if features.template_key else None,
        (7, salt, size, system, shape) if size else None,
    )
    return tuple(hash(part) & _MASK if part else 0 for part in parts)
