"""Simulates the measurements of gateway arms before real engines (`tests/benchmarks/gpu_arms.py`), request by request.

Each arm is one run, a warm-up and then rounds over all loads, like the measured gateway, so that it keeps what it has
learned between cells. Times are of whole requests; `FRONT` is added for HTTP, chat template and tokenizer of a real
server. Speeds are the built-in profile's, which was fitted to other measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, islice
from random import Random

from gateway.profiles import get_profile
from gateway.simulate.arms import MTP, PLAIN, ArmSpec, make_arm, make_policy
from gateway.simulate.engine import SimEngine
from gateway.simulate.graphs import GraphSpeeds
from gateway.simulate.job import Job, Prompt
from gateway.simulate.mixed import Arrival, in_order, poisson
from gateway.simulate.prompts import MODEL
from gateway.simulate.tables import Row, rows_of
from gateway.simulate.world import TELEMETRY, Arm, Clock, World
from gateway.types import NO_HINTS, Api, Estimate, Features, Task

SIZES = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    72,
    96,
    128,
    144,
    192,
    256,
    288,
    320,
    352,
    384,
    448,
    512,
    640,
    768,
    1024,
)
"""CUDA graph sizes of the measured engines, in tokens."""
SEATS, K, PROMPT = 128, 2, 256
KV_TOKENS = 400_000
FRONT = 0.0075
"""Seconds by which TTFT over HTTP exceeds that in the process, on an idle plain engine (E4B 22.0 against 13.4 ms,
26B-A4B 28.8 against 22.5)."""
DROPPED = 0.2
ROUNDS = 2
SAME_SIZES: Mapping[int, Sequence[int]] = {0: SIZES, K: SIZES}
"""By k."""
CLIENT_ROUNDS = 6
SHARES = {"short": 0.4, "prose": 0.3, "code": 0.3}
TASKS = {"short": Task.CLASSIFICATION, "prose": Task.LONG_FORM, "code": Task.CODE}
ARMS = {
    "all-plain": ((PLAIN, PLAIN), ArmSpec("all-plain", decider="fixed", pools=(PLAIN,))),
    "all-MTP": ((MTP, MTP), ArmSpec("all-MTP", decider="fixed", pools=(MTP,))),
    "static": ((PLAIN, MTP), ArmSpec("static", objective="static")),
    "expected_time": ((PLAIN, MTP), ArmSpec("expected_time", objective="expected_time")),
    "fleet": ((PLAIN, MTP), ArmSpec("fleet", objective="fleet")),
}
TABLES = ("h200-arms-e4b", "h200-arms-26b", "h200-arms-e4b-tasks", "h200-arms-26b-tasks")


@dataclass(frozen=True, slots=True)
class Load:
    """An open loop of `rate` requests per second for `seconds`, or a closed loop of `clients`."""

    rate: float
    clients: int
    seconds: float


class Gateway(World):
    """The gateway of one arm before its two engines, over all loads."""

    def __init__(
        self, name: str, model: str, sizes: Mapping[int, Sequence[int]] = SAME_SIZES, learned: bytes = b""
    ) -> None:
        """With an estimator's snapshot it estimates lengths and learns them; without, the prompts' own are used."""
        kinds, spec = ARMS[name]
        profile, clock, rng = get_profile("h200", model), Clock(), Random(name)
        pools = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
        policy = make_policy(f"h200/{model}", K, pools, SEATS, spec)
        engines = {
            f"http://{kind}-{at}": SimEngine(
                kind, GraphSpeeds(profile, k, SEATS, sizes[k]), seats=SEATS, kv_tokens=KV_TOKENS
            )
            for kind, number in pools.items()
            for k in [K if kind == MTP else 0]
            for at in range(number)
        }
        super().__init__(policy, engines, clock, rng)
        self.arm: Arm = make_arm(spec, policy, clock, self.pools, rng, learned)

    def play(self, arrivals: Sequence[Arrival], clients: int, seed: str) -> list[Job]:
        """Plays the arrivals after all earlier ones have ended; returns their jobs in the order of sending."""
        jobs = list(_jobs(arrivals, self.clock.now + 1.0, Random(seed)))
        if not clients:
            self.run(jobs, self.arm)
            return jobs
        self._play_closed(jobs, clients)
        return sorted(jobs, key=lambda job: job.at)

    def _play_closed(self, jobs: Sequence[Job], clients: int) -> None:
        """A closed loop. There are more seats than clients, so nothing queues and every end frees a client."""
        left, due, number, look = iter(jobs), list[tuple[float, int, Job]](), count(), 0.0
        for job in islice(left, clients):
            heappush(due, (job.at, next(number), job))
        while due or self._events:
            while self._events and self._events[0][2].next_at != self._events[0][0]:
                heappop(self._events)
            ends = self._events[0][0] if self._events else math.inf
            if due and due[0][0] <= ends:
                self.clock.now, _, job = heappop(due)
                job.at = self.clock.now
                self._arrive(job, self.arm)
            elif ends < math.inf:
                self.clock.now, before = ends, self._in_flight
                self._advance(self._events[0][2], self.arm)
                for job in islice(left, before - self._in_flight):
                    heappush(due, (ends + FRONT, next(number), job))
            if self.clock.now >= look:
                self._look(self.arm)
                look = self.clock.now + TELEMETRY

    @property
    def _in_flight(self) -> int:
        return sum(pool.in_flight for pool in self.pools)


def replay(
    table: str, sizes: Mapping[int, Sequence[int]] = SAME_SIZES, rounds: int = ROUNDS
) -> Iterator[tuple[Row, float]]:
    """The table's rows with the simulated mean milliseconds of each row's kind. `sizes`: the graphs' tokens, by k."""
    rows = rows_of(table)
    model = rows[0]["model"]
    loads = dict.fromkeys(Load(float(r["rate"] or 0), int(r["clients"] or 0), float(r["seconds"])) for r in rows)
    recorded = _recorded(model) if "traffic" in rows[0] and rows[0]["traffic"] == "recorded" else {}
    found: dict[tuple[str, float, int, str], float] = {}
    for name in dict.fromkeys(row["arm"] for row in rows):
        gateway, kept = Gateway(name, model, sizes), {load: list[Job]() for load in loads}
        gateway.play(poisson(max(load.rate for load in loads), 5.0, -1, SHARES), 0, "warm-up")
        for number in range(rounds):
            for load in loads:
                arrivals = recorded.get((load.rate, number)) or _draw(load, number)
                jobs = gateway.play(arrivals, load.clients, f"{load} {number}")
                kept[load] += jobs[round(DROPPED * len(jobs)) :]
        for load, jobs in kept.items():
            for kind in TASKS:
                if seconds := [FRONT + job.ended - job.at for job in jobs if job.prompt.kind == kind]:
                    found[name, load.rate, load.clients, kind] = 1000 * sum(seconds) / len(seconds)
    for row in rows:
        yield row, found[row["arm"], float(row["rate"] or 0), int(row["clients"] or 0), row["kind"]]


def _draw(load: Load, number: int) -> list[Arrival]:
    if load.clients:
        return in_order(load.clients * CLIENT_ROUNDS, number, SHARES)
    return poisson(load.rate, load.seconds, number, SHARES)


def _recorded(model: str) -> dict[tuple[float, int], list[Arrival]]:
    """Recorded arrivals of runs with another generator, by (rate, round)."""
    found = {}
    for row in rows_of("h200-arms-arrivals"):
        if row["model"] == model:
            pairs = (pair.partition(":") for pair in row["ms:tokens"].split())
            found[float(row["rate"]), int(row["round"])] = [
                Arrival(int(at) / 1000, "short" if int(tokens) == 8 else "prose", int(tokens))
                for at, _, tokens in pairs
            ]
    return found


def _jobs(arrivals: Sequence[Arrival], start: float, rng: Random) -> Iterator[Job]:
    features = Features(api=Api.CHAT, model=MODEL, stream=True, input_tokens=PROMPT)
    for arrival in arrivals:
        n, task = float(arrival.tokens), TASKS[arrival.kind]
        estimate = Estimate(task=task, output_tokens=n, p50=n, p90=n, confidence=1.0, source="known")
        prompt = Prompt(features, estimate, task, arrival.kind, NO_HINTS)
        yield Job(start + arrival.at, prompt, arrival.tokens, rng.gauss(0.0, 1.0), rng.random())
