"""What an engine needs of a slice's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.deployments.catalog import Weights, catalog
from gateway.deployments.memory import GIB, Load, cache_bytes, memory, parameters

KNOWN = catalog()
LOAD = Load(context=16384, concurrency=8, sequences=128, batched_tokens=8192)


def row(name: str, model: str, load: Load = LOAD) -> float:
    found = memory(KNOWN.model(model), load, KNOWN.slice("1g.24gb"), KNOWN.overhead)
    return next((one.gib for one in found.rows if one.what == name), 0.0)


@pytest.mark.parametrize(("model", "published"), [("E4B", 7.52e9), ("26B-A4B", 25.25e9), ("31B", 30.7e9)])
def test_parameters_come_out_as_published(model: str, published: float) -> None:
    """Parameters counted from a shape agree with the published total within a thousandth or two."""
    assert sum(parameters(KNOWN.model(model).shape)) == pytest.approx(published, rel=0.002)


def test_only_layers_with_a_cache_of_their_own_count() -> None:
    """E4B's last 18 of 42 layers share keys and values, so 4 global and 20 sliding layers store them."""
    assert cache_bytes(KNOWN.model("E4B").shape) == (4 * 2 * 2 * 512 * 2, 20 * 2 * 2 * 256 * 2)


def test_sliding_layers_stop_growing_at_their_window() -> None:
    """Beyond the window, a longer context costs the global layers' bytes alone."""
    model = KNOWN.model("E4B")
    short, long = (replace(LOAD, context=context, batched_tokens=512) for context in (8192, 16384))
    globally, _ = cache_bytes(model.shape)

    assert (row("KV cache", "E4B", long) - row("KV cache", "E4B", short)) * GIB == pytest.approx(8 * 8192 * globally)


def test_drafter_weighs_what_was_measured() -> None:
    """A drafter adds 0.15 GiB to E4B and 0.78 GiB to 26B-A4B, and nothing to a plain engine."""
    mtp = replace(LOAD, draft_tokens=2)

    assert row("drafter", "E4B", mtp) == pytest.approx(0.15, abs=0.01)
    assert row("drafter", "26B-A4B", mtp) == pytest.approx(0.78, abs=0.01)
    assert row("drafter", "E4B") == 0.0
    assert row("graphs", "E4B", mtp) > row("graphs", "E4B")


def test_fp8_leaves_embeddings_alone() -> None:
    """FP8 halves the linear weights; E4B's embeddings, almost half of it, stay bf16."""
    linear, embeddings = parameters(KNOWN.model("E4B").shape)

    assert row("weights", "E4B", replace(LOAD, weights=Weights.FP8)) * GIB == pytest.approx(linear + 2 * embeddings)


def test_fp8_cache_halves_the_cache() -> None:
    """A KV cache in fp8 takes half the bytes."""
    assert row("KV cache", "12B", replace(LOAD, fp8_cache=True)) == pytest.approx(row("KV cache", "12B") / 2)


def test_text_only_leaves_the_towers_out() -> None:
    """Without vision and audio their encoders take no memory."""
    assert row("towers", "E2B") > 0.8
    assert row("towers", "E2B", replace(LOAD, text_only=True)) == 0.0


def test_the_sum_is_what_is_compared() -> None:
    """An engine fits exactly while the rows' sum is within the slice's memory times its share."""
    model, place = KNOWN.model("E4B"), KNOWN.slice("1g.24gb")
    found = memory(model, LOAD, place, KNOWN.overhead)
    edge = found.total / place.gib

    assert found.total == pytest.approx(sum(one.gib for one in found.rows))
    assert memory(model, LOAD, place, KNOWN.overhead, edge + 0.001).fits
    assert not memory(model, LOAD, place, KNOWN.overhead, edge - 0.001).fits
