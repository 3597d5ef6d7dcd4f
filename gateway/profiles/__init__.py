"""Speed profiles: how fast a model runs on a piece of hardware, with and without drafting, as data with sources."""

from gateway.profiles.catalog import (
    DEFAULT_HARDWARE,
    Catalog,
    ProfileError,
    UnknownProfile,
    builtin_catalog,
    get_profile,
    known_catalog,
    match_profile,
    parse_catalog,
)
from gateway.profiles.speed import (
    MAX_DRAFT_TOKENS,
    STEPS_TO_FIRST,
    Acceptance,
    Attention,
    Decode,
    Prefill,
    Profile,
)

__all__ = [
    "DEFAULT_HARDWARE",
    "MAX_DRAFT_TOKENS",
    "STEPS_TO_FIRST",
    "Acceptance",
    "Attention",
    "Catalog",
    "Decode",
    "Prefill",
    "Profile",
    "ProfileError",
    "UnknownProfile",
    "builtin_catalog",
    "get_profile",
    "known_catalog",
    "match_profile",
    "parse_catalog",
]
