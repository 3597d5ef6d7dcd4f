"""The arms before real engines, played again."""

from __future__ import annotations

import pytest

from gateway.simulate.mixed import Arrival, in_order, poisson
from gateway.simulate.served import ARMS, FRONT, SHARES, TABLES, Gateway, replay
from gateway.simulate.tables import rows_of


def test_every_arm_has_two_engines() -> None:
    """The arms differ in what the engines are, never in how many there are."""
    assert {len(kinds) for kinds, _ in ARMS.values()} == {2}


def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    """Each client sends its next request when the last has been answered, and all requests are answered."""
    jobs = Gateway("fleet", "e4b").play(in_order(40, 1, SHARES), 4, "closed")
    starts, ends = sorted(job.at for job in jobs), sorted(job.ended for job in jobs)

    assert len(jobs) == 40
    assert all(job.ended > job.at for job in jobs)
    assert starts[4:] == pytest.approx([end + FRONT for end in ends[:36]])


def test_a_gateway_goes_on_where_it_was() -> None:
    """A second load comes after the first, on engines that have nothing left."""
    gateway = Gateway("all-MTP", "e4b")
    first = gateway.play([Arrival(0.0, "prose", 256)], 0, "one")
    second = gateway.play([Arrival(0.0, "prose", 256)], 0, "two")

    assert second[0].at > first[0].ended


@pytest.mark.parametrize("table", TABLES)
def test_a_replay_has_a_figure_for_every_row(table: str) -> None:
    """All arms, loads and kinds that were measured."""
    found = list(replay(table))

    assert [row for row, _ in found] == list(rows_of(table))
    assert all(ms > 1000 * FRONT for _, ms in found)


def test_draws_depend_on_nothing_but_their_arguments() -> None:
    """Real engines and simulated ones get the same requests, whoever draws them, today or next year."""
    assert poisson(10.0, 9.0, 0, SHARES)[:2] == poisson(10.0, 9.0, 0, SHARES)[:2]
    assert [a.tokens for a in in_order(6, 0, SHARES)] == [8, 384, 384, 512, 256, 8]
    assert sum(a.kind == "short" for a in poisson(30.0, 100.0, 0, SHARES)) / 3000 == pytest.approx(0.4, abs=0.04)
