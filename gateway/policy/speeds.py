"""The speed profiles that pools name: built-in hardware, or a profile file (`mine.yaml`) beside the policy.

A profile file is read with the policy, so an edit of it counts from the policy's next reload on. `gateway bench
breakeven` writes such files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.policy.problems import Finding, Loc, at_value, did_you_mean
from gateway.policy.values import Expanded
from gateway.profiles import Catalog, ProfileError, UnknownProfile, builtin_catalog, known_catalog

MAX_BYTES = 256 * 1024
SUFFIXES = (".yaml", ".yml")


def read_speeds(data: object, folder: Path) -> tuple[dict[str, Catalog], list[Finding]]:
    """The profile files that pools name, relative to the policy's folder, and what is wrong with pools' profiles.

    Reads plain data, not the validated document; what has the wrong form is passed over.
    """
    files: dict[str, Catalog] = {}
    found: list[Finding] = []
    models = list(_entries(data, "models"))
    for pool, fields in _entries(data, "pools"):
        name = fields.get("profile")
        if not isinstance(name, str) or not name:
            continue
        loc: Loc = ("pools", pool, "profile")
        try:
            if name.endswith(SUFFIXES):
                catalog = files[name] = _read(folder / name)
                for model, about in models:
                    if pool in _listed(about.get("pools")):
                        catalog.only(model, _text(about.get("architecture")))
            else:
                builtin_catalog().match(name, "")
        except ProfileError as error:
            found.append(at_value(loc, str(error)))
        except UnknownProfile as error:
            known = builtin_catalog().hardware()
            if isinstance(name, Expanded):
                found.append(at_value(loc, "no profile has this name"))
            else:
                found.append(at_value(loc, f"{error}{did_you_mean(name, known)}"))
    return files, found


def _read(path: Path) -> Catalog:
    """Raises ProfileError, which does not quote the file's path."""
    if not path.is_file():
        raise ProfileError("no such profile file beside the policy")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(f"the profile file cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise ProfileError(f"the profile file is larger than {MAX_BYTES // 1024} KiB")
    try:
        return known_catalog(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ProfileError("the profile file is not UTF-8 text") from None


def _entries(value: object, name: str) -> Iterator[tuple[str, dict[str, object]]]:
    section = value.get(name) if isinstance(value, dict) else None
    for key, fields in section.items() if isinstance(section, dict) else ():
        if isinstance(key, str) and isinstance(fields, dict):
            yield key, fields


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
