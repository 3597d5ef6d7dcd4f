"""The benchmark harness measures what it says: small runs on real processes, no figure of time asserted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks import memory, overhead, wire
from tests.benchmarks.load import Job, Result
from tests.benchmarks.peers import PEERS
from tests.benchmarks.process import Child, Cores, StartFailed, cpu_seconds, family, python_module, rss_bytes
from tests.benchmarks.stats import percentile, slope
from tests.benchmarks.targets import TARGETS, policy, running, upstream

ANYWHERE = Cores(frozenset(), frozenset())


class TestFigures:
    def test_percentiles_lie_between_neighbours(self) -> None:
        """A percentile is interpolated between the two samples that it lies between."""
        assert percentile([10.0, 20.0, 30.0, 40.0], 0.5) == 25.0
        assert percentile([10.0, 20.0, 30.0, 40.0], 1.0) == 40.0
        assert percentile([10.0], 0.99) == 10.0
        assert percentile([], 0.5) == 0.0

    @given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 1))
    def test_percentiles_stay_within_the_samples(self, values: list[float], share: float) -> None:
        """No percentile lies outside its samples, up to the rounding of floats."""
        ordered = sorted(values)

        found = percentile(ordered, share)

        assert ordered[0] * (1 - 1e-9) <= found <= ordered[-1] * (1 + 1e-9)

    def test_the_slope_is_the_lines_own(self) -> None:
        """Points on a line give its rise per unit; one point gives none."""
        assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
        assert slope([(1.0, 1.0)]) == 0.0


class TestAccounting:
    def test_a_busy_child_and_its_child_are_counted(self, tmp_path: Path) -> None:
        """CPU time of a grandchild counts for the tree whose root did nothing."""
        burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True); time.sleep(60)"
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"

        with Child([sys.executable, "-c", parent], tmp_path / "log") as child:
            child.wait_until(lambda: "burnt" in child.output(), 60)
            tree = family(child.pid)

            assert len(tree) == 2
            assert cpu_seconds(tree) >= 0.28
            assert rss_bytes(tree) > rss_bytes([child.pid]) > 0

    def test_a_program_that_ends_at_once_is_named_with_its_output(self, tmp_path: Path) -> None:
        """A target that cannot start says why instead of running into the patience."""
        with (
            Child([sys.executable, "-c", "print('no such policy'); raise SystemExit(3)"], tmp_path / "log") as child,
            pytest.raises(StartFailed, match=r"status 3\n.*no such policy"),
        ):
            child.wait_until(lambda: False, 60)


class TestWire:
    @pytest.mark.parametrize("size", [1_000, 30_000, 100_000])
    def test_a_body_has_the_size_asked_for(self, size: int) -> None:
        """A request's body is valid JSON of exactly the size of its cell, with a number of its own."""
        body = wire.chat_body(size, wire.StreamShape(5, 100))

        request = b"".join(wire.post("127.0.0.1", 1, body, {}).parts(7))

        sent = request.partition(b"\r\n\r\n")[2]
        assert len(sent) == size
        assert json.loads(sent)["stream"] is True
        assert sent.count(b"0000000000000007") == 2

    def test_the_metrics_page_tells_the_pools_apart(self) -> None:
        """Only the MTP port shows speculative decoding counters."""
        assert b"vllm:spec_decode_num_drafts_total" in wire.metrics_page(3, 1, True)
        assert b"spec_decode" not in wire.metrics_page(3, 1, False)


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[int]:
    """A server on a free port that gives every request head the same bytes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def loaded(job: Job) -> Result:
    return await asyncio.to_thread(lambda: overhead.finish_load(overhead.start_load(job, ANYWHERE)))


def response(status: str, body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class TestLoad:
    async def test_whole_answers_are_counted(self) -> None:
        """Good answers are completed requests without errors, and the asked number ends the run."""
        body = wire.answer_body()
        async with raw_server(response("200 OK", body)) as port:
            result = await loaded(Job(port, 2, 60.0, requests=20, warmup_s=0.0, answer_bytes=len(body)))

        assert result.completed >= 20
        assert result.errors == {}
        assert 0 < result.latency_p50 <= result.latency_p99 <= result.latency_max

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (response("500 Internal Server Error", b"{}"), "status 500"),
            (response("200 OK", b"{}"), f"body of 2 bytes instead of {len(wire.answer_body())}"),
            (response("200 OK", b"x" * len(wire.answer_body())), "not the upstream's answer"),
        ],
    )
    async def test_a_wrong_answer_is_an_error(self, answer: bytes, error: str) -> None:
        """A status, a length or a text that is not the upstream's is counted by kind and completes nothing."""
        async with raw_server(answer) as port:
            result = await loaded(Job(port, 1, 1.0, warmup_s=0.0, answer_bytes=len(wire.answer_body())))

        assert result.completed == 0
        assert set(result.errors) == {error}

    async def test_a_stream_that_loses_tokens_is_an_error(self) -> None:
        """A stream with fewer tokens than asked for is an error, though it ends properly."""
        events = wire.token_event(10**9, 10**9, b"") + wire.closing_events(1, False)
        async with raw_server(response("200 OK", events, "text/event-stream")) as port:
            result = await loaded(Job(port, 1, 1.0, warmup_s=0.0, stream={"tokens": 2, "interval_us": 1000}))

        assert set(result.errors) == {"1 of 2 tokens"}


class TestOverhead:
    def test_a_small_run_has_every_key(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """The JSON object has the public keys for each target, and a peer that is missing is named as absent."""
        cells = "1KB/1,1KB/32,100KB/8,streams/1"
        arguments = (
            f"--json --targets prototype,litellm --cells {cells} --rounds 1 --seconds 0.2 --peers-dir {tmp_path}"
        )

        status = overhead.main(arguments.split())

        outcome = json.loads(capsys.readouterr().out)
        assert status == 0
        assert outcome["errors"] == {}
        assert outcome["absent"] == {"litellm": "not installed"}
        for name in ("direct", "prototype"):
            assert {"rps", "cpu_s_per_1000", "p50_added_ms", "p99_added_ms", "rss_growth_mb"} <= outcome[name].keys()
            assert outcome[name]["rps"] > 0
            assert set(outcome[name]["cells"]) == set(cells.split(","))
        assert outcome["direct"]["p50_added_ms"] == 0
        assert outcome["prototype"]["cells"]["streams/1"]["rate_share"] > 0
        assert outcome["prototype"]["cells"]["100KB/8"]["probe_max_ms"] is not None
        assert outcome["load_limit"]["1KB/32"] == outcome["direct"]["rps"]
        assert outcome["ratio"] == {}

    def test_the_policy_has_two_pools(self) -> None:
        """The gateway is measured with a plain and an MTP pool and nothing else set."""
        text = policy(("http://127.0.0.1:1", "http://127.0.0.1:2"))

        assert text.count("endpoints") == 2
        assert "method: mtp" in text

    def test_every_peer_is_a_target(self) -> None:
        """A target names a peer that can be installed, and no peer is left out."""
        assert {target.peer for target in TARGETS.values() if target.peer} == set(PEERS)

    def test_wrong_usage_is_status_2(self) -> None:
        """A target that does not exist is refused with the list of those that do."""
        done = subprocess.run(
            python_module("tests.benchmarks.overhead", "--targets", "nginx"), capture_output=True, text=True
        )

        assert done.returncode == 2
        assert "no such target: nginx" in done.stderr


class TestMemory:
    def test_a_long_stream_arrives_whole_and_is_sampled(self, tmp_path: Path) -> None:
        """The long stream is read to its end mark while the target's memory is noted."""
        with (
            upstream(frozenset()) as upstreams,
            running(TARGETS["prototype"], upstreams, tmp_path) as target,
        ):
            outcome = memory.long_stream(target, 2, None)

        assert outcome["whole"] is True
        assert outcome["received_mb"] >= 2
        assert outcome["rss_peak_mb"] >= outcome["rss_start_mb"] > 0
