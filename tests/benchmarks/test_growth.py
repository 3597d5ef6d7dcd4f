"""The growth benchmark measures what it says, on real processes and sockets; no figure of time asserted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen
from xml.etree import ElementTree

import pytest

from gateway.estimate.estimator import Estimator
from gateway.policy.load import parse_policy
from tests.benchmarks import growth, wire
from tests.benchmarks.growth_crowd import Crowd
from tests.benchmarks.growth_fleet import UNLIMITED, Plan, Servers, cost_us, helper, load, servers, turned
from tests.benchmarks.growth_keys import Growing, Templates, keys, timed_us
from tests.benchmarks.growth_serving import ready
from tests.benchmarks.growth_tables import curves, picture, tables
from tests.benchmarks.growth_workers import Loaded, figures, read_wrk, wrk_script
from tests.benchmarks.load import Job
from tests.benchmarks.process import ROOT, Cores, family, free_ports, python_module
from tests.benchmarks.targets import TARGETS, Running
from tests.benchmarks.test_endings import alive, until

ANYWHERE = Cores(frozenset(), frozenset())
QUICK = Plan(True, ANYWHERE, lambda line: None)


class TestFleet:
    @pytest.mark.parametrize("each", [1, 64])
    def test_the_policy_has_two_pools_of_as_many_endpoints(self, each: int) -> None:
        """What is measured is a valid policy with the endpoints asked for and, if so asked, without a limit."""
        urls = tuple(f"http://127.0.0.1:{port}" for port in range(9001, 9129))

        policy = parse_policy(Servers(urls[:64], urls[64:], 0).policy(each, UNLIMITED).encode(), "growth.yaml", {})

        assert {name: len(pool.endpoints) for name, pool in policy.pools.items()} == {"plain": each, "mtp": each}
        assert [pool.limits.in_flight for pool in policy.pools.values()] == [0, 0]

    def test_all_servers_answer_and_know_their_kind(self) -> None:
        """Each of many ports answers; only those of the MTP pool show speculative decoding."""
        with servers(2, frozenset()) as fleet:
            pages = {url: urlopen(f"{url}/metrics").read() for url in (*fleet.plain, *fleet.mtp)}
            port = int(fleet.plain[1].rpartition(":")[2])

            result = load(Job(port, 1, 60.0, 20, warmup_s=0.0, answer_bytes=len(wire.answer_body())), frozenset())

        assert [b"spec_decode" in pages[url] for url in (*fleet.plain, *fleet.mtp)] == [False, False, True, True]
        assert result.completed >= 20
        assert result.errors == {}

    def test_a_helper_ends_with_its_context(self) -> None:
        """A helper that would go on is gone once the context is left by an error."""
        pids = []

        def interrupted() -> None:
            with helper([sys.executable, "-c", "import time; time.sleep(60)"], frozenset()) as process:
                pids.append(process.pid)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not alive(pids[0])

    def test_the_background_is_no_requests_cost(self) -> None:
        """What the process does without requests is taken off; without a request there is no cost."""
        assert cost_us(1.5, 0.5, 1000) == pytest.approx(1000.0)
        assert cost_us(1.5, 0.5, 0) is None

    def test_rounds_begin_elsewhere(self) -> None:
        """Every round has all levels, begun with another one."""
        assert [turned((1, 4, 16), turn) for turn in range(4)] == [[1, 4, 16], [4, 16, 1], [16, 1, 4], [1, 4, 16]]


class TestStreams:
    async def test_a_crowd_is_held_and_read(self) -> None:
        """Streams stay open over several windows, tokens come at their pace, and closing them is no error."""
        with servers(1, frozenset()) as fleet:
            crowd = Crowd(int(fleet.plain[0].rpartition(":")[2]), {}, 20_000, 600.0)

            await crowd.grow(3)
            await crowd.grow(9)
            window = await crowd.listen(2.0)
            await crowd.close()

        assert crowd.errors == {}
        # Every fourth of nine: two or three streams of 100 tokens.
        assert len(window.gaps) > 10
        assert min(window.delays) > 0
        assert window.p99_ms()["delay_p99_ms"] > 0

    async def test_streams_that_break_are_errors(self) -> None:
        """A server that ends while streams are open is counted once a stream, and a port without one as not opened."""
        with servers(1, frozenset()) as fleet:
            port = int(fleet.plain[0].rpartition(":")[2])
            crowd = Crowd(port, {}, 20_000, 600.0)
            await crowd.grow(3)
        await crowd.listen(0.2)
        await crowd.grow(4)

        assert crowd.errors["closed before its time"] == 3
        assert crowd.errors["not opened: ConnectionRefusedError"] == 1

    async def test_a_refusal_is_an_error(self) -> None:
        """Another status than 200 counts by its number."""
        with servers(1, frozenset()) as fleet:
            crowd = Crowd(int(fleet.plain[0].rpartition(":")[2]), {}, 20_000, 600.0)
            crowd.request = wire.RequestBytes((b"GET /nothing HTTP/1.1\r\nhost: a\r\nx-number: ", b"\r\n\r\n"))
            await crowd.grow(2)
            await crowd.close()

        assert crowd.errors == {"status 404": 2}


class TestKeys:
    def test_the_history_fills_and_forgets(self) -> None:
        """Each template brings nine keys of its own; a full history is told with the number of templates seen."""
        growing = Growing(Templates())
        growing.estimator = Estimator(growing.prior, entries=9_000)

        growing.grow(10)
        first = growing.estimator.statistics().entries
        growing.grow(2_000)

        assert first == 10 * 9 + 1
        assert growing.full_at is not None
        assert 950 <= growing.full_at <= 1_100
        assert growing.most_entries <= 9_000

    def test_a_template_is_the_same_each_time(self) -> None:
        """The same number is the same request in another object, and another number has no key in common."""
        templates = Templates()

        first, again, other = templates.request(1), templates.request(1), templates.request(2)

        assert first == again
        assert first.features is not again.features
        assert first.features is not None
        assert other.features is not None
        assert first.features.template_key != other.features.template_key

    def test_measuring_teaches_the_copy_only(self) -> None:
        """What is timed is learned by the copy; the growing estimator and other levels stay as they were."""
        templates = Templates()
        growing = Growing(templates)
        growing.grow(1)

        copied = growing.copied()
        timed_us(copied, [templates.request(number) for number in range(5)])

        assert copied.statistics().entries == 5 * 9 + 1
        assert growing.estimator.statistics().entries == 9 + 1

    def test_a_small_run_has_a_row_a_level(self) -> None:
        """Rows carry both costs, the keys held and the memory."""
        found = keys(QUICK)

        assert [row["templates"] for row in found["rows"]] == [1, 1_000]
        assert all(row["one_us"] > 0 and row["any_us"] > 0 for row in found["rows"])
        assert found["rows"][1]["entries"] == 9_001


class TestWorkers:
    def test_the_script_sends_the_load_generators_request(self) -> None:
        """The script's strings are the parts of the request that the project's own generator sends."""
        script = wrk_script(Running(TARGETS["direct"], 8080, None, {"x-a": 'b"c'}, 0.0))

        whole = wire.post("127.0.0.1", 8080, wire.chat_body(1000), {"x-a": 'b"c'})
        assert _strings(script) == [piece.decode() for piece in whole.pieces]
        assert len(whole.pieces) == 3

    def test_what_wrk_prints_is_read(self) -> None:
        """Refused requests are not completed ones and are told as errors; output without a result is none."""
        text = 'Running\nRESULT {"requests": 100, "us": 2000000, "connect": 0, "read": 1, "write": 0, "status": 7}\n'

        assert read_wrk(text) == (93, 2.0, {"read": 1, "status": 7})
        with pytest.raises(RuntimeError, match="no result"):
            read_wrk("unable to connect")

    def test_shared_cores_limit_the_ratio(self) -> None:
        """With helpers that take a quarter of what the gateway takes, two workers can be 1.6 times one."""
        one = Loaded(1000, 1.0, {}, 0.2, 0.05, (1.0,))
        two = Loaded(1500, 1.0, {"read": 1}, 0.3, 0.075, (0.9, 0.6))

        found = figures({1: [one], 2: [two]}, shared=True)

        assert found["ratio"] == pytest.approx(1.5)
        assert found["ratio_allowed"] == pytest.approx(1.6)
        assert found["rows"][1]["busiest_share"] == pytest.approx(0.6)
        assert found["errors"] == {"read": 1}
        assert figures({1: [one], 2: [two]}, shared=False)["ratio_allowed"] == 2.0


def _strings(script: str) -> list[str]:
    """The strings of the script's first line."""
    line = script.strip().partition("\n")[0]
    strings: list[str] = json.loads("[" + line.removeprefix("local pieces = {").removesuffix("}") + "]")
    return strings


class TestRun:
    def test_parts_add_up_in_one_file_and_one_picture(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A run keeps the parts of its file that it does not measure, draws them all, never mixes quick with full."""
        file, svg = tmp_path / "growth.json", tmp_path / "growth.svg"
        other: dict[str, object] = {
            "rows": [{"endpoints": 1, "cpu_us": 9.0}, {"endpoints": 4, "cpu_us": 9.0}],
            "errors": {},
        }
        other |= {"parameters": {}, "took_s": 1.0, "load_average_before": 0.0}
        file.write_text(json.dumps({"quick": True, "parts": {"endpoints": other}}))

        status = growth.run(["--quick", "--only", "keys", "--json", str(file), "--svg", str(svg)])

        outcome = json.loads(file.read_text())
        root = ElementTree.parse(svg).getroot()
        assert status == 0
        assert list(outcome["parts"]) == ["endpoints", "keys"]
        assert len(root.findall("{*}svg")) == 2
        assert "costs 1.00 times as much" in capsys.readouterr().out
        assert growth.kept(file, quick=False) == {}

    def test_errors_are_told(self) -> None:
        """A part with errors, or one that could not run, is named after the tables."""
        machine = {"cores": 2, "processor": "p", "python": "3"}
        found = {
            "parameters": {},
            "median_s": 1.0,
            "errors": {"status 503": 2},
            "took_s": 1.0,
            "load_average_before": 0.0,
        }
        outcome = {"quick": False, "machine": machine, "versions": {}, "absent": {"workers": "one core"}}

        text = tables({**outcome, "parts": {"start": found}})

        assert "- start: {'status 503': 2}" in text
        assert "- workers: {'one core': 1}" in text
        assert picture(curves({})).startswith("<svg xmlns")

    def test_wrong_usage_is_status_2(self) -> None:
        """A part that does not exist is refused with the list of those that do."""
        command = python_module("tests.benchmarks.growth", "--only", "threads")

        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

        assert done.returncode == 2
        assert "no such part: threads" in done.stderr

    def test_nobody_is_ready_where_nobody_listens(self) -> None:
        """A port without a server is not ready, and no error."""
        assert not ready(free_ports(1)[0])

    def test_a_signal_ends_all_that_was_started(self, tmp_path: Path) -> None:
        """Static servers, gateway and load generator are gone after SIGTERM in the midst of held streams."""
        command = python_module("tests.benchmarks.growth", "--only", "streams", "--quick")
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as run:
            until(lambda: b"streams: 10" in (tmp_path / "log").read_bytes())
            started = family(run.pid)[1:]

            run.send_signal(signal.SIGTERM)

            until(lambda: not any(map(alive, [run.pid, *started])))
            assert (tmp_path / "log").read_text().count("Traceback") == 0
        assert len(started) >= 2
        assert run.returncode == 130
