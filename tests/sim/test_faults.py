"""Every fault switch, as a client sees it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import httpx
import orjson
import pytest

from gateway.sim.faults import HEALTHY, Faults, FaultSwitch
from tests.sim.helpers import FAST, FAST_MTP, Server, say, sim

CHAT = "/v1/chat/completions"
IMPATIENT = httpx.Timeout(60, read=0.3)
"""Waits for nothing but an answer."""


async def raw_stream(server: Server, chunks_wanted: int | None = None) -> bytes:
    """What arrives of a stream before it breaks, or before `chunks_wanted` events are there."""
    got = b""
    body = say("Explain.", stream=True, max_tokens=30, ignore_eos=True)
    async with server.client.stream("POST", CHAT, json=body) as answer:
        assert answer.status_code == 200
        try:
            async for part in answer.aiter_raw():
                got += part
                if chunks_wanted is not None and got.count(b"\n\n") >= chunks_wanted:
                    break
        except httpx.TransportError:
            return got + b"<cut>"
    return got


@pytest.mark.parametrize("reset", [False, True])
async def test_a_cut_stream_stops_after_its_chunks(reset: bool) -> None:
    """After three chunks the connection is gone without an end, by close or by reset, and the request is aborted."""
    async with sim(replace(FAST, faults=Faults(cut=3, cut_reset=reset))) as server:
        got = await raw_stream(server)
        stats = await server.stats()

    assert got.endswith(b"<cut>")
    assert b"[DONE]" not in got
    assert got.count(b"data: ") <= 3
    assert (stats["running"], stats["waiting"]) == (0, 0)


async def test_a_cut_whole_answer_is_shorter_than_it_said() -> None:
    """A whole answer breaks off before its content length."""
    async with sim(replace(FAST, faults=Faults(cut=0))) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await server.post(CHAT, say("Hi", max_tokens=3))


async def test_a_status_strikes_by_rate_and_times() -> None:
    """`status` answers errors in vLLM's form; `times` ends it."""
    async with sim(replace(FAST, faults=Faults(status=503, times=2))) as server:
        statuses = [(await server.post(CHAT, say("Hi", max_tokens=1))).status_code for _ in range(4)]
        await server.faults(status=500)
        error = (await server.post(CHAT, say("Hi"))).json()["error"]

    assert statuses == [503, 503, 200, 200]
    assert (error["code"], error["type"]) == (500, "InternalServerError")


async def test_a_hanging_server_sends_nothing() -> None:
    """No headers, no error; the client's own time limit ends it, and the server notices that it left."""
    async with sim(replace(FAST, faults=Faults(hang=True))) as server:
        with pytest.raises(httpx.ReadTimeout):
            await server.client.post(CHAT, json=say("Hi"), timeout=IMPATIENT)
        while (await server.stats())["open"]:
            pass

        assert (await server.stats())["clients_gone"] == 1


async def test_a_frozen_engine_looks_healthy() -> None:
    """HEALTH-01: health and models are 200 and stream headers arrive, but no token does; thawed, it goes on."""
    async with sim() as server:
        await server.faults(freeze=True)
        assert (await server.client.get("/health")).status_code == 200
        assert (await server.client.get("/v1/models")).status_code == 200
        body = say("Hi", stream=True, max_tokens=2)
        async with server.client.stream("POST", CHAT, json=body) as answer:
            assert answer.status_code == 200
            parts = answer.aiter_raw()
            first = asyncio.ensure_future(anext(parts))
            done, _ = await asyncio.wait([first], timeout=0.1)
            assert not done
            await server.faults()
            text = await first + b"".join([part async for part in parts])

    assert text.endswith(b"data: [DONE]\n\n")


async def test_a_server_that_is_loading_says_so() -> None:
    """HEALTH-03: health is 503 while completions would work."""
    async with sim() as server:
        await server.faults(health_down=True, metrics_down=True)
        statuses = [(await server.client.get(path)).status_code for path in ("/health", "/ping", "/metrics")]
        await server.faults()

        assert statuses == [503, 503, 500]
        assert (await server.client.get("/health")).status_code == 200


async def test_a_stalled_stream_falls_silent_with_the_connection_open() -> None:
    """After two chunks nothing more comes, and no end either."""
    async with sim(replace(FAST, faults=Faults(stall=2))) as server:
        body = say("Explain.", stream=True, max_tokens=30, ignore_eos=True)
        with pytest.raises(httpx.ReadTimeout):
            await server.client.post(CHAT, json=body, timeout=IMPATIENT)


async def test_an_error_can_come_first_in_a_stream() -> None:
    """Status 200, then one error event and [DONE]."""
    async with sim(replace(FAST, faults=Faults(error_first=True))) as server:
        events = await server.events(say("Hi", stream=True))

    assert set(events[0]["error"]) == {"message", "type", "param", "code"}
    assert events[1:] == ["[DONE]"]


async def test_json_can_be_broken() -> None:
    """A whole answer does not parse, and neither does one event of a stream, which otherwise goes on to its end."""
    async with sim(replace(FAST, faults=Faults(wrong_json=True))) as server:
        whole = await server.post(CHAT, say("Hi", max_tokens=3))
        stream = await server.post(CHAT, say("Explain.", stream=True, max_tokens=9, ignore_eos=True))

    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(whole.content)
    events = [part.removeprefix("data: ") for part in stream.text.split("\n\n") if part]
    assert [index for index, text in enumerate(events[:-1]) if not parses(text)] == [1]


def parses(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


async def test_a_slow_first_token_keeps_the_headers_fast() -> None:
    """The status is there at once; the first event is held back, longer than a client waits here."""
    async with sim(replace(FAST, faults=Faults(slow_first_token=30))) as server:
        body = say("Hi", stream=True)
        async with server.client.stream("POST", CHAT, json=body) as answer:
            assert answer.status_code == 200
            first = asyncio.ensure_future(anext(answer.aiter_raw()))
            done, _ = await asyncio.wait([first], timeout=0.3)
            assert not done
            first.cancel()
            await asyncio.wait([first])


async def test_acceptance_can_collapse_at_run_time() -> None:
    """With drift the counters show a drafter that hardly ever hits."""
    async with sim(FAST_MTP) as server:
        await server.faults(drift=0.2)
        await server.chat("Write code.", max_tokens=400, ignore_eos=True)
        samples = await server.metrics()

    accepted = samples["vllm:spec_decode_num_accepted_tokens_total"][()]
    assert accepted / samples["vllm:spec_decode_num_draft_tokens_total"][()] < 0.25


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"explode": True}, "no fault explode; there are: hang"),
        ({"hang": "perhaps"}, "hang is on or off"),
        ({"status": 200}, "400 to 599"),
        ({"cut": -1}, "cut takes a whole number"),
        ({"cut": 1.5}, "cut takes a whole number"),
        ({"drift": "x"}, "drift takes a number"),
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused(faults: dict[str, Any], words: str) -> None:
    """The error says what the switch takes, and nothing changes."""
    async with sim() as server:
        answer = await server.post("/sim/faults", faults)
        current = (await server.client.get("/sim/faults")).json()

    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert current == HEALTHY.as_dict()


def test_the_command_line_form_is_text() -> None:
    """`hang`, `status=503`, `rate=0.3` parse to the same switches as JSON."""
    assert Faults.parse({"hang": "", "status": "503", "rate": "0.3"}) == Faults(hang=True, status=503, rate=0.3)


def test_a_rate_strikes_its_share() -> None:
    """At a rate of 0.3 about three requests in ten are struck."""
    switch = FaultSwitch(Faults(status=500, rate=0.3), Random(1))
    struck = sum(switch.draw() is not HEALTHY for _ in range(2000))

    assert struck / 2000 == pytest.approx(0.3, abs=0.04)
