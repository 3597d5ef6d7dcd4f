"""Cross-origin requests of browsers, by the policy's `server.cors`; off unless it names origins.

A preflight is answered here and needs no key, since browsers send none with it. There is no credentials mode: keys are
sent in a header, and cookies are not used.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.api.downstream import Message, Scope, Send

KEEP_SECONDS = 600
"""How long a browser may remember the answer to a preflight."""
_EXPOSED = (
    b"x-request-id, retry-after, x-gateway-pool, x-gateway-model, x-gateway-task, x-gateway-reason, x-gateway-policy, "
    b"x-gateway-predicted-output-tokens, x-gateway-translated"
)
Headers = list[tuple[bytes, bytes]]


def allowed_origin(scope: Scope, origins: Collection[str]) -> bytes | None:
    """The request's origin if the policy allows it; None for others, and for requests without an origin."""
    for name, value in scope["headers"]:
        if name == b"origin":
            return bytes(value) if "*" in origins or value.decode("latin-1") in origins else None
    return None


def preflight(scope: Scope, origin: bytes) -> Headers | None:
    """The headers that answer a preflight; None if the request is not a preflight."""
    asked = {name: value for name, value in scope["headers"] if name.startswith(b"access-control-request-")}
    method = asked.get(b"access-control-request-method")
    if scope["method"] != "OPTIONS" or method is None:
        return None
    return [
        *origin_headers(origin),
        (b"access-control-allow-methods", method),
        (b"access-control-allow-headers", asked.get(b"access-control-request-headers", b"*")),
        (b"access-control-max-age", b"%d" % KEEP_SECONDS),
    ]


def origin_headers(origin: bytes) -> Headers:
    """The headers that allow an origin to read an answer."""
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]


def exposing(send: Send, origin: bytes) -> Send:
    """Lets the page read the answer, including our own errors. A back end's own CORS headers are replaced."""
    own = [*origin_headers(origin), (b"access-control-expose-headers", _EXPOSED)]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message["headers"] if not pair[0].lower().startswith(b"access-control-")]
            message = {**message, "headers": [*kept, *own]}
        await send(message)

    return sending
