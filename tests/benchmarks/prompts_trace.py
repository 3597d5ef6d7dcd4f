"""A trace of real arrivals played through gateways in turns: how long requests take, and their first tokens.

    python -m tests.benchmarks.prompts_trace TRACE.csv http://127.0.0.1:8080 http://127.0.0.1:8081 --model NAME \
        --rates 20,40 --seconds 25 --rounds 3 --json FILE

TRACE.csv has the columns t_s, input_tokens, output_tokens. A round plays one stretch of it through every address in
turn, sped up to the rate asked for, so that bursts stay bursts; the next round plays the next stretch. Prompts are
random words (about a token each) and answers have the trace's length. Compare a gateway with `limits: {prefill: 0}`
with one that holds prompts back, before the same engines.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from random import Random
from statistics import mean, quantiles
from urllib.parse import urlsplit

from tests.benchmarks.prompts import WORDS


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of the trace: seconds since the stretch began, tokens in and out."""

    at: float
    words: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one request; times in seconds from when it was due. `first` is None where no event came."""

    round: int
    rate: float
    url: str
    words: int
    tokens: int
    prompt_tokens: int | None
    first: float | None
    whole: float
    error: str | None


def stretch(rows: Sequence[Arrival], number: int, rate: float, seconds: float, longest: int) -> list[Arrival]:
    """Stretch `number` of the trace with `rate` requests/s on average over `seconds`; prompts are cut at `longest`.

    Raises SystemExit where the trace is too short for it.
    """
    count = round(rate * seconds)
    if len(rows) < count:
        raise SystemExit(f"the trace has {len(rows)} requests, a stretch {count}: ask for less")
    start = number * count % max(1, len(rows) - count)
    taken = rows[start : start + count]
    faster = (taken[-1].at - taken[0].at) / seconds or 1.0
    return [Arrival((row.at - taken[0].at) / faster, min(row.words, longest), row.tokens) for row in taken]


def read(path: Path) -> list[Arrival]:
    """Raises SystemExit where the file is missing or has other columns."""
    try:
        with path.open(newline="") as lines:
            return [
                Arrival(float(row["t_s"]), int(row["input_tokens"]), max(1, int(row["output_tokens"])))
                for row in csv.DictReader(lines)
            ]
    except (OSError, KeyError, ValueError) as error:
        raise SystemExit(f"{path}: no CSV with t_s, input_tokens and output_tokens in numbers: {error}") from None


async def play(url: str, rate: float, number: int, rows: Sequence[Arrival], model: str, rng: Random) -> list[Answered]:
    """Sends every request when it is due, whatever became of those before it."""
    loop, running = asyncio.get_running_loop(), []
    bodies = [_body(row, model, rng) for row in rows]
    began = loop.time() + 0.2
    for row, body in zip(rows, bodies, strict=True):
        due = began + row.at
        await asyncio.sleep(due - loop.time())
        running.append((row, loop.create_task(_ask(url, body, due))))
    return [Answered(number, rate, url, row.words, row.tokens, *(await task)) for row, task in running]


def _body(row: Arrival, model: str, rng: Random) -> bytes:
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": " ".join(rng.choices(WORDS, k=row.words))}],
            "max_tokens": row.tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


async def _ask(url: str, body: bytes, due: float) -> tuple[int | None, float | None, float, str | None]:
    """Prompt tokens, first event, end, error. A plain socket: a client library's own work would be in the times."""
    loop, address = asyncio.get_running_loop(), urlsplit(url)
    first, answer = None, b""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    head += f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head.encode() + body)
        while piece := await reader.read(65536):
            answer += piece
            if first is None and b"data: {" in answer:
                first = loop.time() - due
        writer.close()
    except OSError as error:
        return None, first, loop.time() - due, str(error)
    whole = loop.time() - due
    if b"data: [DONE]" not in answer:
        return None, first, whole, answer[:300].decode(errors="replace")
    counted = answer.rpartition(b'"prompt_tokens":')[2].lstrip()
    return int(counted[: len(counted) - len(counted.lstrip(b"0123456789"))] or 0), first, whole, None


def table(rows: Sequence[Answered]) -> str:
    """A line for each rate and address."""

    def key(row: Answered) -> tuple[float, str]:
        return row.rate, row.url

    lines = ["| rate | address | requests | errors | mean s | p95 s | first token, mean s | p95 s |", "|" + "---|" * 8]
    for (rate, url), group in groupby(sorted(rows, key=key), key):
        every = list(group)
        good = [row for row in every if row.error is None]
        if len(good) < 2:
            lines.append(f"| {rate:g} | {url} | {len(every)} | {len(every) - len(good)} | | | | |")
            continue
        whole, first = [row.whole for row in good], [row.first or row.whole for row in good]
        figures = (mean(whole), quantiles(whole, n=20)[-1], mean(first), quantiles(first, n=20)[-1])
        told = " | ".join(f"{figure:.3f}" for figure in figures)
        lines.append(f"| {rate:g} | {url} | {len(every)} | {len(every) - len(good)} | {told} |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("trace", type=Path, help="CSV with t_s, input_tokens, output_tokens")
    found.add_argument("urls", nargs="+", metavar="URL", help="gateways or engines, measured in turns")
    found.add_argument("--model", default="gemma-4-e4b")
    found.add_argument("--rates", type=lambda text: [float(part) for part in text.split(",")], default=[20.0])
    found.add_argument("--seconds", type=float, default=25.0, help="of a stretch (default 25)")
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--longest", type=int, default=7500, help="words of a prompt at most (default 7500)")
    found.add_argument("--pause", type=float, default=2.0, help="seconds between two runs (default 2)")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--json", type=Path, metavar="FILE", help="writes every request there, after every run")
    return found


def main() -> None:
    options = parser().parse_args()
    rng, trace = Random(options.seed), read(options.trace)
    found: list[Answered] = []
    for number in range(options.rounds):
        for rate in options.rates:
            rows = stretch(trace, number, rate, options.seconds, options.longest)
            turn = number % len(options.urls)
            for url in options.urls[turn:] + options.urls[:turn]:
                found += asyncio.run(play(url.rstrip("/"), rate, number, rows, options.model, rng))
                if options.json:
                    options.json.write_text(json.dumps([asdict(row) for row in found]))
                print(f"round {number + 1}, {rate:g}/s, {url}: {len(rows)} requests", file=sys.stderr, flush=True)
                time.sleep(options.pause)
    print(table(found))


if __name__ == "__main__":
    main()
