"""A replica's view as bytes and back. Bytes that cannot be read, such as another version's, are no view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.state.store import EndpointView, View

_VERSION = 1


def pack(view: View) -> bytes:
    """Endpoints and keys at rest are left out: absent and idle mean the same."""
    endpoints = {name: [e.in_flight, int(e.shut)] for name, e in view.endpoints.items() if e.in_flight or e.shut}
    works = [name for name, e in view.endpoints.items() if e.works]
    hung = [name for name, e in view.endpoints.items() if e.hung]
    keys = {name: count for name, count in view.keys.items() if count}
    return orjson.dumps({"version": _VERSION, "endpoints": endpoints, "works": works, "hung": hung, "keys": keys})


def unpack_all(blobs: Mapping[str, bytes]) -> dict[str, View]:
    """The readable views by replica."""
    return {replica: view for replica, blob in blobs.items() if (view := _unpack(blob)) is not None}


def _unpack(blob: bytes) -> View | None:
    try:
        data: Any = orjson.loads(blob)
        if data["version"] != _VERSION:
            return None
        counted, works, hung = data["endpoints"], set(data.get("works", ())), set(data.get("hung", ()))
        endpoints = {
            str(name): EndpointView(int(n), bool(shut), name in works, name in hung)
            for name, (n, shut) in ({name: (0, 0) for name in works} | counted).items()
        }
        return View(endpoints, {str(name): int(n) for name, n in data["keys"].items()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
