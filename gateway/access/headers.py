"""A key's standing as response headers, named as OpenAI's API names them, so that its SDKs' users find them."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.access.limits import Standing
from gateway.access.ticket import Limit

_TOKENS = (Limit.TOKENS, Limit.INPUT_TOKENS, Limit.OUTPUT_TOKENS)


def rate_limit_headers(standing: Mapping[Limit, Standing]) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, as far as the key has such limits.

    Of several limits on tokens, the one that is nearest to its end is shown.
    """
    headers: list[tuple[bytes, bytes]] = []
    if requests := standing.get(Limit.REQUESTS):
        headers += _three(b"requests", requests)
    tokens = [standing[limit] for limit in _TOKENS if limit in standing]
    if tokens:
        headers += _three(b"tokens", min(tokens, key=lambda row: row.remaining / row.limit))
    return headers


def _three(name: bytes, row: Standing) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-ratelimit-limit-" + name, b"%d" % row.limit),
        (b"x-ratelimit-remaining-" + name, b"%d" % row.remaining),
        (b"x-ratelimit-reset-" + name, duration(row.reset).encode()),
    ]


def duration(seconds: float) -> str:
    """Like OpenAI's: `6m0s`, `1.5s`, `20ms`, `0s`."""
    thousandths = round(seconds * 1000)
    if thousandths < 1000:
        return f"{thousandths}ms" if thousandths else "0s"
    minutes, rest = divmod(thousandths, 60_000)
    shown = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{shown}" if minutes else shown
