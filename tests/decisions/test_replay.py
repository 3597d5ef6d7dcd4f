"""Past decisions under another policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from gateway.cli import run
from gateway.decisions.command import print_report
from gateway.decisions.replay import replay
from gateway.decisions.row import as_row, keep
from gateway.types import Outcome, Reason
from tests.decisions.past import outcomes, policy

LENGTHS = [4, 400, 8, 600, 800]
ALL_PLAIN = "{objective: static, threshold: 100000}"


def lines(made: Iterable[Outcome]) -> list[bytes]:
    return [orjson.dumps(as_row(keep(outcome, None, at=1e9 + outcome.ended))) for outcome in made]


def test_the_same_policy_decides_the_same() -> None:
    """Nothing flips where nothing changed."""
    report = replay(policy(), lines(outcomes(policy(), LENGTHS)))

    assert (report.rows, report.compared, report.flips) == (5, 5, [])
    assert (report.gain, report.unreadable) == (0.0, 0)


def test_another_policy_flips_what_it_decides_otherwise() -> None:
    """Long answers lose without drafting, and the report names them and says by how much."""
    report = replay(policy(ALL_PLAIN), lines(outcomes(policy(), LENGTHS)))

    assert [flip.request_id for flip in report.flips] == ["r1", "r3", "r4"]
    assert {(flip.before, flip.after) for flip in report.flips} == {("mtp", "plain")}
    assert report.gain < -1.0
    assert report.regret_after > report.regret_before
    told = report.object()
    assert told["flipped"] == 3
    assert told["moves"] == [
        {"model": "m", "from": "mtp", "to": "plain", "requests": 3, "gain": pytest.approx(report.gain)}
    ]


def test_the_way_back_gains_what_the_way_there_lost() -> None:
    """The estimate has the right sign, and both directions agree on its size."""
    there = replay(policy(ALL_PLAIN), lines(outcomes(policy(), LENGTHS)))
    back = replay(policy(), lines(outcomes(policy(ALL_PLAIN), LENGTHS)))

    assert back.gain > 1.0
    assert back.gain == pytest.approx(-there.gain, rel=0.5)


def test_load_is_what_it_was() -> None:
    """Drafting gains less beside many others, and a replay knows how many there were."""
    alone = replay(policy(), lines(outcomes(policy(ALL_PLAIN), [400] * 3)))
    crowded = replay(policy(), lines(outcomes(policy(ALL_PLAIN), [400] * 3, running=200)))

    assert alone.gain > 0
    assert crowded.gain / crowded.seconds < 0.9 * alone.gain / alone.seconds


def test_a_client_that_asked_for_a_pool_still_does() -> None:
    """A hint is part of the request, not of the policy."""
    made = outcomes(policy(), [400])[0]
    rows = [orjson.loads(line) for line in lines([made])]
    rows[0]["decision"].update(pool="plain", reason=Reason.CLIENT.value, detail="plain")

    assert replay(policy(), [orjson.dumps(rows[0])]).flips == []


def test_what_cannot_be_compared_is_counted() -> None:
    """Broken lines, other models and requests that never got to a decision are told apart."""
    row = orjson.loads(lines(outcomes(policy(), [9]))[0])
    other = {**row, "model": "gone", "features": {**row["features"], "model": "gone"}}
    refused = {**row, "decision": None, "features": None, "estimate": None, "pools": []}

    report = replay(policy(), [b'{"at": 1', b"", *map(orjson.dumps, (other, refused, row))])

    assert (report.rows, report.unreadable, report.unknown_model, report.unrouted, report.compared) == (4, 1, 1, 1, 1)


@pytest.mark.parametrize("value", [None, [], {}])
@pytest.mark.parametrize("place", [("model",), ("decision", "pool"), ("features", "input_tokens")])
def test_a_value_of_another_kind_makes_a_line_unreadable(place: tuple[str, ...], value: object) -> None:
    """A line that a tool has spoilt is counted; it neither ends the command nor counts as a request."""
    row = orjson.loads(lines(outcomes(policy(), [9]))[0])
    spoilt = orjson.loads(orjson.dumps(row))
    within = spoilt if len(place) == 1 else spoilt[place[0]]
    within[place[-1]] = value

    report = replay(policy(), map(orjson.dumps, (spoilt, row)))

    assert (report.rows, report.unreadable, report.compared) == (2, 1, 1)


def test_the_command_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`gateway replay --policy FILE DECISIONS.jsonl`."""
    log, other = tmp_path / "decisions.jsonl", tmp_path / "other.yaml"
    log.write_bytes(b"\n".join(lines(outcomes(policy(), LENGTHS))))
    other.write_text(
        "version: 1\npools:\n  plain: {endpoints: ['http://127.0.0.1:1']}\nmodels:\n  m: {pools: [plain]}\n", "utf-8"
    )

    assert run(["replay", "--policy", str(other), str(log)]) == 0
    text = capsys.readouterr().out
    assert run(["replay", "--json", "--policy", str(other), str(log)]) == 0
    told = orjson.loads(capsys.readouterr().out)

    assert "3 of 5 requests would go elsewhere" in text
    assert "the policy has no pool mtp (" in " ".join(text.split())
    assert list(told["missing_pools"]) == ["mtp"]
    assert told["flipped"] == 3
    assert told["reasons"] == {"only_pool": 3}


def test_a_file_without_decisions_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and one line, where a wrong file would else look like a policy that changes nothing."""
    log, other = tmp_path / "notes.txt", tmp_path / "other.yaml"
    log.write_text("hello\n", "utf-8")
    other.write_text(
        "version: 1\npools: {p: {endpoints: ['http://127.0.0.1:1']}}\nmodels: {m: {pools: [p]}}\n", "utf-8"
    )

    assert run(["replay", "--policy", str(other), str(log)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_policy_of_other_models_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, where "0 of 0 would go elsewhere" would let a check pass that has checked nothing."""
    log, other = tmp_path / "decisions.jsonl", tmp_path / "other.yaml"
    log.write_bytes(b"\n".join(lines(outcomes(policy(), LENGTHS))))
    other.write_text(
        "version: 1\npools: {p: {endpoints: ['http://127.0.0.1:1']}}\nmodels: {another: {pools: [p]}}\n", "utf-8"
    )

    assert run(["replay", "--policy", str(other), str(log)]) == 1
    out, err = capsys.readouterr()
    assert "5 for models that the policy does not have" in out
    assert "could be compared" in err


@pytest.mark.parametrize("width", [72, 80, 120])
def test_request_ids_are_never_cut(width: int) -> None:
    """Ids of one process differ in their last digits only: without these, no request of the table can be found."""
    ids = [f"gw-81de8f3e66fba378-{number:04x}" for number in range(5)]
    made = [replace(outcome, request_id=name) for outcome, name in zip(outcomes(policy(), LENGTHS), ids, strict=True)]
    told = Console(file=StringIO(), width=width)

    print_report(replay(policy(ALL_PLAIN), lines(made)), told)

    assert isinstance(told.file, StringIO)
    text = told.file.getvalue()
    assert all(name in text for name in (ids[1], ids[3], ids[4]))
    assert max(map(len, text.splitlines())) <= width
