"""The arms with a CUDA graph for every batch and one real card: played again, and what they say of a stall."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.profiles import get_profile
from gateway.simulate.graphs import covered
from gateway.simulate.halves import ORDERS, SIZES, TABLES, TWIN_MTP_STALL, TWIN_STALL, TWO_TABLES, Half
from gateway.simulate.job import Job
from gateway.simulate.mixed import in_order, poisson
from gateway.simulate.served import ARMS, CLIENT_ROUNDS, FRONT, SEATS, SHARES, TASKS, Gateway, K, Load
from gateway.simulate.tables import rows_of
from gateway.simulate.world import Arm
from gateway.types import Decision, LoadView, PoolLoad
from gateway.upstream.lease import Lease
from tests.benchmarks.gpu_logs import LENGTHS, Answer, fit, met
from tests.benchmarks.report_data import read

LOADS = (Load(10.0, 0, 9.0), Load(30.0, 0, 9.0), Load(0.0, 24, 9.0))
FIGURES = read("gpu-graphs-e4b")
TWO = ("gpu-graphs-e4b-two", "gpu-graphs-26b-a4b-two")
"""In the order of the tables."""


@pytest.mark.parametrize(("table", "figures"), [(TABLES[0], "gpu-graphs-e4b"), *zip(TWO_TABLES, TWO, strict=True)])
def test_the_rows_are_the_figures_that_were_measured(table: str, figures: str) -> None:
    """Mean times by arm, load and kind, none left out."""
    measured = {
        (cell["arm"], f"{cell.get('rate', ''):g}" if "rate" in cell else "", str(cell.get("clients", "")), kind): cell[
            "classes"
        ][kind]["e2e_ms"]["mean"]
        for cell in read(figures)["cells"]
        for kind in TASKS
    }

    found = {(r["arm"], r["rate"], r["clients"], r["kind"]): float(r["e2e_ms"]) for r in rows_of(table)}
    assert found == measured


def test_the_arms_and_rounds_that_are_played_are_those_that_ran() -> None:
    """The halves' arms by the orders they ran in, the two cards' by what gpu_arms did."""
    assert {row["arm"] for row in rows_of(TABLES[0])} == ORDERS.keys()
    for (table, rounds), figures in zip(TWO_TABLES.items(), TWO, strict=True):
        assert {row["arm"] for row in rows_of(table)} == ARMS.keys()
        assert read(figures)["about"]["rounds"] == rounds


def test_every_batch_that_was_seen_has_its_graph() -> None:
    """As the engines' own dispatcher counted: no decode step was without one."""
    for k in (0, K):
        assert all(covered(batch, k, SIZES[k], SEATS) for batch in range(1, 65))


def test_the_twin_keeps_the_stall_that_it_had() -> None:
    """The real engine has the profile's, whichever side it is on."""
    prefill = get_profile("h200", "e4b").prefill
    plain, mtp = [[e.speeds.stall(0.0) for e in Half("static", "e4b", real)._engines.values()] for real in (0, 1)]

    assert plain == pytest.approx([prefill.stall / 1000, (TWIN_STALL + TWIN_MTP_STALL) / 1000])
    assert mtp == pytest.approx([TWIN_STALL / 1000, (prefill.stall + prefill.mtp_stall) / 1000])


def test_the_profiles_stall_is_what_the_engines_logs_say() -> None:
    """The fit that found a joining prompt's cost in the gateways' logs finds as much in the simulated ones'."""
    found: dict[bool, list[Answer]] = {False: [], True: []}
    later = 0.0
    for arm, orders in ORDERS.items():
        for real in orders:
            half = Half(arm, "e4b", real)
            list(half.rounds(LOADS))
            for job in half.answered:
                drafts = arm == "all-MTP" or (real == 1 and arm != "all-plain")
                task = job.prompt.task.value
                times = (later + FRONT + job.first, later + FRONT + job.ended)
                found[drafts].append(Answer("real", drafts, task, job.tokens, *times))
            later += 2 * half.clock.now
    for drafts, answers in found.items():
        (_, _, join), _, explained = fit(met(answers, K, SIZES[K if drafts else 0], LENGTHS), graphs=False)
        known = [row for row in FIGURES["fits"]["rows"] if row["real"] and (row["engine"] == "mtp") == drafts]
        mean = sum(row["join_ms"] * row["answers"] for row in known) / sum(row["answers"] for row in known)

        assert join == pytest.approx(mean, rel=0.08)
        assert explained > 0.9


class Meaned:
    """An arm whose router does not know when a pool had its newest request, like that of the measurement."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self.observe, self.accept = arm.observe, arm.accept

    def decide(self, job: Job, view: LoadView) -> Decision | tuple[str, ...]:
        return self._arm.decide(job, Undated(view))


@dataclass(frozen=True, slots=True)
class Undated:
    """Loads without the time of the newest request."""

    view: LoadView

    def load(self, pool: str) -> PoolLoad:
        return self.view.load(pool)._replace(since=None)


class Sent(Gateway):
    """The gateway of an arm that keeps which engine each job went to."""

    def __init__(self, arm: str) -> None:
        super().__init__(arm, "26b-a4b", SIZES)
        self.arm: Arm = Meaned(self.arm)
        self.sent: dict[str, list[Job]] = {url: [] for url in self._engines}

    def _send(self, job: Job, lease: Lease) -> None:
        self.sent[lease.endpoint.url].append(job)
        super()._send(job, lease)


def test_the_26bs_stall_is_what_both_cards_logs_say() -> None:
    """The straight line through the simulated engines' answers says as much of a joining prompt as through the real.

    Played as it was measured: a router that sends labels right behind one another, where they share a pause, would make
    answers of which the line says something else.
    """
    found: dict[tuple[bool, str], list[Answer]] = {}
    later = 0.0
    for arm in ARMS:
        gateway = Sent(arm)
        gateway.play(poisson(14.0, 4.0, -1, SHARES), 0, "warm-up")
        for number in range(TWO_TABLES["h200-arms-26b-two"]):
            for rate in (5.0, 9.0, 14.0):
                gateway.play(poisson(rate, 9.0, number, SHARES), 0, f"{rate} {number}")
            gateway.play(in_order(24 * CLIENT_ROUNDS, number, SHARES), 24, f"clients {number}")
        for (url, jobs), card in zip(gateway.sent.items(), "12", strict=True):
            drafts = "mtp" in url
            for job in jobs:
                times = (later + FRONT + job.first, later + FRONT + job.ended)
                found.setdefault((drafts, card), []).append(
                    Answer(url, drafts, job.prompt.task.value, job.tokens, *times)
                )
        later += 2 * gateway.clock.now
    said = {row["engine"]: row["logs"]["line"] for row in read("gpu-graphs-26b-a4b-two")["fits"]["rows"]}
    for drafts, known, close in ((False, said["plain"], 1.0), (True, said["mtp"], 2.0)):
        fits = []
        for card in "12":
            seen = met(found[drafts, card], K, SIZES[K if drafts else 0], LENGTHS)
            (_, _, join), _, explained = fit(seen, graphs=False)
            assert explained > 0.75
            fits.append((len(seen), join))

        assert sum(n * join for n, join in fits) / sum(n for n, _ in fits) == pytest.approx(known, abs=close)
