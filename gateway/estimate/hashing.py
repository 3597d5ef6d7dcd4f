"""Computes the history keys of a request, one per level, from broad to narrow.

A key is a hash of hashes in `Features`, salted with the model and the thinking switch; never of text. `hash` of a tuple
of integers is the same in every process, so workers and replicas agree.
"""

from __future__ import annotations

from hashlib import blake2b

from gateway.estimate.expert import CASES
from gateway.types import Features

LEVELS = ("model", "system", "shape", "case", "ask", "form", "head", "tail", "template", "size")
"""Levels, broad to narrow; each corrects the prediction of the one before. `case` is the expert's case, `ask` the case
with an instruction of about one length.
"""
_SHAPE, _CASE, _ASK = map(LEVELS.index, ("shape", "case", "ask"))
_NUMBER = {case: number for number, case in enumerate(CASES)}
_MASK = (1 << 64) - 1


def name_key(name: str) -> int:
    """64-bit key of a model's name."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def keys_of(features: Features, model_key: int, thinking: bool | None = None) -> tuple[int, ...]:
    """One 64-bit key per level; 0 if the request has nothing on that level.

    The levels `case` and `ask` need the text and stay 0; `with_case` fills them. `thinking` is the resolved switch.
    """
    salt = hash((model_key, 2 if thinking is None else int(thinking)))
    f = features
    system, shape, size = f.system_key, f.shape_key, f.input_tokens
    return (
        hash((0, salt, 1)) & _MASK,
        hash((1, salt, system)) & _MASK if system else 0,
        hash((2, salt, shape, system)) & _MASK if shape else 0,
        0,
        0,
        hash((3, salt, f.form_key, system)) & _MASK if f.form_key else 0,
        hash((4, salt, f.head_key, system)) & _MASK if f.head_key else 0,
        hash((5, salt, f.tail_key, system)) & _MASK if f.tail_key else 0,
        hash((6, salt, f.template_key)) & _MASK if f.template_key else 0,
        hash((7, salt, size, system, shape)) & _MASK if size else 0,
    )


def with_case(keys: tuple[int, ...], case: str, ask_tokens: int) -> tuple[int, ...]:
    """The keys with `case` and `ask` filled in. Through these, history carries over to other texts of the same kind."""
    shape = keys[_SHAPE]
    if not shape:
        return keys
    number = _NUMBER[case]
    by_case = hash((8, shape, number)) & _MASK
    by_ask = hash((9, shape, number, (ask_tokens + 1).bit_length())) & _MASK
    return (*keys[:_CASE], by_case, by_ask, *keys[_ASK + 1 :])
