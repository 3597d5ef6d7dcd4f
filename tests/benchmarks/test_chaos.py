"""The chaos run judges as it says, and its short form loses nothing. Counts are asserted, times are not."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks import chaos
from tests.benchmarks.chaos_account import account
from tests.benchmarks.chaos_answers import Judged, Kind, Received, Verdict, judge
from tests.benchmarks.chaos_backend import Executed
from tests.benchmarks.chaos_clients import Record
from tests.benchmarks.chaos_fleet import BACKENDS
from tests.benchmarks.chaos_schedule import MOST_SICK, Timeline, draw

STREAM = Kind("stream", "hi", 3, stream=True)
WHOLE = Kind("whole", "hi", 3, stream=False)
TEXT = "one two"


def event(delta: Mapping[str, str], finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


OPENING = event({"role": "assistant"})
ONE, TWO = event({"content": "one"}), event({"content": " two"}, "stop")
DONE = b"data: [DONE]\n\n"
ERROR = b'\ndata: {"error": {"code": "connection_lost", "message": "x"}}\n\n'


class TestVerdicts:
    @pytest.mark.parametrize(
        ("body", "whole", "verdict"),
        [
            (OPENING + ONE + TWO + DONE, True, Verdict.OK),
            (OPENING + ONE + ERROR, True, Verdict.TOLD),
            (OPENING + ERROR, True, Verdict.FAILED),
            (OPENING + ONE, False, Verdict.CUT),
            (OPENING + ONE + b"data: {", False, Verdict.CUT),
            (OPENING, False, Verdict.FAILED),
            (OPENING + ONE, True, Verdict.SHORT),
            (OPENING + ONE + DONE, True, Verdict.SHORT),
            (OPENING + ONE + event({}, "stop") + DONE, True, Verdict.SHORT),
            (OPENING + ONE + ONE + TWO + DONE, True, Verdict.GARBLED),
            (OPENING + OPENING + ONE + TWO + DONE, True, Verdict.GARBLED),
            (OPENING + ONE + ONE + ERROR, True, Verdict.GARBLED),
        ],
    )
    def test_streams(self, body: bytes, whole: bool, verdict: Verdict) -> None:
        """Half a stream is told, cut or short, by what its client could know of it."""
        assert judge(STREAM, Received(status=200, body=body, whole=whole), TEXT).verdict is verdict

    @pytest.mark.parametrize(
        ("status", "body", "whole", "verdict"),
        [
            (200, b'{"choices":[{"message":{"content":"one two"}}]}', True, Verdict.OK),
            (200, b'{"choices":[{"message":{"content":"one"}}]}', True, Verdict.SHORT),
            (200, b'{"choices":[{"message":{"content":"one one two"}}]}', True, Verdict.GARBLED),
            (200, b'{"choices":[{"mess', True, Verdict.SHORT),
            (200, b'{"choices":[{"mess', False, Verdict.TOLD),
            (200, b"", False, Verdict.FAILED),
            (503, b'{"error":{"code":"nothing_available","message":"x"}}', True, Verdict.FAILED),
            (500, b'{"error":{"code":500,"type":"InternalServerError","message":"x"}}', True, Verdict.PASSED),
            (500, b'{"error":{"code":"internal_error","type":"internal_error","message":"x"}}', True, Verdict.FAILED),
            (502, b"bad gateway", True, Verdict.FAILED),
            (None, b"", False, Verdict.FAILED),
        ],
    )
    def test_whole_answers_and_errors(self, status: int | None, body: bytes, whole: bool, verdict: Verdict) -> None:
        """A back end's own 500 is passed on; every other failure without a byte of an answer is the gateway's."""
        assert judge(WHOLE, Received(status=status, body=body, whole=whole), TEXT).verdict is verdict


def record(marker: str, verdict: Verdict, started: float = 1.0, ended: float = 2.0) -> Record:
    return Record(marker, "whole", started, ended, Judged(verdict), None)


class TestAccounting:
    def test_a_failure_is_lost_only_where_a_back_end_was_well_all_the_time(self) -> None:
        """A moment without any healthy back end excuses, and nothing else does."""
        timeline = Timeline([[[0.0, 1.5]] for _ in range(BACKENDS - 1)] + [[[1.9, 3.0]]])
        records = [record("a", Verdict.FAILED), record("b", Verdict.FAILED, 1.6, 2.0), record("c", Verdict.FAILED, 3.1)]

        found = account(records, Executed(), timeline, 0.0)

        assert (found.lost, found.excused) == (2, 1)
        assert len(found.notes) == 3

    def test_what_back_ends_finished_twice_is_duplicated(self) -> None:
        """Two whole executions of one request, whatever its client got; one whole one of two is none."""
        executed = Executed({"a": [0, 1], "b": [0, 1]}, {"a": 2, "b": 1})

        found = account([record("a", Verdict.OK), record("b", Verdict.OK)], executed, Timeline(), 0.0)

        assert (found.duplicated, found.failed_over) == (1, 2)


@given(st.integers(0, 10_000))
def test_the_schedule_is_the_seeds_and_spares_half_of_the_back_ends(number: int) -> None:
    """The same for the same seed; never are more than half of the back ends ill at once, nor one twice."""
    events = draw(number, 60.0)
    ill = [(e.at, e.at + e.seconds, e.target) for e in events if isinstance(e.target, int)]

    assert events == draw(number, 60.0)
    for start, _, _ in ill:
        now = [target for begin, end, target in ill if begin <= start < end]
        assert len(now) == len(set(now)) <= MOST_SICK


def test_the_quick_run_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Back ends, Redis and the policy fail and change around three workers: every request has its due."""
    code = chaos.main(["--quick", "--json"])
    result = json.loads(capsys.readouterr().out)

    zeros = ("lost", "duplicated", "truncated_as_whole", "in_flight_at_end", "redis_counters_at_end")
    assert {name: result[name] for name in zeros} == dict.fromkeys(zeros, 0), result["notes"]
    assert (code, result["violations"]) == (0, [])
    assert result["verdicts"]["ok"] > 0
    assert result["verdicts"]["left"] > 0
    assert {"p99_added_ms_one_hung", "rss_growth_mb"} <= result.keys()
