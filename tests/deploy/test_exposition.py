"""What the gateway exports, as Prometheus' own tool judges it."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from gateway.app import build
from gateway.policy.load import parse_policy
from gateway.settings import Settings
from tests.answers import reply
from tests.deploy.observed import tool
from tests.gateways import two_pools
from tests.raw_client import ask, chat, get
from tests.servers import serve
from tests.stub import Stub

ANSWER = reply({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})


async def test_promtool_finds_nothing_to_mend(tmp_path: Path) -> None:
    """`promtool check metrics` on a gateway with everything on: names, helps, types, units."""
    program = tool("promtool")
    async with Stub(ANSWER) as one, Stub(ANSWER) as two:
        text = two_pools(one.url, two.url)
        other = tmp_path / "other.yaml"
        other.write_text(text.replace("expected_time", "static") + "canary: {share: 0.5}\n", "utf-8")
        settings = Settings(shadow_policy=str(other), canary_policy=str(other))
        app = build(settings, parse_policy(text, "policy.yaml", {}), env={}, rng=random.Random(7))
        async with serve(app, loop="asyncio", http="httptools", lifespan="on") as url:
            for number in range(8):
                await ask(url, chat(f"question {number}", stream=bool(number % 2)))
            page = (await get(url, "/metrics")).body

    assert judged(program, page) == (0, b"")


def judged(promtool: str, page: bytes) -> tuple[int, bytes]:
    """Exit code, and all that it says."""
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr
