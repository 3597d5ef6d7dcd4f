"""Two cards' arms from one: which requests count, how their means are put together, and what a twin is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.bench.rows import Row
from tests.benchmarks.gpu_figures import line, parsed
from tests.benchmarks.gpu_halves import halves
from tests.benchmarks.gpu_twin import PATH, fronted


def _line(tag: str, total: float, pool: str, *, simulated: bool, counted: bool = True) -> dict[str, Any]:
    row = Row(label="", tag=tag, sent=0.0, total=total, tokens=8, pool=pool, simulated=simulated)
    return {"arm": "fleet", "rate": 10.0, "round": 0, **line(row, counted)}


def test_a_line_keeps_what_figures_need() -> None:
    """A request reads back as it was, but for its text."""
    row = Row(label="fleet", tag="code/256", sent=1.0, first=0.1, last=0.9, total=1.0, tokens=256, pool="mtp")

    assert parsed({"arm": "fleet", **line(row, True)}) == row


def test_only_what_a_real_engine_answered_counts() -> None:
    """The mean of all is that of the kinds as they were sent, twins' requests among them."""
    rows = [
        _line("short/8", 0.1, "plain", simulated=False),
        _line("short/8", 0.3, "plain", simulated=True),
        _line("short/8", 0.3, "plain", simulated=True),
        _line("code/256", 2.0, "mtp", simulated=False),
        _line("code/256", 9.0, "mtp", simulated=False, counted=False),
    ]

    (cell,) = halves(rows)

    assert cell["classes"]["short"]["e2e_ms"]["mean"] == 100.0
    assert cell["classes"]["all"]["e2e_ms"]["mean"] == (3 * 100 + 2000) / 4
    assert cell["sent"] == {"code": 1, "short": 3}
    assert cell["to_mtp"] == {"code": 1.0, "short": 0.0, "all": 0.25}
    assert cell["twin_ms"] == {"code": None, "short": 300.0, "all": None}


def test_a_kind_that_no_real_engine_answered_leaves_no_mean_of_all() -> None:
    """Half a result is not passed off as one."""
    (cell,) = halves([_line("short/8", 0.1, "plain", simulated=False), _line("code/256", 2.0, "mtp", simulated=True)])

    assert cell["classes"]["all"]["e2e_ms"]["mean"] is None


@pytest.mark.parametrize(("path", "asked"), [(PATH, {"max_tokens": 8, "ignore_eos": True}), ("/x", {"max_tokens": 8})])
async def test_a_twin_answers_to_the_greatest_length(path: str, asked: dict[str, Any]) -> None:
    """Chat requests are asked to run on; what else comes passes as it is."""
    parts: list[Message] = [
        {"type": "http.request", "body": b'{"max_tok', "more_body": True},
        {"type": "http.request", "body": b'ens": 8}', "more_body": False},
        {"type": "http.disconnect"},
    ]
    whole = asyncio.Queue[Message]()
    for part in parts:
        whole.put_nowait(part)
    bodies, then = [b""], list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            bodies[0] += message.get("body", b"")
            if not message.get("more_body"):
                break
        then.append((await receive())["type"])

    async def send(message: Message) -> None:
        raise AssertionError(message)

    await fronted(app, 0.0)({"type": "http", "path": path}, whole.get, send)

    assert orjson.loads(bodies[0]) == asked
    assert then == ["http.disconnect"]
