"""Process settings: one frozen table. Each row is a command-line option and an environment variable `GATEWAY_<NAME>`.

What belongs to a deployment (addresses, files, process count) is here; what belongs to routing is in the policy.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


class InvalidSetting(ValueError):
    """A setting has a value that it cannot have; the message names the option and the remedy."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What a setting's field says beside its default."""

    help: str
    choices: tuple[str, ...] = ()
    bounds: tuple[int, int] = (0, 0)
    """Lowest and highest value of a whole number."""


def _setting(default: str | int, help: str, *, choices: tuple[str, ...] = (), bounds: tuple[int, int] = (0, 0)) -> Any:
    return field(default=default, metadata={"row": _Row(help, choices, bounds)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one gateway process runs."""

    policy: str = _setting("", "the policy file (YAML); see policies/ for examples")
    host: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0 for every interface")
    port: int = _setting(8080, "port to listen on", bounds=(0, 65535))
    workers: int = _setting(1, "processes that share the port, about one per core", bounds=(1, 256))
    log_format: str = _setting("text", "format of log lines", choices=("text", "json"))
    log_level: str = _setting("info", "lowest level that is logged", choices=("debug", "info", "warning", "error"))
    state_dir: str = _setting("", "folder that keeps what was learned across restarts, if there is no Redis")
    shadow_policy: str = _setting("", "second policy file, whose decisions are only counted and compared")
    canary_policy: str = _setting("", "second policy file, which really decides for a share of the requests")
    redis_url: str = _setting("", "state shared by all replicas: redis://, rediss://, or Sentinel and Cluster URLs")
    redis_wait: int = _setting(
        4, "milliseconds a request waits for Redis; later, limits are counted by share", bounds=(1, 10_000)
    )


_METAVARS = {
    "policy": "FILE",
    "shadow_policy": "FILE",
    "canary_policy": "FILE",
    "state_dir": "FOLDER",
    "redis_url": "URL",
    "redis_wait": "MS",
}


def add_arguments(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Adds one option per setting; the help names default and environment variable."""
    for row in fields(Settings):
        if row.name in without:
            continue
        setting: _Row = row.metadata["row"]
        default = f"default {row.default}; " if row.default != "" else ""
        parser.add_argument(
            "--" + row.name.replace("_", "-"),
            default=None,
            choices=setting.choices or None,
            metavar=None if setting.choices else _METAVARS.get(row.name, row.name.upper()),
            help=f"{setting.help} ({default}env {env_name(row.name)})",
        )


def port(text: str) -> int:
    """A port for `argparse`'s `type`. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; it must be a number from 0 to 65535")
    return int(text)


def number(text: str) -> float:
    """A number for `argparse`'s `type`; NaN, which is within no bounds, for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def output_file(text: str) -> Path:
    """A file to write at the end, for `argparse`'s `type`. Raises ArgumentTypeError if that is bound to fail, so that
    no long run is lost to a mistyped folder."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def check_free(host: str, port: int) -> None:
    """Raises OSError if nothing can listen there; the servers themselves would only log it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{host}:{port}") from None


def check_folder(folder: str) -> None:
    """Raises InvalidSetting if it is a file. A disk that cannot be written to is no reason not to serve."""
    if Path(folder).exists() and not Path(folder).is_dir():
        raise InvalidSetting(f"--state-dir is {folder}, which is a file; it must be a folder, which need not exist yet")


def env_name(setting: str) -> str:
    """The environment variable of a setting."""
    return "GATEWAY_" + setting.upper()


def resolve(options: Mapping[str, object], env: Mapping[str, str]) -> Settings:
    """Command line over environment over default. Raises InvalidSetting naming the first bad value.

    A variable that is empty is one that is not set, as a compose file's `${NAME:-}` leaves it: an empty host would be
    every interface.
    """
    values: dict[str, Any] = {}
    for row in fields(Settings):
        raw = options.get(row.name)
        source = "--" + row.name.replace("_", "-")
        if raw is None and (text := env.get(env_name(row.name))):
            raw, source = text, env_name(row.name)
        if raw == "-" and _METAVARS.get(row.name) == "FILE":
            raise InvalidSetting(
                f"{source} is a file, which is watched; only commands that end read standard input as -"
            )
        if raw is not None:
            values[row.name] = _convert(source, str(raw), type(row.default), row.metadata["row"])
    return Settings(**values)


def _convert(source: str, raw: str, kind: type, row: _Row) -> object:
    if row.choices and raw not in row.choices:
        raise InvalidSetting(f"{source} is {raw!r}; it must be one of {', '.join(row.choices)}")
    if kind is not int:
        return raw
    lowest, highest = row.bounds
    try:
        number = int(raw)
    except ValueError:
        raise InvalidSetting(f"{source} is {raw!r}; it must be a whole number") from None
    if not lowest <= number <= highest:
        raise InvalidSetting(f"{source} is {number}; it must be between {lowest} and {highest}")
    return number
