"""The table of draft tokens by batch size."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.deployments.catalog import catalog
from gateway.deployments.guard import overload_guard
from gateway.profiles.catalog import get_profile
from gateway.types import Task

E4B = get_profile("g4-slice", "e4b")


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("model", ["e2b", "e4b", "12b", "26b-a4b", "31b"])
@pytest.mark.parametrize("hardware", sorted({place.profile for place in catalog().slices.values()}))
def test_the_table_is_one_that_vllm_takes(hardware: str, model: str, depth: int) -> None:
    """It begins at 1, has no gaps, drafts less as batches grow, and never more than the engine's own depth."""
    table = overload_guard(get_profile(hardware, model), depth, 300)

    assert table[0][0] == 1
    assert table[-1][1] == 300
    assert all(later[0] == earlier[1] + 1 for earlier, later in pairwise(table))
    assert all(later[2] < earlier[2] <= depth for earlier, later in pairwise(table))


def test_drafting_stops_where_it_no_longer_pays() -> None:
    """At the last batch of a row drafting is no slower than none; just beyond, that depth would be."""
    for _, last, k in overload_guard(E4B, 2, 512)[:-1]:
        assert E4B.tpot(Task.CHAT, last, k) <= E4B.tpot(Task.CHAT, last, 0)
        assert E4B.tpot(Task.CHAT, last + 1, k) > E4B.tpot(Task.CHAT, last + 1, 0)


def test_a_moe_drafts_at_batch_one() -> None:
    """Where drafting pays from a few streams on, the table does not forbid it below."""
    moe = get_profile("g4-slice", "26b-a4b")

    assert moe.tpot(Task.CHAT, 1, 2) > moe.tpot(Task.CHAT, 1, 0)
    assert overload_guard(moe, 2, 128)[0][2] == 2
