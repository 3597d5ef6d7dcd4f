"""The overload guard: how many tokens to draft by batch size, for vLLM's `num_speculative_tokens_per_batch_size`.

The gateway itself keeps load off MTP engines. The table is for what it cannot see: other clients of the engine, or a
burst within a second. The engine drafts as deep as asked for as long as that is no slower than plain decoding of
ordinary text (the profile's prose), and less and less beyond. The figures are derived from the speed profiles.
"""

from __future__ import annotations

from gateway.profiles.speed import Profile
from gateway.types import Task

Table = tuple[tuple[int, int, int], ...]
"""Rows of (first batch size, last batch size, draft tokens), from 1 on, without gaps."""


def overload_guard(profile: Profile, depth: int, sequences: int) -> Table:
    """The table up to `sequences`, for an engine that drafts `depth` tokens.

    Depth never rises with the batch: a MoE on which drafting does not pay for one or two streams drafts there all the
    same, for the gateway sends such requests elsewhere and the next stream makes it pay.
    """
    pays = [0] * (sequences + 2)
    for batch in range(sequences, 0, -1):
        plain = profile.tpot(Task.CHAT, batch, 0)
        deepest = next((k for k in range(depth, 0, -1) if profile.tpot(Task.CHAT, batch, k) <= plain), 0)
        pays[batch] = max(deepest, pays[batch + 1])
    rows: list[tuple[int, int, int]] = []
    for batch in range(1, sequences + 1):
        if rows and rows[-1][2] == pays[batch]:
            rows[-1] = (rows[-1][0], batch, pays[batch])
        else:
            rows.append((batch, batch, pays[batch]))
    return tuple(rows)
