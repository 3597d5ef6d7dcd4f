"""The bytes in which processes exchange what token counting has learned, per model.

A header (format, parts of a prompt, models, time), then per model the length of its name, the name, and the sums: the
observations, the upper triangle of the matrix, and the vector. About 1.1 KB per model.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from gateway.request.equations import Sums

_HEADER = struct.Struct("<4sHHIxxxxd")
_NAME = struct.Struct("<I")
_MAGIC = b"MTPT"
_FORMAT = 1


def pack(models: Mapping[str, Sums], size: int, at: float) -> bytes:
    """The sums by model as bytes. `size`: parts of a prompt. `at`: seconds since the epoch."""
    numbers = _numbers(size)
    pieces = [_HEADER.pack(_MAGIC, _FORMAT, size, len(models), at)]
    for name, (seen, matrix, vector) in models.items():
        raw = name.encode("utf-8", "surrogatepass")
        upper = [matrix[i][j] for i in range(size) for j in range(i, size)]
        pieces += [_NAME.pack(len(raw)), raw, numbers.pack(seen, *upper, *vector)]
    return b"".join(pieces)


def unpack(data: bytes, size: int) -> tuple[float, dict[str, Sums]]:
    """(time, sums by model). Raises `ValueError` if `data` is none of this format, or of other parts."""
    try:
        magic, version, parts, count, at = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != _FORMAT or parts != size or not math.isfinite(at):
            raise ValueError("Not token weights of this version.")
        numbers = _numbers(size)
        place = _HEADER.size
        models: dict[str, Sums] = {}
        for _ in range(count):
            (length,) = _NAME.unpack_from(data, place)
            place += _NAME.size
            name = data[place : place + length].decode("utf-8", "surrogatepass")
            models[name] = _sums(numbers.unpack_from(data, place + length), size)
            place += length + numbers.size
    except struct.error as error:
        raise ValueError("Token weights that break off.") from error
    return at, models


def _numbers(size: int) -> struct.Struct:
    return struct.Struct(f"<{1 + size * (size + 1) // 2 + size}d")


def _sums(numbers: tuple[float, ...], size: int) -> Sums:
    if not all(map(math.isfinite, numbers)):
        raise ValueError("Token weights that are not numbers.")
    seen, *rest = numbers
    upper = iter(rest)
    matrix = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i, size):
            matrix[i][j] = matrix[j][i] = next(upper)
    # The diagonal holds sums of squares.
    if seen < 0.0 or any(matrix[i][i] < 0.0 for i in range(size)):
        raise ValueError("Token weights that no prompt can have led to.")
    return Sums(seen, matrix, list(upper))
