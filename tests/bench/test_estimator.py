"""`gateway bench estimator` from the command line, on invented rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gateway.cli import run
from tests.estimate.synthetic import records

ROW = json.dumps(
    {"source": "s", "group": "g", "task": "math", "messages": [{"role": "user", "content": "1+1"}], "output_tokens": 2}
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = records(240, seed=5)
    for row in rows:
        tokens = row["output_tokens"]
        row["alt_output_tokens"] = {"like it": tokens, "unlike it": 1 if tokens > 64 else 900}
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    (tmp_path / "traces").mkdir()
    lines = ["t_s,input_tokens,output_tokens"] + [f"{i},{100 + i % 2},{3 if i % 2 else 400}" for i in range(60)]
    (tmp_path / "traces" / "invented.csv").write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_prints_every_promised_figure(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the report is one object with the keys that the contract names, and learning shows in it."""
    code = run(["bench", "estimator", "--data", str(data), "--json", "--quick"])
    report = json.loads(capsys.readouterr().out)

    assert code == 0
    assert {"tau", "acc16", "acc64"} <= report["cold"].keys() & report["warm"].keys()
    assert {"tau", "acc64"} <= report["grouped"].keys()
    assert {"cold", "warm"} == report["regret"].keys() == report["regret_other_model"].keys()
    assert {"2kb", "128kb"} == report["cost_ms"].keys()
    assert {"classification", "long_form"} <= report["p90_coverage"].keys()
    assert "acc16" in report["new_template"]
    assert {"acc64", "best_model_acc64", "other_model_acc64"} <= report["japanese_open"].keys()
    assert report["warm"]["other_model_acc64"] == 0.5, "one of the other models is always right, one never"
    assert report["grouped"]["acc64"] > 0.95
    assert report["traces"]["invented"]["acc64"] > 0.6


def test_prints_a_table_and_points(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json it is Markdown; --points writes one line a judged row, --svg draws the rows cold and warm."""
    points, picture = tmp_path / "points.csv", tmp_path / "picture.svg"
    code = run(["bench", "estimator", "--data", str(data), "--quick", "--points", str(points), "--svg", str(picture)])
    out = capsys.readouterr().out

    assert code == 0
    assert "| warm.acc64 |" in out
    assert points.read_text().splitlines()[0] == "protocol,task,predicted_p50,predicted_p90,actual"
    assert "cold (60 rows)" in picture.read_text()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "at least two sources"),
        ("not json\n", "line 1: "),
        (f"{ROW}\n{{}}\n", "line 2: there is no 'messages'"),
        (f"{ROW}\n[]\n", "line 2: a value of the wrong kind"),
        (ROW.replace("math", "maths") + "\n", "line 1: 'maths' is not a valid Task"),
    ],
)
def test_says_what_is_wrong_with_the_data(
    tmp_path: Path, content: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file without usable rows is one line on stderr, with the row that is wrong, and exit code 1; no traceback."""
    path = tmp_path / "bad.jsonl"
    path.write_text(content)

    assert run(["bench", "estimator", "--data", str(path), "--json"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"{path}: " in err
    assert told in err


def test_data_that_are_not_there_are_missed_before_numpy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who mistyped a name is not sent to install something."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert run(["bench", "estimator", "--data", "/nowhere/rows.jsonl"]) == 1
    assert "/nowhere/rows.jsonl" in capsys.readouterr().err
