"""Which steps find their CUDA graph, and what the others take."""

from __future__ import annotations

import pytest

from gateway.profiles import get_profile
from gateway.simulate.graphs import LAUNCH, LAYERS, GraphSpeeds, covered
from gateway.simulate.speeds import Speeds

USUAL = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""vLLM's own sizes."""
E4B = get_profile("h200", "e4b")


@pytest.mark.parametrize(("k", "without"), [(0, 0), (1, 0), (2, 64), (3, 0), (4, 74)])
def test_sizes_that_are_no_multiples_leave_batches_without_a_graph(k: int, without: int) -> None:
    """Under the usual sizes half of the batches up to 128 have none at k = 2, and all have one at k = 1 and 3."""
    assert sum(not covered(batch, k, USUAL, 128) for batch in range(1, 129)) == without


def test_sizes_that_are_multiples_serve_every_batch() -> None:
    """With sizes of 3 n tokens every batch of k = 2 pads to the next one."""
    assert all(covered(batch, 2, [3 * n for n in (1, 2, 4, 8, 16, 32, 64, 128)], 128) for batch in range(1, 129))


def test_a_batch_above_the_largest_size_has_none() -> None:
    """200 sequences with graphs up to 128 run without one."""
    assert not covered(200, 0, (1, 64, 128), 256)


def test_a_step_without_its_graph_takes_the_time_to_launch_it() -> None:
    """Nine sequences of three tokens lie between 24 and 32: at least the host's time, where eight take the GPU's."""
    speeds, plain = GraphSpeeds(E4B, 2, 128, USUAL), Speeds(E4B, 2, 128)

    assert speeds.step(8, 400.0) == plain.step(8, 400.0) < 0.01
    assert speeds.step(9, 400.0) == LAUNCH * LAYERS["e4b"] > 0.02
    assert speeds.step(128, 4000.0) == plain.step(128, 4000.0)
