"""What an engine's vLLM version means for its pool: known faults of drafting, and whether the policy is right."""

from __future__ import annotations

from gateway.policy.schema import Pool
from gateway.policy.values import RELEASE
from gateway.types import Need, PoolKind

_JSON_AFTER_THINKING = (0, 33)
"""First release that constrains JSON after thinking correctly while it drafts (vllm-project/vllm#44993)."""


def release(version: str) -> tuple[int, ...] | None:
    """The two or three numbers of a release; None for no version, or a development build."""
    found = RELEASE.fullmatch(version.strip())
    if found is None or "dev" in version:
        return None
    return tuple(int(part) for part in found.groups() if part is not None)


def faults(pool: Pool, version: str | None) -> list[str]:
    """Known faults of this version that the pool's `refuses` does not keep requests from."""
    if pool.kind is not PoolKind.MTP or pool.refuses & {Need.STRUCTURED, Need.STRUCTURED_THINKING}:
        return []
    numbers = release(version) if version else None
    if numbers is None or numbers >= _JSON_AFTER_THINKING:
        return []
    return [
        f"vLLM {version} may break strict JSON after thinking where it drafts (mended in 0.33); "
        "add structured_thinking to `refuses`"
    ]


def disagreement(pool: Pool, told: str | None) -> str | None:
    """Says that an engine of the pool tells another version than the policy; None where they agree or are unknown."""
    stated = pool.engine.vllm
    ours, theirs = release(stated or ""), release(told or "")
    if ours is None or theirs is None or theirs[: len(ours)] == ours:
        return None
    return (
        f"the policy says that pool {pool.name} runs vLLM {stated}, but the engine runs {told}; correct `engine.vllm`"
    )
