"""Hard gates: what a pool cannot or may not serve. They come before any preference, and each names its reason.

Capability gates (`refuses`, modality, window, key) say what an engine can never do for this request; state gates
(`down`, `full`) what it cannot do now. A preference yields to both; a fall-back to another pool passes them again.
"""

from __future__ import annotations

from gateway.policy.schema import AccessKey, Model, Pool
from gateway.types import Features, PoolLoad

WINDOW_MARGIN = 1.1
"""The prompt's tokens are an estimate, mostly within 10 %. A prompt that might not fit goes to a larger window."""


def capability_gate(features: Features, model: Model, pool: Pool, key: AccessKey | None, load: PoolLoad) -> str | None:
    """Why this pool can never serve the request, or None."""
    if features.needs and (refused := features.needs & pool.refuses):
        return f"refuses {min(refused)}"
    if key and key.pools is not None and pool.name not in key.pools:
        return f"not allowed for key {key.name}"
    if model.modalities is not None and (missing := features.modalities - model.modalities):
        return f"no {min(missing)} input"
    if load.window is not None and tokens_needed(features) > load.window:
        return f"context window {load.window}"
    return None


def tokens_needed(features: Features) -> float:
    """Context that an engine must have: vLLM refuses a prompt that leaves no room for the output asked for."""
    answer = features.token_limit if features.explicit_cap and features.token_limit else 1
    return features.input_tokens * WINDOW_MARGIN + max(answer, features.floor)


def state_gate(load: PoolLoad) -> str | None:
    """Why this pool cannot take the request now, or None."""
    if not load.up:
        return "down"
    return "full" if load.full else None
