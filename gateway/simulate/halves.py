"""Simulates the measurements of gateway arms with a CUDA graph for every batch (`tests/benchmarks/gpu_halves.py`).

In the measurement one engine was real and the other was simulated in real time. The simulation mirrors that: one
engine of an arm stands for the real one, the other for its simulated twin, and only requests of the real one count.
Arms that choose between the engines were run in both orders. The twins use the stalls of the profile at that time; that
they did not schedule ahead is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gateway.profiles import get_profile
from gateway.simulate.graphs import GraphSpeeds
from gateway.simulate.job import Job
from gateway.simulate.mixed import in_order, poisson
from gateway.simulate.served import CLIENT_ROUNDS, DROPPED, FRONT, ROUNDS, SEATS, SHARES, Gateway, Load
from gateway.simulate.speeds import Speeds
from gateway.simulate.tables import Row, rows_of
from gateway.upstream.lease import Lease

TABLES = ("h200-arms-e4b-graphs",)
TWO_TABLES: Mapping[str, int] = {"h200-arms-e4b-two": 4, "h200-arms-26b-two": 3}
"""Such engines on two real cards, which `gateway.simulate.served` plays; the rounds of each."""
_WIDE = (288, 320, 352, 384, 448, 512, 640, 768, 1024)
SIZES: Mapping[int, tuple[int, ...]] = {
    0: (*range(1, 65), 72, 80, 88, 96, 112, 128, 144, 192, 256, *_WIDE),
    2: (*range(3, 193, 3), 225, 255, 288, 321, 351, 384, 447, 513, 639, 768, 1023),
}
"""CUDA graph sizes of the measured engines in tokens, by k."""
TWIN_STALL, TWIN_MTP_STALL = 19.0, 2.0
"""Milliseconds, as in `gateway.profiles.Prefill`."""
ORDERS: Mapping[str, tuple[int, ...]] = {"all-plain": (0,), "all-MTP": (0,), "static": (0, 1), "fleet": (0, 1)}
"""By arm: the index of the real engine in each run."""
WARM_UP = 5.0


class Half(Gateway):
    """The gateway of one arm before a real and a simulated engine."""

    def __init__(self, arm: str, model: str, real: int) -> None:
        super().__init__(arm, model)
        self.answered: list[Job] = []
        """The real engine's jobs, in the order of sending."""
        self._real = list(self._engines)[real]
        measured = get_profile("h200", model)
        given = replace(measured.prefill, stall=TWIN_STALL, mtp_stall=TWIN_MTP_STALL)
        twin = replace(measured, prefill=given)
        for url, engine in self._engines.items():
            k = engine.speeds.k
            engine.speeds = GraphSpeeds(measured, k, SEATS, SIZES[k]) if url == self._real else Speeds(twin, k, SEATS)

    def _send(self, job: Job, lease: Lease) -> None:
        if lease.endpoint.url == self._real:
            self.answered.append(job)
        super()._send(job, lease)

    def rounds(self, loads: tuple[Load, ...]) -> Iterator[tuple[Load, Job]]:
        """Plays a warm-up and all rounds; yields the counted requests of the real engine with their load."""
        self.play(poisson(max(load.rate for load in loads), WARM_UP, -1, SHARES), 0, "warm-up")
        for number in range(ROUNDS):
            for load in loads:
                before = len(self.answered)
                arrivals = (
                    in_order(load.clients * CLIENT_ROUNDS, number, SHARES)
                    if load.clients
                    else poisson(load.rate, load.seconds, number, SHARES)
                )
                jobs = self.play(arrivals, load.clients, f"{load} {number}")
                dropped = {id(job) for job in jobs[: round(DROPPED * len(jobs))]}
                yield from ((load, job) for job in self.answered[before:] if id(job) not in dropped)


def replay(table: str) -> Iterator[tuple[Row, float]]:
    """The table's rows with the simulated mean milliseconds of each row's kind, as in `served.replay`."""
    rows = rows_of(table)
    loads = tuple(dict.fromkeys(_load(row) for row in rows))
    found: dict[tuple[str, Load, str], list[float]] = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        for real in ORDERS[arm]:
            for load, job in Half(arm, rows[0]["model"], real).rounds(loads):
                found.setdefault((arm, load, job.prompt.kind), []).append(FRONT + job.ended - job.at)
    for row in rows:
        seconds = found[row["arm"], _load(row), row["kind"]]
        yield row, 1000 * sum(seconds) / len(seconds)


def _load(row: Row) -> Load:
    return Load(float(row["rate"] or 0), int(row["clients"] or 0), float(row["seconds"]))
