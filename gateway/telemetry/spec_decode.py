"""Acceptance of draft tokens, from counter differences or from the metrics in an answer.

A draft is one sequence in one verify step. Definitions as in vLLM's log line and `vllm bench`:

    acceptance rate         = accepted / drafted tokens
    mean acceptance length  = 1 + accepted / drafts          (the token that the target adds is counted: 1 .. k+1)
    rate of position i      = accepted at i / drafts         (unconditional, so it falls with i)
    decay at i              = rate of position i+1 / rate of position i

Numerators and denominators are summed over endpoints, engines and time and then divided; rates are never averaged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.telemetry.vllm import MAX_POSITIONS, position
from gateway.types import SpecSample

_KEY = b'"speculative_decoding"'
_SPEC_BYTES = 2048
_LIST = re.compile(rb'"acceptance_histogram"\s*:\s*\[([\d\s,]{1,512})\]')
_STEPS = re.compile(rb'"num_spec_steps"\s*:\s*(\d{1,9})')
_DRAFTED = re.compile(rb'"num_draft_tokens"\s*:\s*(\d{1,9})')
_ACCEPTED = re.compile(rb'"num_accepted_draft_tokens"\s*:\s*(\d{1,9})')


def counts_of(sample: SpecSample) -> dict[str, float]:
    """The sample's counts under the names of a `Reading`, for a `Window`."""
    sums = {"drafts": sample.drafts, "draft_tokens": sample.draft_tokens, "accepted_tokens": sample.accepted_tokens}
    return sums | {position(i): count for i, count in enumerate(sample.accepted_at)}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance rates of a number of drafts."""

    drafts: float
    rate: float
    """Accepted over drafted tokens, 0..1."""
    mean_length: float
    """Tokens per verify step, 1..k+1."""
    positions: tuple[float, ...] = field(default=())
    """Unconditional rate of each draft position, 0..1."""

    @property
    def decay(self) -> tuple[float, ...]:
        """Rate of each position / rate of the one before it; ends at a position with rate 0."""
        ratios = []
        for before, after in zip(self.positions, self.positions[1:], strict=False):
            if before <= 0:
                break
            ratios.append(after / before)
        return tuple(ratios)

    def as_dict(self) -> dict[str, object]:
        return {
            "drafts": self.drafts,
            "acceptance_rate": round(self.rate, 4),
            "mean_acceptance_length": round(self.mean_length, 4),
            "position_acceptance_rates": [round(rate, 4) for rate in self.positions],
            "decay": [round(ratio, 4) for ratio in self.decay],
        }


def acceptance(counts: Mapping[str, float]) -> Acceptance | None:
    """Acceptance from summed counts; None (unknown, not 0) where nothing was drafted."""
    drafts = counts.get("drafts", 0.0)
    drafted, accepted = counts.get("draft_tokens", 0.0), counts.get("accepted_tokens", 0.0)
    if drafts <= 0 or drafted <= 0:
        return None
    at = [counts[name] for name in map(position, range(MAX_POSITIONS)) if name in counts]
    return Acceptance(
        drafts=drafts,
        rate=min(accepted / drafted, 1.0),
        mean_length=1.0 + accepted / drafts,
        positions=tuple(min(count / drafts, 1.0) for count in at),
    )


def find_spec_metrics(tail: bytes) -> SpecSample | None:
    """The last `metrics.speculative_decoding` in an answer's body or a stream's tail, or None.

    JSON strings escape quotes, so the quoted key cannot occur in the answer's text. A step with j accepted tokens
    accepted positions 0 to j-1, so the counts by position follow from the histogram.
    """
    start = tail.rfind(_KEY)
    if start < 0:
        return None
    part = tail[start : start + _SPEC_BYTES]
    steps, drafted, accepted = _STEPS.search(part), _DRAFTED.search(part), _ACCEPTED.search(part)
    if not steps or not drafted or not accepted:
        return None
    histogram = _LIST.search(part)
    by_accepted = _integers(histogram[1]) if histogram else []
    at = tuple(float(sum(by_accepted[i + 1 :])) for i in range(min(len(by_accepted) - 1, MAX_POSITIONS)))
    sample = SpecSample(float(steps[1]), float(drafted[1]), float(accepted[1]), at)
    plausible = 0 < sample.drafts <= sample.draft_tokens and sample.accepted_tokens <= sample.draft_tokens
    return sample if plausible else None


def _integers(listed: bytes) -> list[int]:
    try:
        return [int(text) for text in listed.split(b",")]
    except ValueError:
        return []
