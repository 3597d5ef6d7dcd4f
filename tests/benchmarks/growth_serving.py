"""What a request costs against the number of endpoints, how long a start takes, and memory over many requests."""

from __future__ import annotations

import http.client
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.benchmarks import wire
from tests.benchmarks.growth_fleet import (
    HOST,
    Plan,
    Servers,
    background,
    cost_us,
    gateway,
    load,
    pid_of,
    serve_command,
    servers,
    turned,
)
from tests.benchmarks.load import Job, Result
from tests.benchmarks.process import Child, StartFailed, cpu_seconds, family, free_ports, pinned, rss_bytes
from tests.benchmarks.stats import middle, slope
from tests.benchmarks.targets import Running

_CONNECTIONS = 32
_SETTLE_S = 1.0
_START_PATIENCE = 30.0
_LOOK_S = 0.002
_FLAT_MB = 5.0
_WARM = 0.2


def endpoints(plan: Plan) -> dict[str, Any]:
    """CPU of a request with so many endpoints in each of two pools; a fresh gateway each time.

    Probing and reading the endpoints' metrics goes on without requests and grows with the endpoints by its nature. It
    is measured first, told beside, and taken off what a request costs.
    """
    levels, rounds, seconds = plan.pick((1, 4, 16, 64), (1, 4)), plan.pick(3, 1), plan.pick(3.0, 0.5)
    found: dict[int, list[tuple[float, Result]]] = {level: [] for level in levels}
    with servers(max(levels), plan.cores.load) as fleet:
        for turn in range(rounds):
            for level in turned(levels, turn):
                plan.say(f"endpoints: round {turn + 1} of {rounds}, {level} in each pool")
                with gateway(fleet.policy(level), fleet, plan.cores.target) as target:
                    time.sleep(_SETTLE_S)
                    idle = background(family(pid_of(target)), plan.pick(2.0, 0.5))
                    found[level].append((idle, load(_job(target, seconds, 1.0), plan.cores.load)))
    rows, errors = [], Counter[str]()
    for level, samples in found.items():
        costs = [c for idle, r in samples if (c := cost_us(r.target_cpu_s, idle * r.window_s, r.completed)) is not None]
        whole = [c for _, r in samples if (c := cost_us(r.target_cpu_s, 0.0, r.completed)) is not None]
        rows.append(
            {
                "endpoints": level,
                "cpu_us": middle(costs),
                "spread": (max(costs) - min(costs)) / middle(costs) if costs else None,
                "whole_cpu_us": middle(whole),
                "background_cpu_ms_per_s": middle([idle * 1000 for idle, _ in samples]),
                "requests_per_s": middle([r.completed / r.window_s for _, r in samples]),
            }
        )
        for _, result in samples:
            errors.update(result.errors)
    parameters = {"rounds": rounds, "seconds": seconds, "connections": _CONNECTIONS, "body_bytes": 1000, "pools": 2}
    return {"parameters": parameters, "rows": rows, "errors": dict(errors)}


def _job(target: Running, seconds: float, warmup_s: float, requests: int | None = None) -> Job:
    return Job(
        target.port, _CONNECTIONS, seconds, requests, warmup_s=warmup_s, headers=target.headers,
        answer_bytes=len(wire.answer_body()), target_pid=target.pid,
    )  # fmt: skip


def start(plan: Plan) -> dict[str, Any]:
    """Seconds from the start of the command to the first 200 of `/ready`. One start before fills the file cache."""
    times = plan.pick(7, 2)
    # Looking must not take from the core that starts.
    with servers(1, plan.cores.load) as fleet, pinned(plan.cores.load):
        _start_s(fleet, plan)
        found = []
        for turn in range(times):
            plan.say(f"start: {turn + 1} of {times}")
            found.append(_start_s(fleet, plan))
    return {
        "parameters": {"starts": times, "looks_every_s": _LOOK_S},
        "median_s": middle([wall for wall, _ in found]),
        "least_s": min(wall for wall, _ in found),
        "most_s": max(wall for wall, _ in found),
        "cpu_s": middle([cpu for _, cpu in found]),
        "errors": {},
    }


def _start_s(fleet: Servers, plan: Plan) -> tuple[float, float]:
    """Wall and CPU seconds. Raises StartFailed."""
    port = free_ports(1)[0]
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.yaml"
        policy.write_text(fleet.policy())
        child = Child(serve_command(str(policy), port), Path(folder) / "log", plan.cores.target)
        begun = time.monotonic()
        with child:
            while not ready(port):
                if time.monotonic() - begun > _START_PATIENCE:
                    raise StartFailed(f"not ready within {_START_PATIENCE:.0f} s\n{child.output()}")
                time.sleep(_LOOK_S)
            return time.monotonic() - begun, cpu_seconds(family(child.pid))


def ready(port: int) -> bool:
    """Whether `/ready` answers with 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def memory(plan: Plan) -> dict[str, Any]:
    """Resident memory after each tenth of the requests; flat if what follows the first fifth adds less than 5 MB.

    `tests.benchmarks.memory` has the same in finer steps, long streams and open streams.
    """
    each, count = plan.pick(10_000, 100), 10
    points: list[tuple[int, float]] = []
    errors: Counter[str] = Counter()
    done = 0
    with servers(1, plan.cores.load) as fleet, gateway(fleet.policy(), fleet, plan.cores.target) as target:
        before = rss_bytes(family(pid_of(target))) / 1e6
        for _ in range(count):
            plan.say(f"memory: {done:,} requests")
            result = load(_job(target, 600.0, 0.0, each), plan.cores.load)
            done += result.completed
            errors.update(result.errors)
            points.append((done, rss_bytes(family(pid_of(target))) / 1e6))
    rest = points[round(count * _WARM) - 1 :]
    return {
        "parameters": {"requests": each * count, "connections": _CONNECTIONS, "body_bytes": 1000},
        "rows": [{"requests": at, "rss_mb": mb} for at, mb in points],
        "rss_before_mb": before,
        "growth_after_warmup_mb": rest[-1][1] - rest[0][1],
        "kb_per_1000_requests": slope([(float(at), mb) for at, mb in rest]) * 1e6,
        "flat": rest[-1][1] - rest[0][1] <= _FLAT_MB,
        "errors": dict(errors),
    }
