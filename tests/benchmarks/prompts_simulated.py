"""What the simulator says of the runs in figures/gpu-prompts.json: the same stretches before one simulated engine.

    python -m tests.benchmarks.prompts_simulated FOLDER

FOLDER has the traces, as for `prompts_trace`. Writes the simulated means beside the measured ones, and prints how far
they are apart. Nothing in the simulator was fitted to these runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from gateway.policy.load import parse_policy
from gateway.profiles import get_profile
from gateway.routing.state import RoutingState
from gateway.simulate.arms import Routed
from gateway.simulate.engine import SimEngine
from gateway.simulate.job import Job, Prompt
from gateway.simulate.prompts import MODEL
from gateway.simulate.speeds import Speeds
from gateway.simulate.world import Clock, World
from gateway.types import NO_HINTS, Api, Estimate, Features, Task
from tests.benchmarks.prompts_trace import Arrival, read, stretch
from tests.benchmarks.report_data import FIGURES

SECONDS, LONGEST = 24.0, 7500
"""Of a stretch, and a prompt's most words, as measured."""
LIMITS = (0, 16_384)
"""`limits.prefill` of the two gateways."""
SEATS, KV_TOKENS = 128, 600_000
K: Mapping[str, int] = {"plain": 0, "mtp": 2}
TASK = Task.LONG_FORM
"""Its acceptance is the one that the measured drafters were made to have, 47 and 24 %, whatever the trace is of."""
POLICY = """
version: 1
pools: {{one: {{endpoints: ["http://one"], profile: h200/e4b, limits: {{prefill: {limit}}}{drafts}}}}}
models: {{{model}: {{pools: [one]}}}}
"""


def play(rows: list[Arrival], engine: str, limit: int) -> float:
    """Mean seconds of a request of this stretch."""
    k, clock, rng = K[engine], Clock(), Random(1)
    drafts = f", speculative: {{method: mtp, tokens: {k}}}" if k else ""
    policy = parse_policy(POLICY.format(limit=limit, drafts=drafts, model=MODEL), "simulation", {})
    speeds = Speeds(get_profile("h200", "e4b"), k, SEATS)
    world = World(policy, {"http://one": SimEngine("one", speeds, seats=SEATS, kv_tokens=KV_TOKENS)}, clock, rng)
    jobs = [_job(row, rng) for row in rows]
    world.run(jobs, Routed(policy, RoutingState(clock.read, rng, world.pools)))
    return fmean(job.ended - job.at for job in jobs)


def _job(row: Arrival, rng: Random) -> Job:
    n = float(row.tokens)
    features = Features(api=Api.CHAT, model=MODEL, stream=True, input_tokens=row.words)
    estimate = Estimate(task=TASK, output_tokens=n, p50=n, p90=n, confidence=1.0, source="known")
    return Job(
        row.at, Prompt(features, estimate, TASK, "trace", NO_HINTS), row.tokens, rng.gauss(0.0, 1.0), rng.random()
    )


def simulate(found: dict[str, Any], folder: Path) -> None:
    """Puts `simulated_ms` into every round."""
    traces = {name: read(folder / f"{name}.csv") for name in {cell["trace"] for cell in found["cells"]}}
    for cell in found["cells"]:
        for number, of in enumerate(cell["rounds"]):
            rows = stretch(traces[cell["trace"]], number, cell["rate"], SECONDS, LONGEST)
            of["simulated_ms"] = [round(1000 * play(rows, cell["engine"], limit)) for limit in LIMITS]


def errors(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each trace and engine: errors of the mean times, then of the second gateway's gain, in points."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell in found["cells"]:
        groups.setdefault((cell["trace"], cell["engine"]), []).extend(cell["rounds"])
    for name, rounds in groups.items():
        times, gains = [], []
        for of in rounds:
            measured, simulated = of["mean_ms"], of["simulated_ms"]
            times += [one / other - 1.0 for one, other in zip(simulated, measured, strict=True)]
            gains.append(abs(simulated[1] / simulated[0] - measured[1] / measured[0]))
        about = f"{len(times)} means, {fmean(map(abs, times)):.1%} apart on average, worst {max(times, key=abs):+.1%}"
        yield f"{', '.join(name)}: {about}; {len(gains)} gains, {100 * fmean(gains):.1f} points"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the traces")
    path = FIGURES / "gpu-prompts.json"
    found = json.loads(path.read_text("utf-8"))
    simulate(found, parser.parse_args().folder)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False), "utf-8")
    print("\n".join(errors(found)))


if __name__ == "__main__":
    main()
