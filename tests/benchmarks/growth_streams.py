"""What a request costs beside many open streams, and what the streams themselves get.

A crowd of streams is opened through the gateway and held, one token every two seconds each, at phases of their own.
At each size, first the crowd alone is measured, then with a fixed load of small requests beside it; what a request
costs is the difference, so that the tokens' own cost is not in it. Each round is a gateway of its own, grows from
the smallest crowd to the largest, and is preceded by the largest crowd straight at the server, whose delays are the
machine's, the server's and this reader's own.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from tests.benchmarks import wire
from tests.benchmarks.growth_crowd import SAMPLED, Crowd, Window
from tests.benchmarks.growth_fleet import (
    UNLIMITED,
    Plan,
    Servers,
    cost_us,
    gateway,
    helper,
    load,
    load_command,
    pid_of,
    servers,
)
from tests.benchmarks.load import Job, Result
from tests.benchmarks.overhead import finish_load
from tests.benchmarks.process import cpu_seconds, family, pinned, rss_bytes
from tests.benchmarks.stats import middle
from tests.benchmarks.targets import Running

_INTERVALS_US = 2_000_000, 400_000
"""In full, and quick."""
_OPENED_PER_S = 1_000.0
_OPENED_DIRECTLY_PER_S = 2_500.0
_CONNECTIONS, _PACE_S = 8, 0.02
"""400 requests a second."""
_FILES_SPARE = 256


@dataclass(slots=True)
class Sample:
    """One crowd in one round."""

    streams: int
    result: Result
    alone_cpu: float
    """CPU seconds a second without requests."""
    alone: Window
    alone_s: float
    beside: Window
    rss: int
    errors: Counter[str]


@dataclass(slots=True)
class Round:
    direct: Window
    rss_before: int
    samples: list[Sample]


def streams(plan: Plan) -> dict[str, Any]:
    """The curve and the largest crowd's figures."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Two files a stream in the gateway, one here and one in the server.
    most = (hard - _FILES_SPARE) // 2
    wanted = plan.pick((10, 100, 1_000, 5_000), (10, 50))
    levels = [level for level in wanted if level <= most]
    rounds, seconds, interval_s = plan.pick(3, 1), plan.pick(3.0, 1.0), plan.pick(*_INTERVALS_US) / 1e6
    if not levels:
        raise RuntimeError(f"{hard} open files (ulimit -Hn) are too few for {wanted[0]} streams")
    found: list[Round] = []
    with servers(1, plan.cores.load) as fleet, pinned(plan.cores.load):
        for turn in range(rounds):
            plan.say(f"streams: round {turn + 1} of {rounds}, direct")
            direct = uvloop.run(_direct(fleet, levels[-1], seconds, plan))
            with gateway(fleet.policy(lines=UNLIMITED), fleet, plan.cores.target) as target:
                # Buffers and caches of a first few hundred requests are no stream's.
                load(Job(target.port, 32, 60.0, 500, headers=target.headers), plan.cores.load)
                before = rss_bytes(family(pid_of(target)))
                found.append(Round(direct, before, uvloop.run(_through(target, levels, seconds, plan))))
    return {
        "parameters": {
            "rounds": rounds, "seconds": seconds, "token_interval_s": interval_s,
            "requests_per_s": _CONNECTIONS / _PACE_S, "body_bytes": 1000, "open_files": hard,
        },
        "left_out": [level for level in wanted if level > most],
        **_figures(found, levels, interval_s),
    }  # fmt: skip


async def _direct(fleet: Servers, count: int, seconds: float, plan: Plan) -> Window:
    crowd = Crowd(int(fleet.plain[0].rpartition(":")[2]), {}, plan.pick(*_INTERVALS_US), _OPENED_DIRECTLY_PER_S)
    await crowd.grow(count)
    window = await crowd.listen(seconds)
    await crowd.close()
    if crowd.errors:
        raise RuntimeError(f"the machine does not hold {count} streams without a gateway: {dict(crowd.errors)}")
    return window


async def _through(target: Running, levels: list[int], seconds: float, plan: Plan) -> list[Sample]:
    crowd = Crowd(target.port, target.headers, plan.pick(*_INTERVALS_US), _OPENED_PER_S)
    samples = []
    for level in levels:
        plan.say(f"streams: {level:,}")
        await crowd.grow(level)
        samples.append(await _sample(crowd, target, level, seconds, plan))
    await crowd.close()
    return samples


async def _sample(crowd: Crowd, target: Running, level: int, seconds: float, plan: Plan) -> Sample:
    pids = family(pid_of(target))
    before, start = cpu_seconds(pids), time.monotonic()
    alone = await crowd.listen(seconds)
    took = time.monotonic() - start
    cpu = (cpu_seconds(pids) - before) / took
    job = Job(
        target.port, _CONNECTIONS, seconds, headers=target.headers, pace_s=_PACE_S,
        answer_bytes=len(wire.answer_body()), target_pid=target.pid,
    )  # fmt: skip
    crowd.window = beside = Window()
    with helper(load_command(job), plan.cores.load) as process:
        result = await asyncio.to_thread(finish_load, process)
    crowd.window = None
    errors = Counter(crowd.errors) + Counter({f"request: {kind}": n for kind, n in result.errors.items()})
    return Sample(level, result, cpu, alone, took, beside, rss_bytes(pids), errors)


def _figures(found: list[Round], levels: list[int], interval_s: float) -> dict[str, Any]:
    """Medians over the rounds, by crowd; errors are those of all rounds."""
    rows, errors = [], Counter[str]()
    for place, level in enumerate(levels):
        samples = [one.samples[place] for one in found]
        rows.append({"streams": level, **_row(samples, interval_s)})
    for one in found:
        # A crowd's errors add up as it grows: the last sample has them all, but for those of the requests.
        for sample in one.samples:
            errors.update({kind: n for kind, n in sample.errors.items() if kind.startswith("request: ")})
        errors.update({kind: n for kind, n in one.samples[-1].errors.items() if not kind.startswith("request: ")})
    direct = [one.direct.p99_ms() for one in found]
    top = [(one.samples[-1].rss - one.rss_before) / levels[-1] / 1000 for one in found]
    return {
        "rows": rows,
        "kb_per_stream": middle(top),
        "direct": {key: middle([one[key] for one in direct]) for key in direct[0]},
        "errors": dict(errors),
    }


def _row(samples: list[Sample], interval_s: float) -> dict[str, Any]:
    costs = [
        cost
        for s in samples
        if (cost := cost_us(s.result.target_cpu_s, s.alone_cpu * s.result.window_s, s.result.completed)) is not None
    ]
    expected = [s.streams / SAMPLED * s.alone_s / interval_s for s in samples]
    results = [asdict(s.result) for s in samples]
    alone, beside = ([getattr(s, name).p99_ms() for s in samples] for name in ("alone", "beside"))
    return {
        "cpu_us": middle(costs),
        "spread": (max(costs) - min(costs)) / middle(costs) if costs and middle(costs) else None,
        "streams_cpu_ms_per_s": middle([s.alone_cpu * 1000 for s in samples]),
        "request_p50_ms": middle([result["latency_p50"] for result in results]),
        "request_p99_ms": middle([result["latency_p99"] for result in results]),
        "tokens_share": middle([len(s.alone.delays) / e for s, e in zip(samples, expected, strict=True)]),
        **{key: middle([one[key] for one in alone]) for key in alone[0]},
        **{f"beside_{key}": middle([one[key] for one in beside]) for key in beside[0]},
    }
