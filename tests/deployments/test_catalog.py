"""The catalogue: complete, sourced, and found by the names that people use."""

from __future__ import annotations

import pytest

from gateway.deployments.catalog import UnknownName, Weights, catalog
from gateway.deployments.versions import Range, Version
from gateway.profiles.catalog import get_profile

KNOWN = catalog()


def test_all_models_and_slices_are_there() -> None:
    """The five Gemma 4 targets with their paired assistants, and the six places to run them."""
    assert list(KNOWN.models) == ["E2B", "E4B", "12B", "26B-A4B", "31B"]
    assert all(model.assistant == f"{model.repository}-assistant" for model in KNOWN.models.values())
    assert list(KNOWN.slices) == ["1g.24gb", "2g.48gb", "4g.96gb", "vgpu-25", "whole-card", "dgx-spark"]


def test_every_row_names_its_source() -> None:
    """No figure stands without where it comes from."""
    engines = KNOWN.engines
    sources = [
        KNOWN.overhead.source,
        *(model.source for model in KNOWN.models.values()),
        *(place.source for place in KNOWN.slices.values()),
        *(row.source for row in engines.broken),
        *(row.source for row in engines.environment),
    ]

    assert all(len(source) > 10 for source in sources)


def test_every_model_has_a_speed_profile_wherever_it_runs() -> None:
    """The overload guard finds a profile for each model on each slice."""
    pairs = [(place.profile, model.profile) for place in KNOWN.slices.values() for model in KNOWN.models.values()]

    assert [get_profile(*pair).name for pair in pairs] == ["/".join(pair) for pair in pairs]


def test_nvfp4_is_offered_where_a_checkpoint_is_known() -> None:
    """A model lists NVFP4 exactly where the catalogue knows its checkpoint and size."""
    assert all((Weights.NVFP4 in model.weights) == (model.nvfp4 is not None) for model in KNOWN.models.values())


@pytest.mark.parametrize("name", ["26b-a4b", "26B-A4B", "gemma-4-26b", "google/gemma-4-26B-A4B-it"])
def test_a_model_is_found_by_any_of_its_names(name: str) -> None:
    """Case does not matter; the served name and the repository do as well."""
    assert KNOWN.model(name).name == "26B-A4B"


def test_unknown_names_list_the_known_ones() -> None:
    """A wrong name is answered by the right ones."""
    with pytest.raises(UnknownName, match="26B-A4B"):
        KNOWN.model("27B")
    with pytest.raises(UnknownName, match="dgx-spark"):
        KNOWN.slice("h100")


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.33.0", (0, 33, 0)), ("v0.25.1", (0, 25, 1)), ("0.30", (0, 30, 0)), ("0.33.0rc1", (0, 33, 0)),
     ("0.32.0+cpu", (0, 32, 0)), ("0.9.2.dev1", (0, 9, 2))],
)  # fmt: skip
def test_versions_are_read(text: str, version: tuple[int, int, int]) -> None:
    """Releases, with or without v, patch, and what follows."""
    assert Version.parse(text) == version


@pytest.mark.parametrize("text", ["", "latest", "0", "0.33.0-?", "1.2.3.4"])
def test_what_is_no_version_is_refused(text: str) -> None:
    """A word such as `latest` is not taken for a version."""
    with pytest.raises(ValueError, match="not a vLLM version"):
        Version.parse(text)


def test_versions_compare_by_number() -> None:
    """0.9 is older than 0.25."""
    assert Version.parse("0.9.0") < Version.parse("0.25.0")


def test_a_range_holds_within_its_bounds() -> None:
    """From its first version to before its last, for its models, with a drafter where it says so."""
    where = Range(
        since=Version(0, 25, 0), before=Version(0, 26, 0), models=frozenset({"31B"}), mtp_only=True
    )  # fmt: skip

    assert where.holds(Version(0, 25, 0), "31B", True)
    assert where.holds(Version(0, 25, 9), "31B", True)
    assert not where.holds(Version(0, 26, 0), "31B", True)
    assert not where.holds(Version(0, 24, 9), "31B", True)
    assert not where.holds(Version(0, 25, 0), "E4B", True)
    assert not where.holds(Version(0, 25, 0), "31B", False)
