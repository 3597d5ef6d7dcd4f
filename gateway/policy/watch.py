"""Follows a policy file and hands over each new valid policy, once.

Content decides, not time stamps: an edit in place, a rename over the file and Kubernetes' swap of the `..data` link all
end in different bytes at the same path. New bytes are taken only after they have stayed the same for `settle` seconds,
so that a half-written file is not read. A file that never rests for so long is taken after `PATIENCE` as it is, unless
what came before or after begins alike, as that of a file being written does. A file that is invalid, gone or unreadable
changes nothing; it is reported once for each distinct content, and the last good policy stays in use. When the file
holds that policy again, nothing is reloaded, but it is told, so that whoever was alarmed knows of the end.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from gateway.policy.load import parse_policy, read_bytes
from gateway.policy.problems import PolicyInvalid, Problem
from gateway.policy.schema import Policy

INTERVAL = 0.5
SETTLE = 0.4
"""Seconds that new content must stay the same. With `INTERVAL` and parsing, a change is live within 2 s."""
PATIENCE = 0.8
"""Seconds after which content that keeps changing is taken all the same, so that such a file is live within 2 s too."""
MOMENT = 0.05
"""Seconds in which a write that is under way goes on."""
MAX_SHOWN = 50
"""Problems that the state keeps; `on_failure` gets all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadState:
    """For `/gateway/policy` and metrics."""

    version: str
    """`Policy.version_hash` of the policy in use."""
    loaded_at: float
    """Seconds since the epoch."""
    last_error: str | None = None
    """The first problems of the file as it is now, one a line; None while the file is the policy in use."""
    ok: int = 0
    failed: int = 0


class PolicyWatcher:
    """`run` until cancelled. What it calls is called on the event loop and must not block."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        env: Mapping[str, str],
        current: Policy,
        *,
        on_change: Callable[[Policy], None],
        on_failure: Callable[[PolicyInvalid], None],
        on_restored: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        interval: float = INTERVAL,
        settle: float = SETTLE,
    ) -> None:
        self._path = path
        self._env = env
        self._on_change = on_change
        self._on_failure = on_failure
        self._on_restored = on_restored
        self._wall = wall
        self._sleep = sleep
        self._interval = interval
        self._settle = settle
        self._handled = current.version_hash
        self._state = ReloadState(version=current.version_hash, loaded_at=wall())

    @property
    def state(self) -> ReloadState:
        return self._state

    async def run(self) -> None:
        while True:
            await self._sleep(self._interval)
            await self.poll()

    async def poll(self) -> None:
        """One look at the file, and the reload if its content is new. Reading and parsing happen off the loop."""
        content, digest = await asyncio.to_thread(self._read)
        restless = 0.0
        while digest != self._handled:
            await self._sleep(self._settle)
            restless += self._settle
            before, old = content, digest
            content, digest = await asyncio.to_thread(self._read)
            if digest == self._handled:
                return
            if digest == old or (restless >= PATIENCE and await self._is_whole(before, content)):
                await self._take(content, digest)
                restless = 0.0

    async def _is_whole(self, before: bytes | PolicyInvalid, content: bytes | PolicyInvalid) -> bool:
        """Whether content that follows another is probably not half of what is being written."""
        await self._sleep(MOMENT)
        after, _ = await asyncio.to_thread(self._read)
        if isinstance(before, PolicyInvalid) or isinstance(content, PolicyInvalid) or isinstance(after, PolicyInvalid):
            return False
        return content != b"" and not content.startswith(before) and (after == content or not after.startswith(content))

    def _read(self) -> tuple[bytes | PolicyInvalid, str]:
        try:
            content = read_bytes(self._path)
        except PolicyInvalid as error:
            return error, f"unreadable: {error}"
        return content, sha256(content).hexdigest()[:12]

    async def _take(self, content: bytes | PolicyInvalid, digest: str) -> None:
        self._handled = digest
        if digest == self._state.version:
            # Back to the policy in use, after a mistake.
            self._state = replace(self._state, last_error=None, ok=self._state.ok + 1)
            self._on_restored()
            return
        try:
            if isinstance(content, PolicyInvalid):
                raise content
            policy = await asyncio.to_thread(parse_policy, content, os.fspath(self._path), self._env)
            self._apply(policy)
        except PolicyInvalid as error:
            self._state = replace(self._state, last_error=_short(error), failed=self._state.failed + 1)
            self._on_failure(error)
        else:
            self._state = ReloadState(
                version=policy.version_hash,
                loaded_at=self._wall(),
                ok=self._state.ok + 1,
                failed=self._state.failed,
            )

    def _apply(self, policy: Policy) -> None:
        try:
            self._on_change(policy)
        except Exception as error:
            # A consumer that cannot take the policy must not end the watch: the next edit may well be fine.
            problem = Problem(policy.source, 1, 1, "policy", f"could not be applied: {type(error).__name__}")
            raise PolicyInvalid([problem]) from error


def _short(error: PolicyInvalid) -> str:
    shown = [str(problem) for problem in error.problems[:MAX_SHOWN]]
    more = len(error.problems) - len(shown)
    return "\n".join([*shown, f"and {more} more"] if more else shown)
