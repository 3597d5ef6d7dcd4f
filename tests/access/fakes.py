"""A clock that tests move, and a short way to a key and to what a limit lets through."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from gateway.access.limits import Limits
from gateway.access.ticket import Ticket
from gateway.errors import TooManyRequests
from gateway.policy.schema import AccessKey


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def make_key(name: str = "alpha", **limits: Any) -> AccessKey:
    return AccessKey(name=name, sha256=sha256(name.encode()).digest(), **limits)


def attempt(limits: Limits, key: AccessKey, input_tokens: int = 0, expected: int = 0) -> Ticket | TooManyRequests:
    """Without a shared store: the ticket or the refusal."""
    try:
        ticket = limits.try_admit(key, input_tokens, expected)
    except TooManyRequests as error:
        return error
    assert ticket is not None
    return ticket
