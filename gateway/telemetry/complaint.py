"""What keeps a back end that answers from serving, in words that say what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.telemetry.identity import ServedModel

LISTED = 5
"""Served names that are quoted."""
_REFUSED = ("status 401", "status 403")
_REMEDIES = {
    "connect_failed": "nothing listens there, or the way is closed: check host, port and that the engine runs",
    "timeout": "it takes connections and does not answer: look at the engine's log",
    "status 404": "vLLM has this page: check host and port, and that the URL ends before any path",
    "status 503": "the engine is loading or stopping",
}


def in_words(reason: str, *, keyed: bool) -> str:
    """Why a page could not be had, and what to look at where that is known. `keyed`: the endpoint has an `api_key`."""
    remedy = _REMEDIES.get(reason)
    if reason in _REFUSED:
        remedy = "it refuses the endpoint's `api_key`" if keyed else "it wants a key: give the endpoint an `api_key`"
    return f"{reason}; {remedy}" if remedy else reason


def complaint(
    reason: str | None, body: bytes, told: Sequence[ServedModel], missing: Sequence[str], *, keyed: bool
) -> str | None:
    """What is wrong by the answer to `/v1/models`; None where nothing is, or nothing can be said.

    Args:
        reason: why there is no list, or None.
        body: the list as it came.
        told: the models on it.
        missing: names that the policy asks the endpoint for, and that are not on it.
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
