"""`gateway sim` as a process and as an argument parser."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.sim.command import add_arguments, main, settings_of
from gateway.sim.faults import Faults

PROGRAM = """
import argparse, sys
from gateway.sim.command import add_arguments, main
parser = argparse.ArgumentParser()
add_arguments(parser)
sys.exit(main(parser.parse_args()))
"""


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_options_become_settings() -> None:
    """Names of the contract, faults as text, plain unless speculative says mtp."""
    settings = settings_of(
        parsed(
            *("--model", "google/gemma-4-26B-A4B-it", "--served-name", "moe", "--served-name", "big"),
            *("--port", "9002", "--speculative", "mtp", "--k", "3", "--profile", "h200", "--seed", "4"),
            *("--fault", "cut=5", "--fault", "hang", "--time-scale", "2"),
        )
    )

    assert settings.names == ("moe", "big")
    assert (settings.port, settings.k, settings.profile, settings.seed) == (9002, 3, "h200", 4)
    assert settings.faults == Faults(cut=5, hang=True)
    assert settings.time_scale == 2
    assert settings_of(parsed("--k", "3")).k == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--profile", "abacus"], "no profile 'abacus'; there are: h200, g4-slice, dgx-spark"),
        (["--fault", "fire"], "no fault fire"),
        (["--time-scale", "0"], "time scale must be above 0"),
        (["--time-scale", "inf"], "time scale must be above 0 and finite"),
        (["--max-num-queued-reqs", "-1"], "must be at least 0"),
        (["--shutdown-timeout", "-1"], "must be at least 0"),
        (["--speculative", "mtp", "--k", "0"], "needs --k of at least 1"),
        (["--speculative", "mtp", "--k", "40"], "k must be 0 to 16"),
        (["--max-model-len", "1000000"], "key/value cache"),
    ],
)
def test_options_that_make_no_sense_are_one_line_and_status_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback: the line says what is wrong."""
    status = main(parsed(*words))

    assert status == 2
    assert complaint in capsys.readouterr().err


def test_a_taken_port_is_told_before_anything_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    """An OSError for the command line, which makes one line and exit code 1 of it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(OSError, match="in use"):
            main(parsed("--port", str(holder.getsockname()[1])))

    assert capsys.readouterr().err == ""


async def test_a_process_serves_and_stops_on_sigterm() -> None:
    """It tells which free port it took and answers there, and SIGTERM amid a stream ends it with the stream cut at the
    time limit."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "--port", "0", "--shutdown-timeout", "0"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stderr is not None
    announcement = await process.stderr.readline()
    url = announcement.split()[-1].decode().removesuffix("/v1")
    assert not url.endswith(":0")
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while not await answers(client):
            pass
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            parts = answer.aiter_raw()
            await anext(parts)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.TransportError):
                await drain(parts)
    _, rest = await process.communicate()

    assert b"simulated vLLM (plain, g4-slice)" in announcement
    assert process.returncode == 0
    assert b"Traceback" not in rest


async def drain(parts: AsyncIterator[bytes]) -> None:
    async for _ in parts:
        pass


async def answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.ConnectError:
        return False
