"""What a step takes in mixed traffic, from the logs of the gateways that `gpu_arms --folder FOLDER` leaves there.

    python -m tests.benchmarks.gpu_logs FOLDER [--k 2] [--sizes 1,2,4,8,...] [--lengths chat=1.71,code=2.30]

A request's line says where it ran, when its first and last token came and how many there were; its class's mean
acceptance length makes steps of them. By engine, the time per step of long answers is fitted with

    step = a + b B + s (share of its time in which the batch had no full CUDA graph) + j (joining prompts per step)

weighted by steps, without the share and with it; and, as steps per second, by what a step takes with and without its
graph alone. `--sizes` are the engines' captured graph sizes.
"""

from __future__ import annotations

import argparse
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path

from gateway.bench.fit import least_squares
from gateway.simulate.graphs import covered
from gateway.simulate.served import SEATS, SIZES

LONG = 200
"""Tokens of an answer that says something about a step."""
LENGTHS = {"code": 2.30}
PROSE = 1.71
_LINE = re.compile(
    r"(?P<end>\S+) info +request .*result=ok .*pool=(?P<pool>\w+) .*endpoint=(?P<endpoint>\S+) task=(?P<task>\w+) "
    r".*output=(?P<tokens>\d+) .*first_ms=(?P<first>[\d.]+) total_ms=(?P<total>[\d.]+)"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request; times are seconds."""

    endpoint: str
    drafts: bool
    task: str
    tokens: int
    first: float
    end: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What a long answer's steps took and met."""

    seconds: float
    steps: float
    batch: float
    bare: float
    """Share of its time in which the batch had no graph."""
    joins: float


def read(lines: Iterator[str]) -> Iterator[Answer]:
    """The answers that a gateway's log tells of."""
    for line in lines:
        if found := _LINE.match(line):
            end = datetime.fromisoformat(found["end"]).timestamp()
            first = end - (float(found["total"]) - float(found["first"])) / 1000
            yield Answer(found["endpoint"], found["pool"] == "mtp", found["task"], int(found["tokens"]), first, end)


def met(answers: Sequence[Answer], k: int, sizes: Sequence[int], lengths: Mapping[str, float]) -> list[Seen]:
    """The long ones of one engine, with the others that ran beside each."""
    firsts = sorted(a.first for a in answers)
    changes = sorted([(a.first, 1) for a in answers] + [(a.end, -1) for a in answers])
    times, running = [at for at, _ in changes], list(accumulate(step for _, step in changes))
    found = []
    for a in answers:
        if a.tokens < LONG or a.end <= a.first:
            continue
        inside = range(bisect_right(times, a.first) - 1, bisect_left(times, a.end))
        spans = [(running[i], min(times[i + 1], a.end) - max(times[i], a.first)) for i in inside]
        whole, depth = a.end - a.first, k if a.drafts else 0
        steps = (a.tokens - 1) / (lengths.get(a.task, PROSE) if a.drafts else 1.0)
        bare = sum(span for batch, span in spans if batch > 0 and not covered(batch, depth, sizes, SEATS))
        joins = bisect_left(firsts, a.end) - bisect_right(firsts, a.first)
        batch = sum(batch * span for batch, span in spans) / whole
        found.append(Seen(whole, steps, batch, bare / whole, joins / steps))
    return found


def fit(seen: Sequence[Seen], *, graphs: bool) -> tuple[list[float], float, float]:
    """(coefficients in milliseconds, root mean square relative error, share of the variance that is explained)."""
    rows = [[1.0, s.batch, s.joins, *([s.bare] if graphs else [])] for s in seen]
    targets, weights = [1000 * s.seconds / s.steps for s in seen], [s.steps for s in seen]
    scaled = [[value * w**0.5 for value in row] for row, w in zip(rows, weights, strict=True)]
    found = least_squares(scaled, [t * w**0.5 for t, w in zip(targets, weights, strict=True)])
    told = [sum(c * value for c, value in zip(found, row, strict=True)) for row in rows]
    mean = sum(t * w for t, w in zip(targets, weights, strict=True)) / sum(weights)
    left = sum(w * (t - p) ** 2 for t, p, w in zip(targets, told, weights, strict=True))
    spread = sum(w * (t - mean) ** 2 for t, w in zip(targets, weights, strict=True))
    rms = (sum((p / t - 1) ** 2 for t, p in zip(targets, told, strict=True)) / len(seen)) ** 0.5
    return found, rms, 1.0 - left / spread if spread else 0.0


def paces(seen: Sequence[Seen]) -> tuple[float, float]:
    """Milliseconds of a step with and without its graph: steps per second are what shares of time average."""
    weights = [s.steps**0.5 for s in seen]
    rows = [[w * (1.0 - s.bare), w * s.bare] for s, w in zip(seen, weights, strict=True)]
    with_graph, without = least_squares(rows, [w * s.steps / s.seconds for s, w in zip(seen, weights, strict=True)])
    return 1000 / with_graph, 1000 / without


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--k", type=int, default=2)
    parser.add_argument("--sizes", type=lambda text: [int(part) for part in text.split(",")], default=list(SIZES))
    parser.add_argument("--lengths", default=",".join(f"{task}={n}" for task, n in LENGTHS.items()), metavar="T=N,...")
    options = parser.parse_args(argv)
    lengths = {task: float(n) for task, _, n in (part.partition("=") for part in options.lengths.split(","))}
    engines: dict[str, list[Answer]] = {}
    for path in sorted(options.folder.glob("*.log")):
        with path.open(encoding="utf-8") as lines:
            for answer in read(lines):
                engines.setdefault(answer.endpoint, []).append(answer)
    for endpoint, answers in sorted(engines.items()):
        seen = met(answers, options.k, options.sizes, lengths)
        if len(seen) < 10:
            continue
        for graphs in (False, True) if answers[0].drafts else (False,):
            found, rms, explained = fit(seen, graphs=graphs)
            names = ("step", "a stream", "a join", *(("without a graph",) if graphs else ()))
            terms = ", ".join(f"{name} {value:.2f} ms" for name, value in zip(names, found, strict=True))
            print(f"{endpoint}, {len(seen)} answers: {terms}; rms {rms:.1%}, explains {explained:.0%}")
        if answers[0].drafts and any(s.bare for s in seen):
            with_graph, without = paces(seen)
            print(f"{endpoint}: a step takes {with_graph:.1f} ms with its graph and {without:.1f} ms without")
    return 0


if __name__ == "__main__":
    sys.exit(main())
