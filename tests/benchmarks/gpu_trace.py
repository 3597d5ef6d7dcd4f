"""Stretches of a trace of real arrivals for `gpu_arms`, and the same requests played in the simulator.

    python -m tests.benchmarks.gpu_trace TRACE.csv --measured FILE

Prompts and answers are as long as in the trace, and bursts stay. The gateway is not told how long an answer will be, as
with most clients: the engine is, by `vllm_xargs` (`gateway sim` knows `sim_output_tokens`; a real engine with random
weights needs a plugin that ends an answer there). Arms whose name ends in `-told` get `max_tokens` instead, which shows
what knowing the lengths would bring.

The command plays the requests of FILE, figures of `gpu_arms`, in the simulator and prints the predicted mean of every
cell beside the measured one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from gateway.bench.drive import Ask
from gateway.bench.sources import class_prompts, filler
from gateway.estimate.estimator import Estimator
from gateway.estimate.model import load_prior
from gateway.simulate.job import Job, Prompt
from gateway.simulate.prompts import features_of
from gateway.simulate.served import DROPPED, FRONT, TASKS, Gateway, K
from gateway.types import NO_HINTS, Estimate
from tests.benchmarks.gpu_fleet import TOLD, base
from tests.benchmarks.prompts_trace import Arrival, read, stretch

CLASSES = ((500, "0 to 500"), (2000, "500 to 2000"), (4000, "2000 to 4000"))
"""Kinds of prompts by their tokens: below, name."""
WISH = 20
"""About the tokens of the wish after the filler."""
LONGEST = 7500
SIZES = {0: (*range(1, 65), *range(96, 1025, 32)), K: (*range(3, 193, 3), *range(225, 1024, 30))}
"""A CUDA graph for every batch, by k."""


def kind_of(words: int) -> str:
    """The class of a prompt."""
    return next((name for below, name in CLASSES if words < below), "4000 and more")


def asks(rows: Sequence[Arrival], seed: int, wishes: str, *, told: bool) -> list[Ask]:
    """The requests of one stretch; `wishes` is the kind of their last sentence. A tag is `CLASS/TOKENS`."""
    rng, sentences, found = Random(f"trace {len(rows)} {seed}"), class_prompts(wishes), []
    for row in rows:
        text = f"{filler(max(1.0, row.words - WISH), rng)}\n\n{rng.choice(sentences)}"
        told_by = {"max_tokens": row.tokens, "ignore_eos": True}
        length = told_by if told else {"vllm_xargs": {"sim_output_tokens": row.tokens}}
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **length}
        found.append(Ask(row.at, body, f"{kind_of(row.words)}/{row.tokens}"))
    return found


class Simulated:
    """The gateway of one arm, which learns lengths as it goes unless they are told."""

    def __init__(self, arm: str, model: str, wishes: str) -> None:
        self._told = arm.endswith(TOLD)
        self._task = TASKS["code" if wishes == "code" else "prose"]
        self._estimator = Estimator(load_prior())
        self._gateway = Gateway(base(arm), model, SIZES, b"" if self._told else self._estimator.snapshot())

    def play(self, rows: Sequence[Arrival], seed: int, wishes: str) -> list[float]:
        """Seconds of every request in order of sending. What earlier stretches taught stays."""
        rng, start = Random(f"luck {seed}"), self._gateway.clock.now + 1.0
        sent = zip(rows, asks(rows, seed, wishes, told=False), strict=True)
        jobs = [self._job(start, row, ask, rng) for row, ask in sent]
        self._gateway.run(jobs, self._gateway.arm)
        return [FRONT + job.ended - job.at for job in jobs]

    def _job(self, start: float, row: Arrival, ask: Ask, rng: Random) -> Job:
        features, n = features_of({"model": "model", "stream": True, **ask.body}), float(row.tokens)
        known = Estimate(task=self._task, output_tokens=n, p50=n, p90=n, confidence=1.0, source="known")
        estimate = known if self._told else self._estimator.estimate(features)
        prompt = Prompt(features, estimate, self._task, "", NO_HINTS)
        return Job(start + row.at, prompt, row.tokens, rng.gauss(0.0, 1.0), rng.random())


def predicted(found: dict[str, Any], trace: Sequence[Arrival]) -> Iterator[tuple[str, float, float, float]]:
    """(arm, rate, predicted and measured mean milliseconds) of every cell of `gpu_arms`."""
    about, cells = found["about"], found["cells"]
    seconds, first, rounds = about["seconds"], about["first_round"], about["rounds"]
    rates = list(dict.fromkeys(cell["rate"] for cell in cells))
    wishes, model = about["wishes"], str(about["profile"]).rpartition("/")[2]
    for arm in dict.fromkeys(cell["arm"] for cell in cells):
        one = Simulated(arm, model, wishes)
        one.play(stretch(trace, -1, max(rates), about["warm_up"], LONGEST), -1, wishes)
        kept: dict[float, list[float]] = {rate: [] for rate in rates}
        for number in range(first, first + rounds):
            for rate in rates:
                times = one.play(stretch(trace, number, rate, seconds, LONGEST), number, wishes)
                kept[rate] += times[round(DROPPED * len(times)) :]
        for cell in cells:
            if cell["arm"] == arm:
                yield arm, cell["rate"], 1000 * fmean(kept[cell["rate"]]), cell["classes"]["all"]["e2e_ms"]["mean"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--measured", type=Path, required=True, metavar="FILE", help="the figures of gpu_arms")
    options = parser.parse_args(argv)
    found = json.loads(options.measured.read_text())
    for arm, rate, said, was in predicted(found, read(options.trace)):
        print(f"{rate:g}/s {arm}: predicted {said:.0f} ms, measured {was:.0f} ({said / was - 1:+.0%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
