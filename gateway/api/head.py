"""What the gateway needs of a request's header section, found in one pass over ASGI's raw list."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from gateway.types import NO_HINTS, Hints, Task
from gateway.upstream.headers import client_request_id

_TASKS = {task.value: task for task in Task}


@dataclass(slots=True)
class Head:
    """The parts of a request's head that matter here; everything else is only forwarded."""

    size: int = 0
    """Bytes of all names and values."""
    content_length: int | None = None
    content_type: bytes = b""
    content_encoding: bytes = b""
    """How the body is compressed, in lower case; empty if it is not, or no longer."""
    unpacked: bool = False
    """Whether the body was decompressed here, so that `content-encoding` must not be forwarded."""
    request_id: str | None = None
    """The client's own id, kept if it is printable ASCII of a sane length."""
    credential: bytes | None = field(default=None, repr=False)
    """The API key from `Authorization: Bearer`, `x-api-key` or `api-key`."""
    hints: Hints = NO_HINTS
    matched: dict[str, str] = field(default_factory=dict)
    """The values of the headers that the policy's conditions look at."""


def read_head(headers: list[tuple[bytes, bytes]], wanted: Collection[str] = ()) -> Head:
    """Reads the head in one pass. Never raises: a malformed header counts as absent."""
    head = Head()
    hints: dict[str, str] = {}
    head.size = sum([len(name) + len(value) for name, value in headers])
    for name, value in headers:
        if name == b"content-length":
            head.content_length = int(value) if value.isdigit() else None
        elif name == b"content-type":
            head.content_type = value
        elif name == b"content-encoding":
            head.content_encoding = b"" if (coding := value.strip().lower()) == b"identity" else coding
        elif name == b"authorization":
            if value[:7].lower() == b"bearer ":
                head.credential = value[7:].strip()
        elif name in (b"x-api-key", b"api-key"):
            head.credential = head.credential or value
        elif name == b"x-request-id":
            if (known := client_request_id([(name, value)])) is not None:
                head.request_id = known.decode()
        elif name.startswith(b"x-gateway-"):
            hints[name[10:].decode("latin-1")] = value.decode("latin-1").strip()
        if wanted and (plain := name.decode("latin-1")) in wanted:
            head.matched[plain] = value.decode("latin-1")
    if hints:
        head.hints = read_hints(hints)
    return head


def read_hints(raw: dict[str, str]) -> Hints:
    """The hints, from values by header name without its prefix. Values that cannot be read are ignored."""
    tokens = raw.get("output-tokens", "")
    return Hints(
        pool=raw.get("pool") or None,
        task=_TASKS.get(raw.get("task", "").lower()),
        output_tokens=int(tokens) if tokens.isascii() and tokens.isdigit() and len(tokens) < 9 else None,
        session=raw.get("session", "")[:256] or None,
    )
