"""What a pool's engines did lately, from differences of their counters: throughput, times, cache hits."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.telemetry.counters import Counts, mean, seconds_per_token

RATE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Of all engines of a pool together, other clients' requests included. None where nothing tells."""

    seconds: float
    """That the figures are over."""
    requests_per_second: float
    prompt_tokens_per_second: float
    generation_tokens_per_second: float
    preemptions_per_second: float
    prefix_hit_share: float | None
    """Of prompt tokens looked up."""
    seconds_per_token: float | None
    """Per output token after the first, of requests that finished."""
    seconds_per_step: float | None
    """Per engine step under drafting, per token without."""
    first_token_seconds: float | None
    queue_seconds: float | None


def rates_of(counts: Counts, seconds: float) -> Rates:
    """Rates of counts that came together in `seconds`."""
    span = max(seconds, 1e-3)
    queries = counts.get("prefix_queries", 0.0)
    return Rates(
        seconds=seconds,
        requests_per_second=counts.get("finished", 0.0) / span,
        prompt_tokens_per_second=counts.get("prompt_tokens", 0.0) / span,
        generation_tokens_per_second=counts.get("generation_tokens", 0.0) / span,
        preemptions_per_second=counts.get("preemptions", 0.0) / span,
        prefix_hit_share=counts.get("prefix_hits", 0.0) / queries if queries > 0 else None,
        seconds_per_token=seconds_per_token(counts),
        seconds_per_step=mean(counts, "step"),
        first_token_seconds=mean(counts, "ttft"),
        queue_seconds=mean(counts, "queue"),
    )
