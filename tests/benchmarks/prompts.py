"""How long short prompts wait for their first token in a burst with long ones.

    python -m tests.benchmarks.prompts http://127.0.0.1:8080 http://127.0.0.1:8081 --model NAME

Addresses are measured in turns and get the same mix, with words of its own in every run, so that no engine finds a
prompt in its cache. Compare a gateway with `limits: {prefill: 0}` with one that holds prompts back, before one engine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean

import httpx

WORDS = (
    *("river", "stone", "keeps", "slow", "account", "mountain", "valley"),
    *("rain", "harbour", "ship", "winter", "light", "letter", "bridge"),
)


@dataclass(frozen=True, slots=True)
class Burst:
    """What is sent: `count` requests, long and short in turns."""

    model: str
    count: int = 24
    long: int = 1400
    short: int = 30
    every: float = 0.15
    tokens: int = 8


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of one request."""

    words: int
    first: float
    whole: float


async def play(url: str, burst: Burst, rng: Random) -> list[Taken]:
    """Sends the burst; raises httpx.HTTPStatusError for an answer that is none."""
    async with httpx.AsyncClient(timeout=900, limits=httpx.Limits(max_connections=burst.count + 1)) as client:
        await _ask(client, url, burst, burst.short, rng)
        running = []
        for at in range(burst.count):
            words = burst.short if at % 2 else burst.long
            running.append(asyncio.create_task(_ask(client, url, burst, words, rng)))
            await asyncio.sleep(burst.every)
        return list(await asyncio.gather(*running))


async def _ask(client: httpx.AsyncClient, url: str, burst: Burst, words: int, rng: Random) -> Taken:
    text = " ".join(rng.choice(WORDS) for _ in range(words))
    body = {
        "model": burst.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": burst.tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    began, first = time.perf_counter(), None
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if first is None and line.startswith("data: {"):
                first = time.perf_counter() - began
    whole = time.perf_counter() - began
    return Taken(words, whole if first is None else first, whole)


def table(url: str, found: Sequence[Taken], seconds: float) -> str:
    lines = [f"{url}: the burst took {seconds:.1f} s, a request {mean(row.whole for row in found):.2f} s"]
    for words in sorted({row.words for row in found}):
        rows = [row for row in found if row.words == words]
        first, whole = [row.first for row in rows], [row.whole for row in rows]
        lines.append(
            f"  {words:5} words: first token {mean(first):7.2f} s (latest {max(first):.2f}), whole {mean(whole):7.2f} s"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+", metavar="URL", help="gateways or engines, measured in turns")
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = Random(args.seed)
    for _ in range(args.rounds):
        for url in args.urls:
            began = time.perf_counter()
            found = asyncio.run(play(url.rstrip("/"), Burst(args.model, args.count), rng))
            print(table(url, found, time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main()
