"""Which headers cross the gateway, and how: pure functions on raw header lists, names in lower case.

The back end gets the client's headers except: hop-by-hop headers and those that `Connection` names, framing and `host`
(the connector sets its own), credentials and cookies (they are for the gateway; the endpoint's own key is set instead),
and `x-gateway-*`. `accept-encoding` stays where a body is only relayed, as it is and with its own label; an answer that
is read here (tokens, the model's name, how it ends) is not asked for in a form that cannot be read. `forwarded` and
`x-forwarded-*` stay too, and the peer's address is appended if given; vLLM reads it only for its access log.

The client gets the back end's headers except: hop-by-hop headers, `server` and `date` (the gateway's own are sent),
`x-request-id` and `x-gateway-*` (ours), and `alt-svc`, which names another address of the back end's origin.
`set-cookie` passes, each on a line of its own, as every end-to-end header does (RFC 9110, 5.1).
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from gateway.upstream.client import Headers

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_REQUEST_ONLY = frozenset(
    {
        b"host",
        b"content-length",
        b"expect",  # answered by our own server
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"cookie",
        b"x-request-id",
    }
)
_NOT_UPSTREAM = _HOP_BY_HOP | _REQUEST_ONLY
_NOT_UPSTREAM_READ = _NOT_UPSTREAM | {b"accept-encoding"}
_NOT_DOWNSTREAM = _HOP_BY_HOP | {b"server", b"date", b"x-request-id", b"alt-svc"}
_OWN = b"x-gateway-"
_MAX_ID = 128


def upstream_request_headers(
    client_headers: Headers,
    *,
    request_id: bytes,
    api_key: bytes | None = None,
    peer: bytes | None = None,
    drop: frozenset[bytes] = frozenset(),
    read: bool = False,
) -> Headers:
    """The headers of a request to a back end, fit for `Connector.send`.

    `api_key` is the endpoint's own, `peer` the client's address for `x-forwarded-for`, `drop` more names to leave out;
    `read` says that the answer will be read here.
    """
    named = _named_by_connection(client_headers)
    hidden = _NOT_UPSTREAM_READ if read else _NOT_UPSTREAM
    headers = [
        header
        for header in client_headers
        if header[0] not in hidden and header[0] not in named and not header[0].startswith(_OWN)
    ]
    if drop:
        headers = [header for header in headers if header[0] not in drop]
    if peer is not None:
        earlier = [value for name, value in headers if name == b"x-forwarded-for"]
        headers = [header for header in headers if header[0] != b"x-forwarded-for"]
        headers.append((b"x-forwarded-for", b", ".join([*earlier, peer])))
    headers.append((b"x-request-id", request_id))
    if api_key is not None:
        headers.append((b"authorization", b"Bearer " + api_key))
    return headers


def downstream_response_headers(upstream_headers: Headers, *, rewritten: bool = False) -> Headers:
    """The back end's headers as a client may see them; the gateway's own (id, pool, ...) are to be added.

    `rewritten` says that the body will differ from what the back end sent, so that its length can't stand. Nor can an
    event stream's: an error event may follow what has come. It is marked so that no proxy in front of us holds it back.
    """
    named = _named_by_connection(upstream_headers)
    headers = [
        header
        for header in upstream_headers
        if header[0] not in _NOT_DOWNSTREAM and header[0] not in named and not header[0].startswith(_OWN)
    ]
    streams = is_event_stream(headers)
    if rewritten or streams:
        headers = [header for header in headers if header[0] != b"content-length"]
    if streams:
        names = {name for name, _ in headers}
        if b"x-accel-buffering" not in names:
            headers.append((b"x-accel-buffering", b"no"))
        if b"cache-control" not in names:
            headers.append((b"cache-control", b"no-cache"))
    return headers


def is_event_stream(headers: Headers) -> bool:
    """Whether the content type is `text/event-stream`, whatever its case and parameters, and its events can be read."""
    return _event_stream(headers) == (True, False)


def is_packed_stream(headers: Headers) -> bool:
    """Whether it is an event stream that is packed although nobody asked for it. Its bytes pass as they come."""
    return _event_stream(headers) == (True, True)


def _event_stream(headers: Headers) -> tuple[bool, bool]:
    """Whether it is an event stream, and whether it is packed."""
    streams = packed = False
    for name, value in headers:
        if name == b"content-type":
            streams = value[:17].lower() == b"text/event-stream"
        elif name == b"content-encoding" and value != b"identity":
            packed = True
    return streams, packed


def own_location(headers: Headers, url: str) -> Headers:
    """A redirect's headers, in which a `location` at the endpoint itself is made one here: vLLM names its own
    address where it takes a slash off a path."""
    return [(name, _local(value, url) if name == b"location" else value) for name, value in headers]


def _local(location: bytes, url: str) -> bytes:
    try:
        origin, target = urlsplit(url), urlsplit(location.decode("latin-1"))
    except ValueError:
        return location
    prefix = origin.path.rstrip("/")
    if target.netloc not in ("", origin.netloc) or not target.path.startswith(prefix + "/"):
        return location
    path = target.path.removeprefix(prefix)
    return urlunsplit(("", "", path, target.query, target.fragment)).encode("latin-1")


def client_request_id(client_headers: Headers) -> bytes | None:
    """The client's `x-request-id`, if it is safe to repeat: up to 128 visible ASCII characters."""
    for name, value in client_headers:
        if name == b"x-request-id":
            fit = 0 < len(value) <= _MAX_ID and all(33 <= byte <= 126 for byte in value)
            return value if fit else None
    return None


SWITCHED = "it switched to another protocol (status 101), which was not asked for"
"""The fault of an answer after which the connection carries no HTTP."""


def head_fault(status: int, headers: Headers) -> str | None:
    """Why an answer with this head cannot be passed on, or None. HTTP has no status above 599."""
    if status == 101:
        return SWITCHED
    return f"there is no status {status}" if status > 599 else framing_fault(headers)


def framing_fault(headers: Headers) -> str | None:
    """Why the end of an answer cannot be determined for certain (RFC 9112, 6.3), or None.

    The only transfer coding is `chunked`: others would lose their label, which is hop-by-hop, on the way to the client.
    """
    length: bytes | None = None
    coding: bytes | None = None
    for name, value in headers:
        if name == b"content-length":
            if length is not None or not value.isdigit():
                return "Content-Length is unclear"
            length = value
        elif name == b"transfer-encoding":
            if coding is not None or value.lower() != b"chunked":
                return "Transfer-Encoding is not chunked"
            coding = value
    if length is not None and coding is not None:
        return "Content-Length and Transfer-Encoding exclude each other"
    return None


def has_length(headers: Headers) -> bool:
    """Whether the body's end is marked; otherwise it is the connection's end."""
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)


def _named_by_connection(headers: Headers) -> frozenset[bytes] | set[bytes]:
    """Names that `Connection` headers declare hop-by-hop."""
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            break
    else:
        return frozenset()
    values = [value for name, value in headers if name == b"connection"]
    return {token.strip().lower() for value in values for token in value.split(b",")}
