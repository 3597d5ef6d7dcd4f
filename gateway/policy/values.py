"""The scalar types of a policy: durations, numbers, names, URLs, each with the message a user reads when it is wrong.

Values are never coerced: `"64"` is not a number and `1` is not a switch. The one exception is text from a
`${VARIABLE}`, which has no type of its own (`Expanded`) and is read as the field requires.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

MAX_INT = 2**53
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_INT = re.compile(r"[-+]?[0-9]{1,17}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
RELEASE = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[.+-]?[A-Za-z][\w.+-]*)?")
"""A version of vLLM. What follows the numbers, such as `rc1` or `+cpu`, plays no part."""
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?|[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._~-]+)?", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*", re.ASCII)


class Expanded(str):
    """Text from an environment variable. It may be secret: no message ever quotes it."""

    __slots__ = ()


def wrong(message: str) -> PydanticCustomError:
    """An error whose message is shown to the user as it is."""
    return PydanticCustomError("policy", "{text}", {"text": message})


def quoted(value: object) -> str:
    """A value as a message may show it: short, and never one from the environment."""
    if isinstance(value, Expanded) or not isinstance(value, str | int | float):
        return "this value"
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return f"`{text[:37]}...`" if len(text) > 40 else f"`{text}`"


def kind_of(value: object) -> str:
    """What the user wrote, in YAML's words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    names = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "something else")


def duration(value: object) -> float:
    """ "250ms", "2s", "5m", "1h", "1d" to seconds."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        hint = f"; did you mean `{value}s`?" if isinstance(value, int) and not isinstance(value, bool) else ""
        raise wrong(f"expected a duration with its unit, such as 250ms, 2s, 5m or 1h{hint}")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > 366 * 86400:
        raise wrong("a duration is at most 366d")
    return seconds


def _positive(value: object) -> float:
    seconds = duration(value)
    if seconds <= 0:
        raise wrong("expected a duration above zero")
    return seconds


def is_off(value: object) -> bool:
    """Whether the value is `off`, as text or as YAML 1.1 reads it."""
    return value is False or (isinstance(value, str) and value.strip().lower() == "off")


def unless_off(value: object) -> object:
    """None for `off`, for sections that can be absent; else the value as it is."""
    return None if is_off(value) else value


def _optional(value: object) -> float | None:
    return None if is_off(value) else _positive(value)


def switch(value: object) -> bool:
    """true or false; YAML 1.1's yes, no, on and off are understood too."""
    found = value if isinstance(value, bool) else _SWITCH.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise wrong(f"expected true or false, got {kind_of(value)}")
    return found


def integer(value: object) -> int:
    if isinstance(value, Expanded) and _INT.fullmatch(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(f"expected a whole number, got {kind_of(value) if not isinstance(value, float) else 'a fraction'}")
    return value


def number(value: object) -> float:
    if isinstance(value, Expanded) and _FLOAT.fullmatch(value):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"expected a number, got {kind_of(value)}")
    # A whole number beyond every bound would overflow float() before a bound is checked.
    return float(max(-MAX_INT, min(MAX_INT, value))) if isinstance(value, int) else value


def text(value: object) -> str:
    if isinstance(value, str):
        if not value.strip() or not value.isprintable() or len(value) > 1000:
            raise wrong("expected a line of text that is not empty")
        return str(value)
    hint = "; put it in quotes" if isinstance(value, int | float) else ""
    raise wrong(f"expected text, got {kind_of(value)}{hint}")


def slug(value: str) -> str:
    """Names that travel in headers and metric labels."""
    if _SLUG.fullmatch(value) is None:
        raise wrong("a name is 1 to 63 of A-Z a-z 0-9 . _ - and begins with a letter or a digit")
    return value


def release(value: str) -> str:
    """A version of vLLM; its quotes matter, for without them YAML reads 0.30 as 0.3."""
    if RELEASE.fullmatch(value) is None:
        raise wrong('expected a version in quotes, such as "0.30" or "0.33.1"')
    return value


def name(value: str) -> str:
    if len(value) > 200 or any(char.isspace() for char in value):
        raise wrong("a name has at most 200 characters and no spaces")
    return value


def url(value: str) -> str:
    """An endpoint's base URL, without a trailing slash. The URL is never quoted: it may hold a password."""
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong("not a URL such as http://vllm-0:8000") from None
    if parts.scheme not in ("http", "https"):
        raise wrong("an endpoint's URL begins with http:// or https://")
    if "@" in parts.netloc:
        raise wrong("an endpoint's URL has no user or password in it; use api_key")
    if not host or _HOST.fullmatch(host) is None or port == 0 or parts.netloc.endswith(":"):
        raise wrong("an endpoint's URL needs a host, such as http://vllm-0:8000")
    if "?" in value or "#" in value:
        raise wrong("an endpoint's URL has no query and no fragment")
    prefix = parts.path.rstrip("/")
    if _PREFIX.fullmatch(prefix) is None or any(part in (".", "..") for part in prefix.split("/")):
        raise wrong("a path in an endpoint's URL is a plain prefix, such as /gemma")
    if prefix == "/v1" or prefix.endswith("/v1"):
        raise wrong("an endpoint's URL ends before /v1; the gateway adds the path")
    return f"{parts.scheme}://{parts.netloc}{prefix}"


def address(value: str) -> str:
    """What an endpoint's URL leads to, the same for each way to write it: to compare, never to show or to call."""
    text = value.strip()
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return text
    if not host or "@" in parts.netloc or "?" in text or "#" in text:
        return text  # `url` refuses it.
    return f"{parts.scheme}://{host}:{port or _PORTS.get(parts.scheme)}{parts.path.rstrip('/')}"


def path(value: str) -> str:
    if re.fullmatch(r"(?:/[A-Za-z0-9._~-]*)+", value, re.ASCII) is None or ".." in value:
        raise wrong("expected a path such as /health")
    return value


def origin(value: str) -> str:
    """A web origin as browsers send it, or `*` for all."""
    if value != "*" and re.fullmatch(r"https?://[^/\s?#@]+", value, re.ASCII) is None:
        raise wrong("expected an origin such as https://app.example.com, without a path, or `*`")
    return value


def as_list(value: object) -> object:
    """A single value is a list of one."""
    return value if isinstance(value, list | dict) else [value]


def _filled(value: object) -> object:
    if isinstance(value, list | dict) and not value:
        raise wrong("is empty; at least one is needed")
    return value


Filled = BeforeValidator(_filled)
"""Not `min_length`, which counts valid items only and would blame the list besides each bad item."""
Text = Annotated[str, BeforeValidator(text)]
Slug = Annotated[Text, AfterValidator(slug)]
Release = Annotated[Text, AfterValidator(release)]
Name = Annotated[Text, AfterValidator(name)]
Url = Annotated[Text, AfterValidator(url)]
Path = Annotated[Text, AfterValidator(path)]
Origin = Annotated[Text, AfterValidator(origin)]
Switch = Annotated[bool, BeforeValidator(switch)]
Seconds = Annotated[float, BeforeValidator(_positive)]
SecondsOrZero = Annotated[float, BeforeValidator(duration)]
SecondsOrOff = Annotated[float | None, BeforeValidator(_optional)]
Whole = Annotated[int, BeforeValidator(integer), Field(ge=0, le=MAX_INT)]
Count = Annotated[int, BeforeValidator(integer), Field(ge=1, le=MAX_INT)]
Signed = Annotated[int, BeforeValidator(integer), Field(ge=-1000, le=1000)]
Weight = Annotated[float, BeforeValidator(number), Field(ge=0, le=1000, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, le=1, allow_inf_nan=False)]
