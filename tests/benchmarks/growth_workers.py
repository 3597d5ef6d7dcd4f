"""Requests a second of two workers over one, both on the same two cores.

Where the machine has no more than two cores, load generator and server take a part of them. What they take is measured
and told, with the ratio that it leaves: one worker has a core and a helper's core beside it, so that it comes to 1 / g
requests a second, where g are the gateway's CPU seconds of a request. Two workers share both cores with the helpers'
h CPU seconds a request, which allows 2 / (g + h). The ratio is at most 2 g / (g + h), whatever the gateway does.

The load comes from `wrk` where it is installed, as it is the cheaper one, else from the project's own generator.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import wire
from tests.benchmarks.growth_fleet import HOST, UNLIMITED, Plan, gateway, helper, load_command, pid_of, servers, turned
from tests.benchmarks.load import Job
from tests.benchmarks.overhead import finish_load
from tests.benchmarks.process import cpu_seconds, family
from tests.benchmarks.stats import middle
from tests.benchmarks.targets import Running

_CONNECTIONS = 64
_WORKERS = (1, 2)
_SCRIPT = """
local pieces = {%s}
local number = %d
request = function() number = number + 1; return table.concat(pieces, string.format("%%016d", number)) end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %%d, "us": %%d, "connect": %%d, "read": %%d, "write": %%d, "status": %%d, "timeout": %%d}\\n',
    summary.requests, summary.duration, e.connect, e.read, e.write, e.status, e.timeout))
end
"""
_RESULT = re.compile(r"^RESULT (\{.*\})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Loaded:
    """One window of load; CPU seconds are those of the window."""

    completed: int
    seconds: float
    errors: dict[str, int]
    load_cpu: float
    server_cpu: float
    gateway_cpu: tuple[float, ...]
    """By process, the busiest first."""


def wrk_script(target: Running) -> str:
    """The script by which `wrk` sends what the project's own generator sends, no two requests alike."""
    request = wire.post(HOST, target.port, wire.chat_body(1000), target.headers)
    # A JSON string of ASCII is a Lua string: both know \\", \\\\, \\r and \\n.
    return _SCRIPT % (", ".join(json.dumps(piece.decode("ascii")) for piece in request.pieces), 10**15)


def read_wrk(text: str) -> tuple[int, float, dict[str, int]]:
    """Good answers, seconds and errors by kind out of what `wrk` printed. Raises RuntimeError without a result."""
    found = _RESULT.search(text)
    if found is None:
        raise RuntimeError(f"wrk gave no result: {text[-300:]}")
    figures: dict[str, int] = json.loads(found[1])
    requests, microseconds = figures.pop("requests"), figures.pop("us")
    return requests - figures["status"], microseconds / 1e6, {kind: n for kind, n in figures.items() if n}


def _wrk(program: str, target: Running, seconds: float, cores: frozenset[int]) -> tuple[int, float, dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(wrk_script(target))
        argv = [program, "-t", "1", "-c", str(_CONNECTIONS), "-d", f"{max(1, round(seconds))}s", "-s", str(script)]
        with helper([*argv, f"http://{HOST}:{target.port}"], cores) as process:
            out, _ = process.communicate()
    return read_wrk(out.decode(errors="replace"))


def _own(target: Running, seconds: float, cores: frozenset[int]) -> tuple[int, float, dict[str, int]]:
    job = Job(target.port, _CONNECTIONS, seconds, warmup_s=0.0, headers=target.headers,
              answer_bytes=len(wire.answer_body()))  # fmt: skip
    with helper(load_command(job), cores) as process:
        result = finish_load(process)
    return result.completed, result.window_s, result.errors


def _children_cpu() -> float:
    """CPU seconds of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _window(program: str | None, target: Running, server: int, seconds: float, cores: frozenset[int]) -> Loaded:
    pids = family(pid_of(target))
    before, server_before, load_before = [cpu_seconds([pid]) for pid in pids], cpu_seconds([server]), _children_cpu()
    if program is not None:
        completed, took, errors = _wrk(program, target, seconds, cores)
    else:
        completed, took, errors = _own(target, seconds, cores)
    used = [cpu_seconds([pid]) - cpu for pid, cpu in zip(pids, before, strict=True)]
    return Loaded(
        completed, took, errors, _children_cpu() - load_before, cpu_seconds([server]) - server_before,
        tuple(sorted(used, reverse=True)),
    )  # fmt: skip


def _cores() -> tuple[frozenset[int], frozenset[int]]:
    """The gateway's two cores, and the helpers': others where there are four at least. Raises RuntimeError."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RuntimeError("two workers are measured on two cores; there is one")
    ours = frozenset(usable[:2])
    return ours, frozenset(usable[2:4]) if len(usable) >= 4 else ours


def wrk_version(program: str) -> str:
    """As it prints it itself; it does so with an exit status of 1."""
    printed = subprocess.run([program, "-v"], capture_output=True, text=True).stdout
    return printed.partition(" [")[0].strip() or "wrk"


def workers(plan: Plan) -> dict[str, Any]:
    """Rates, ratio and the ratio that the machine allows. Raises RuntimeError on one core."""
    ours, theirs = _cores()
    program = shutil.which("wrk")
    rounds, seconds = plan.pick(5, 1), plan.pick(5.0, 1.0)
    found: dict[int, list[Loaded]] = {count: [] for count in _WORKERS}
    with servers(1, theirs) as fleet:
        text = fleet.policy(lines=UNLIMITED)
        with gateway(text, fleet, ours) as one, gateway(text, fleet, ours, workers=2) as two:
            running = dict(zip(_WORKERS, (one, two), strict=True))
            for target in running.values():
                _window(program, target, fleet.pid, plan.pick(2.0, 1.0), theirs)
            for turn in range(rounds):
                for count in turned(_WORKERS, turn):
                    plan.say(f"workers: round {turn + 1} of {rounds}, {count}")
                    found[count].append(_window(program, running[count], fleet.pid, seconds, theirs))
    return {
        "parameters": {
            "rounds": rounds, "seconds": seconds, "connections": _CONNECTIONS, "body_bytes": 1000,
            "load": wrk_version(program) if program else "tests.benchmarks.load",
            "gateway_cores": len(ours), "shared_with_load": ours == theirs,
        },
        **figures(found, ours == theirs),
    }  # fmt: skip


def figures(found: dict[int, list[Loaded]], shared: bool) -> dict[str, Any]:
    """Medians, and what the cores leave. `shared`: load and server run on the gateway's cores."""
    rows = [{"workers": count, **_row(samples)} for count, samples in found.items()]
    one, two = rows[0], rows[1]
    errors: Counter[str] = Counter()
    for samples in found.values():
        for sample in samples:
            errors.update(sample.errors)
    own, helpers = one["gateway_cpu_us"], one["load_cpu_us"] + one["server_cpu_us"]
    rates = [(a.completed / a.seconds, b.completed / b.seconds) for a, b in zip(found[1], found[2], strict=True)]
    return {
        "rows": rows,
        "ratio": middle([b / a for a, b in rates if a]),
        "ratio_allowed": (2 * own / (own + helpers) if own + helpers else None) if shared else 2.0,
        "ratio_of_requests_per_cpu_s": own / two["gateway_cpu_us"] if two["gateway_cpu_us"] else None,
        "errors": dict(errors),
    }


def _row(samples: Sequence[Loaded]) -> dict[str, Any]:
    def each_us(cpu: float, sample: Loaded) -> float:
        return cpu / sample.completed * 1e6 if sample.completed else 0.0

    return {
        "requests_per_s": middle([s.completed / s.seconds for s in samples]),
        "gateway_cpu_us": middle([each_us(sum(s.gateway_cpu), s) for s in samples]),
        "load_cpu_us": middle([each_us(s.load_cpu, s) for s in samples]),
        "server_cpu_us": middle([each_us(s.server_cpu, s) for s in samples]),
        "gateway_cores_used": middle([sum(s.gateway_cpu) / s.seconds for s in samples]),
        "load_cores_used": middle([s.load_cpu / s.seconds for s in samples]),
        "server_cores_used": middle([s.server_cpu / s.seconds for s in samples]),
        "busiest_share": middle([s.gateway_cpu[0] / sum(s.gateway_cpu) for s in samples if sum(s.gateway_cpu)]),
    }
