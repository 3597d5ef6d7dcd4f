"""Everything that can be set on one simulated server."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.profiles import DEFAULT_HARDWARE, MAX_DRAFT_TOKENS
from gateway.sim.faults import HEALTHY, Faults
from gateway.sim.kv import BLOCK_TOKENS

VERSION = "0.33.0+simulated"
"""The vLLM whose wire format is played, and that it is only played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """One server. Raises ValueError for values that cannot work together."""

    model: str = "google/gemma-4-E4B-it"
    served_names: tuple[str, ...] = ()
    """Names that clients may use; empty: the model itself."""
    host: str = "127.0.0.1"
    port: int = 8000
    k: int = 0
    """Draft tokens per step; 0 is a plain server, with no speculative-decoding metrics."""
    profile: str = DEFAULT_HARDWARE
    """Hardware, or hardware/model where the model's name does not say its size."""
    architecture: str | None = None
    """`dense` or `moe`, where the model's name does not say."""
    seed: int = 0
    time_scale: float = 1.0
    """Simulated seconds per real second."""
    max_model_len: int = 16384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_tokens: int = 262144
    """Tokens that the key/value cache holds."""
    max_num_queued_reqs: int | None = None
    """Refuse with 503 above so many requests, running ones included; None: an unbounded queue, vLLM's default."""
    api_key: str | None = None
    per_request_metrics: bool = False
    prompt_tokens_details: bool = False
    force_include_usage: bool = False
    request_id_headers: bool = False
    shutdown_timeout: int = 5
    """Seconds that running requests get after SIGTERM before they are cut."""
    faults: Faults = HEALTHY

    def __post_init__(self) -> None:
        if not 0 <= self.k <= MAX_DRAFT_TOKENS:
            raise ValueError(f"k must be 0 to {MAX_DRAFT_TOKENS}, got {self.k}")
        if not 0 < self.time_scale < math.inf:
            raise ValueError(f"time scale must be above 0 and finite, got {self.time_scale}")
        if (self.max_num_queued_reqs or 0) < 0 or self.shutdown_timeout < 0:
            raise ValueError("max_num_queued_reqs and shutdown_timeout must be at least 0")
        if self.architecture not in (None, "dense", "moe"):
            raise ValueError(f"architecture is dense or moe, got {self.architecture!r}")
        if self.max_model_len < 2 or self.kv_tokens < self.max_model_len + 2 * BLOCK_TOKENS:
            raise ValueError("the key/value cache must hold max_model_len tokens and two blocks more")

    @property
    def version(self) -> str:
        """What `/version` says: also how much faster than the profile it plays, as `+simulated.x15`."""
        return VERSION if self.time_scale == 1.0 else f"{VERSION}.x{self.time_scale:g}"

    @property
    def names(self) -> tuple[str, ...]:
        return self.served_names or (self.model,)

    @property
    def drafting(self) -> bool:
        return self.k > 0
