"""`gateway top` against a live gateway, and its arithmetic."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import re
import signal
import sys

import pytest
from rich.console import Console

from gateway.cli import run
from gateway.terminal import crossing
from gateway.top import screen, snapshots
from tests.answers import reply
from tests.gateways import gateway, one_pool, two_pools
from tests.raw_client import ask, chat
from tests.stub import Stub
from tests.ui.held import two_held

ANSWER = reply({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
KINDS = {"a": "plain", "b": "mtp"}


async def top(*words: str) -> int:
    return await asyncio.to_thread(run, ["top", *words])


async def test_it_prints_the_state_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Pools, where tasks went, break-even and the last decisions, as plain text."""
    async with Stub(ANSWER) as stub, gateway(two_pools(stub.url, stub.url)) as running:
        await ask(running.url, chat("Is this review positive or negative? One word: zebras are fine."))
        assert await top("--url", running.url) == 0

    text = capsys.readouterr().out
    assert "classification" in text
    assert "m: MTP pays from about" in text
    assert "1/1" in text
    assert "\x1b" not in text
    assert "zebras" not in text


async def test_an_empty_gateway_is_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    """No traffic is a state like others."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running:
        assert await top("--url", running.url, "--once") == 0

    assert "no requests in the last five minutes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"), [((), "--key KEY"), (("--key", "wrong"), "is wrong"), (("--key", "鍵"), "is wrong")]
)
async def test_a_missing_key_is_asked_for(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear line and exit code 1."""
    policy = one_pool("http://127.0.0.1:1") + "access: {operator_key: {env: OPS}}\n"
    async with gateway(policy, {"OPS": "sesame"}) as running:
        assert await top("--url", running.url, *words) == 1
        error = capsys.readouterr().err
        assert await top("--url", running.url, "--key", "sesame") == 0

    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[bad", "notaurl", "http://127.0.0.1:1/\x00"])
def test_an_address_that_is_none_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing mistake is told as such, without a traceback."""
    assert run(["top", "--once", "--url", url]) == 1

    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot be reached" in err


async def test_an_address_below_the_gateways_own_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A base URL with a path too many: the line holds the address that was asked, so that it can be corrected."""
    async with gateway(one_pool("http://127.0.0.1:1")) as running:
        assert await top("--url", running.url + "/gateway", "--once") == 1

    assert capsys.readouterr().err == f"gateway: {running.url}/gateway/gateway/events answers 404: Not Found\n"


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for a wrong port."""
    assert run(["top", "--url", "http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("width", [80, 100, 120])
async def test_a_narrow_terminal_keeps_when_and_how_it_ended(width: int) -> None:
    """Each decision stays one line with its time, task, pool and end; reasons and expected times give way."""
    async with Stub(ANSWER) as stub, gateway(two_pools(stub.url, stub.url)) as running:
        await ask(running.url, chat("Is this review positive or negative? One word: zebras are fine."))
        text = await shown_at(running.url, width)
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.lstrip().startswith("time "))

    assert re.match(r" *\d\d:\d\d:\d\d   classification +\d+ \(\d+\)   (plain|mtp) .* ok *$", lines[at + 2])
    assert all(name in text for name in ("up", "running", "waiting", "accepted", "gain"))


@pytest.mark.parametrize("width", [80, 100, 160])
async def test_streams_held_for_their_engine_have_a_column_while_there_are_any(width: int) -> None:
    """They run, wait in no queue, and without the column would look like a slow engine."""
    async with two_held() as held:
        busy = await shown_at(held.running.url, width)
        await held.end()
        quiet = await shown_at(held.running.url, width)

    assert re.search(r"running +waiting +held +k ", busy)
    assert re.search(r"plain +plain +1/1 +3/256 +0 +2 ", busy)
    assert "held" not in quiet
    assert re.search(r"plain +plain +1/1 +0/256 +0 ", quiet)


async def shown_at(url: str, width: int) -> str:
    """The screen as text, which no line may leave at the right."""
    snapshot = await asyncio.to_thread(lambda: next(snapshots(url, None)))
    text = io.StringIO()
    Console(file=text, width=width).print(screen(snapshot, 5, width))
    assert max(map(len, text.getvalue().splitlines())) <= width
    return text.getvalue()


async def test_in_a_terminal_it_follows_until_interrupted() -> None:
    """On a terminal the screen is drawn anew with each event; ctrl-c ends it with 0."""
    async with Stub(ANSWER) as stub, gateway(two_pools(stub.url, stub.url)) as running:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "top", "--url", running.url),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=interruptible,
        )
        os.close(theirs)
        text = b""
        while text.count(b"requests/s") < 2:
            text += await asyncio.wait_for(asyncio.to_thread(os.read, ours, 65536), 60)
        process.send_signal(signal.SIGINT)
        # Its last words must be read, or it waits for ever to say them.
        with contextlib.suppress(OSError):
            while True:
                await asyncio.wait_for(asyncio.to_thread(os.read, ours, 65536), 60)
        os.close(ours)
        assert await asyncio.wait_for(process.wait(), 60) == 0


def interruptible() -> None:
    """Where the suite runs in the background of a shell, SIGINT is ignored, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("plain", "mtp", "told"),
    [
        ([1.0, 2.0, 4.0], [2.0, 2.0, 2.0], "MTP pays from about 2 tokens"),
        ([1.0, 3.0, 4.0], [1.0, 2.0, 2.0], "MTP pays from about 1 token"),
        ([1.0, 1.0, 4.0], [2.0, 2.0, 2.0], "MTP pays from about 3 tokens"),
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], "MTP does not pay at this load"),
        ([3.0, 3.0, 3.0], [2.0, 2.0, 2.0], "MTP is faster at every length"),
        ([3.0, 3.0, 3.0], None, "one kind of pool only"),
    ],
)
def test_break_even_in_words(plain: list[float], mtp: list[float] | None, told: str) -> None:
    """The point between two lengths is found on logarithmic axes, as the page draws them."""
    model = {"lengths": [1, 2, 4], "seconds": {"chat": {"a": plain, "b": mtp}}}

    assert crossing(model, KINDS) == told
