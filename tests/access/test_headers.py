"""Rate-limit headers as OpenAI's SDK users know them."""

from __future__ import annotations

import pytest

from gateway.access.headers import duration, rate_limit_headers
from gateway.access.limits import Limits, Standing
from gateway.access.ticket import Limit, Ticket
from gateway.state.memory import MemoryStore
from tests.access.fakes import Clock, attempt, make_key


def test_a_keys_standing_is_in_six_headers() -> None:
    """Limit, what is left and when it is whole again, for requests and for tokens."""
    limits, key = Limits(MemoryStore(), clock=Clock()), make_key(requests_per_minute=60, tokens_per_minute=150_000)
    assert rate_limit_headers(limits.standing(key)) == []
    assert isinstance(attempt(limits, key, 1000, 16), Ticket)

    assert dict(rate_limit_headers(limits.standing(key))) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1m1s",
        b"x-ratelimit-limit-tokens": b"150000",
        b"x-ratelimit-remaining-tokens": b"148984",
        b"x-ratelimit-reset-tokens": b"1m1s",
    }


def test_the_tighter_limit_on_tokens_is_shown() -> None:
    """With several limits on tokens, the one nearest to its end."""
    standing = {Limit.INPUT_TOKENS: Standing(100, 50, 1.0), Limit.OUTPUT_TOKENS: Standing(1000, 10, 2.0)}
    headers = dict(rate_limit_headers(standing))

    assert headers[b"x-ratelimit-limit-tokens"] == b"1000"
    assert b"x-ratelimit-limit-requests" not in headers


def test_no_key_and_no_limits_are_no_headers() -> None:
    """Open access and unlimited keys say nothing."""
    limits, key = Limits(MemoryStore(), clock=Clock()), make_key()
    assert isinstance(attempt(limits, key), Ticket)

    assert rate_limit_headers(limits.standing(None)) == rate_limit_headers(limits.standing(key)) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.02, "20ms"), (1.0, "1s"), (1.5, "1.5s"), (59.9999, "1m0s"), (60.0, "1m0s"), (361.25, "6m1.25s")],
)
def test_durations_read_like_openais(seconds: float, text: str) -> None:
    """Milliseconds, seconds, minutes and seconds."""
    assert duration(seconds) == text
