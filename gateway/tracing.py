"""Whether requests are traced: by the standard `OTEL_*` environment variables, with the optional extra `otel`.

    OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT)   on, sent there
    OTEL_TRACES_EXPORTER=otlp | console                    on
    OTEL_TRACES_EXPORTER=none, OTEL_SDK_DISABLED=true      off

Without any of these tracing is off: nothing of OpenTelemetry is imported, and requests record nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING

from gateway.settings import InvalidSetting

if TYPE_CHECKING:
    from gateway.spans import Spans

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"


def exporter_of(env: Mapping[str, str]) -> str | None:
    """`otlp` or `console`; None where tracing is off.

    Raises InvalidSetting for an exporter or protocol that is not supported, and if the extra is missing.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    named = env.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if named == "none" or (not named and not any(env.get(name) for name in ENDPOINTS)):
        return None
    if named not in ("", "otlp", "console"):
        raise InvalidSetting(f"OTEL_TRACES_EXPORTER is {named!r}; it must be otlp, console or none")
    for name in PROTOCOLS:
        if protocol := env.get(name):
            if protocol != PROTOCOL:
                raise InvalidSetting(f"{name} is {protocol!r}; traces are sent as {PROTOCOL}")
            break
    if not _found("opentelemetry.sdk"):
        raise InvalidSetting("OTEL_* asks for traces; they need the extra: pip install 'mtp-gateway[otel]'")
    return named or "otlp"


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def open_tracer(env: Mapping[str, str], replica: str, clock: Callable[[], float], rng: Random) -> Spans | None:
    """What makes spans, not yet started; None if tracing is off. Raises InvalidSetting, see `exporter_of`.

    The SDK reads sampler, batching and resource attributes from the process's environment, whatever `env` is.
    `replica` is this process's name.
    """
    if (exporter := exporter_of(env)) is None:
        return None
    # Imported here, so that it costs nothing when tracing is off.
    from gateway.spans import Spans, exporter_named

    try:
        return Spans(exporter_named(exporter, env), env, replica, clock, rng)
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"OTEL_EXPORTER_OTLP_*: {error}") from error
