"""What `gpu_arms` sends: drawn arrivals with texts, so that the gateway has tasks to recognise."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from random import Random

from gateway.bench.drive import Ask
from gateway.bench.sources import class_prompts, data, filler
from gateway.simulate.mixed import TOKENS, Arrival

CONTEXT_TOKENS = 200.0
HALVES = {"short": 0.5, "prose": 0.5}


def asks(arrivals: Sequence[Arrival], seed: int) -> list[Ask]:
    """Requests with about `CONTEXT_TOKENS` of filler before the wish. A tag is `KIND/TOKENS`."""
    rng = Random(f"text {len(arrivals)} {seed}")
    found = []
    for arrival in arrivals:
        wish = rng.choice(_wishes(arrival.kind))
        content = f"{filler(CONTEXT_TOKENS, rng)}\n\n{wish}"
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": arrival.tokens}
        found.append(Ask(arrival.at, body, f"{arrival.kind}/{arrival.tokens}"))
    return found


def parse_shares(text: str) -> Mapping[str, float]:
    """`short=0.5,prose=0.5`. Raises argparse.ArgumentTypeError."""
    try:
        shares = {name: float(share) for name, _, share in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError("expected KIND=SHARE,...") from None
    if unknown := [name for name in shares if name not in TOKENS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; kinds: {', '.join(TOKENS)}")
    if min(shares.values()) < 0.0 or not sum(shares.values()):
        raise argparse.ArgumentTypeError("shares are not negative and not all 0")
    return shares


def told(shares: Mapping[str, float]) -> str:
    """The mix in words."""
    whole = sum(shares.values())
    parts = (f"{share / whole:.0%} {kind} ({_lengths(kind)} tokens)" for kind, share in shares.items())
    return ", ".join(parts)


def _lengths(kind: str) -> str:
    return " or ".join(map(str, TOKENS[kind]))


def _wishes(kind: str) -> list[str]:
    labels: list[str] = data("prompts")["tasks"]["classification"]["asks"]
    return labels if kind == "short" else class_prompts(kind)
