"""Compares whether and how deep a pool drafts according to the policy with what its engines' counters show.

vLLM exports speculative-decoding counters only with a drafter, one per draft position. Routing trusts the policy, so
an engine that was started differently makes every estimate for its pool wrong. Each mismatch is logged once per change
and shown to operators for as long as it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass

from gateway.telemetry.endpoint import Membership, Target
from gateway.telemetry.vllm import Snapshot

log = logging.getLogger("gateway.telemetry")


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A mismatch at one endpoint of one pool."""

    pool: str
    url: str
    policy_tokens: int
    """k in the policy; 0 for a plain pool."""
    drafting: bool
    tokens: int
    """k on the page; 0 where it is unknown or the engine does not draft."""

    @property
    def message(self) -> str:
        if not self.drafting:
            return (
                f"the policy says that pool {self.pool} drafts {self.policy_tokens} tokens, but the engine has no "
                "speculative-decoding counters: it runs without a drafter, or its version does not export them"
            )
        claim = f"drafts {self.policy_tokens} tokens" if self.policy_tokens else "is plain"
        depth = f"{self.tokens} tokens" if self.tokens else "tokens"
        return f"the policy says that pool {self.pool} {claim}, but the engine drafts {depth}"

    def as_dict(self) -> dict[str, object]:
        return {"pool": self.pool, "endpoint": self.url, "message": self.message}


class DraftingWatch:
    """Tracks the current mismatches by pool and endpoint."""

    def __init__(self) -> None:
        self._standing: dict[tuple[str, str], Disagreement] = {}

    def current(self) -> tuple[Disagreement, ...]:
        return tuple(self._standing.values())

    def match(self, urls: Container[str]) -> None:
        """Forgets endpoints that are not in `urls`."""
        self._standing = {key: found for key, found in self._standing.items() if key[1] in urls}

    def check(self, target: Target, snapshot: Snapshot) -> None:
        """Compares one page with the policy of each pool that contains the endpoint."""
        if snapshot.drafting is None:
            return
        for member in target.members:
            key = member.pool, target.url
            found = compare(member, target.url, snapshot.drafting, snapshot.positions)
            before = self._standing.get(key)
            if found is None:
                self._standing.pop(key, None)
                if before is not None:
                    log.info("policy and engine agree on drafting again", extra={"fields": _fields(before)})
            elif found != before:
                self._standing[key] = found
                log.warning(found.message, extra={"fields": _fields(found)})


def compare(member: Membership, url: str, drafting: bool, tokens: int) -> Disagreement | None:
    """None where page and policy agree. A page without a k agrees with any k."""
    if drafting == (member.k > 0) and (not drafting or tokens in (0, member.k)):
        return None
    return Disagreement(member.pool, url, member.k, drafting, tokens)


def _fields(found: Disagreement) -> dict[str, object]:
    return {"pool": found.pool, "endpoint": found.url}
