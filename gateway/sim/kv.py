"""The simulated key/value cache: blocks in use, and a least-recently-used set of prompt blocks worth keeping."""

from __future__ import annotations

from collections import OrderedDict

BLOCK_TOKENS = 16


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


class KvCache:
    """Counts blocks. Cached prompts live in blocks that nobody else needs, so they never cause a refusal."""

    def __init__(self, total_blocks: int) -> None:
        if total_blocks < 1:
            raise ValueError(f"the cache needs at least one block, got {total_blocks}")
        self.total = total_blocks
        self.used = 0
        self.queries = 0
        """Prompt tokens looked up."""
        self.hits = 0
        """Prompt tokens found."""
        self._known: OrderedDict[int, None] = OrderedDict()

    @property
    def usage(self) -> float:
        return self.used / self.total

    def match(self, hashes: tuple[int, ...], prompt_tokens: int) -> int:
        """Tokens of the prompt that are in the cache. One token at least is always computed."""
        found = 0
        for key in hashes:
            if key not in self._known:
                break
            self._known.move_to_end(key)
            found += 1
        hit = min(found * BLOCK_TOKENS, (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        self.queries += prompt_tokens
        self.hits += max(hit, 0)
        return max(hit, 0)

    def remember(self, hashes: tuple[int, ...]) -> None:
        for key in hashes:
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > self.total:
            self._known.popitem(last=False)

    def resize(self, held: int, wanted: int) -> bool:
        """Moves one holder from `held` to `wanted` blocks; False, and nothing done, where they do not fit."""
        if self.used - held + wanted > self.total:
            return False
        self.used += wanted - held
        return True
