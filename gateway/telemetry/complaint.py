"""Diagnoses a back end that answers but cannot serve, in a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.telemetry.identity import ServedModel

LISTED = 5
"""Most model names that a message quotes."""
_REFUSED = ("status 401", "status 403")
_NO_METRICS = "no vLLM metrics on the page"
_HTML, _GZIP = f"{_NO_METRICS}, which is HTML", f"{_NO_METRICS}, which is compressed"
_MOVED = "it redirects: give the address that it redirects to"
_REMEDIES = {
    _NO_METRICS: "another server than vLLM answers there, or the engine runs with --disable-log-stats",
    _HTML: "another server than vLLM answers there: check host and port",
    _GZIP: "a proxy compresses it unasked: let it pass /metrics as it is",
    "connect_failed": "nothing listens there, or the way is closed: check host, port and that the engine runs; "
    "for https, that its certificate's authority is trusted (SSL_CERT_FILE)",
    "timeout": "it takes connections and does not answer: look at the engine's log",
    "status 404": "vLLM has this page: check host and port, and that the URL ends before any path",
    "status 503": "the engine is loading or stopping",
    **dict.fromkeys((f"status {code}" for code in (301, 302, 303, 307, 308)), _MOVED),
}


def no_metrics(page: bytes) -> str:
    """The reason why a page of metrics tells nothing of the engine, by how it begins."""
    begins = page[:64].lstrip()
    return _HTML if begins.startswith(b"<") else _GZIP if begins.startswith(b"\x1f\x8b") else _NO_METRICS


def in_words(reason: str, *, keyed: bool) -> str:
    """The reason of a failed fetch, with a remedy where one is known. `keyed`: the endpoint has an `api_key`."""
    remedy = _REMEDIES.get(reason)
    if reason in _REFUSED:
        remedy = "it refuses the endpoint's `api_key`" if keyed else "it wants a key: give the endpoint an `api_key`"
    return f"{reason}; {remedy}" if remedy else reason


def complaint(
    reason: str | None, body: bytes, told: Sequence[ServedModel], missing: Sequence[str], *, keyed: bool
) -> str | None:
    """What the response to `/v1/models` shows to be wrong; None if nothing is wrong or nothing is known.

    Args:
        reason: why the fetch failed, or None.
        body: the response body.
        told: the models parsed from it.
        missing: model names that the policy needs and that are not listed.
        keyed: whether the endpoint has an `api_key`.
    """
    if reason in _REFUSED:
        return in_words(reason, keyed=keyed)
    if reason is None and not told and body.lstrip()[:1] not in (b"{", b"["):
        kind = "HTML" if body.lstrip()[:1] == b"<" else "no JSON"
        return f"another server than vLLM answers here: its /v1/models is {kind}; check host and port"
    if missing and told:
        listed = ", ".join(f"`{model.name}`" for model in told[:LISTED]) + (", ..." if len(told) > LISTED else "")
        wanted = ", ".join(f"`{name}`" for name in missing[:LISTED])
        return f"it does not serve {wanted} but {listed}: set the pool's `model`, or the engine's --served-model-name"
    return None
