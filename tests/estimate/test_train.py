"""Training: the same bytes for the same data and seed, and a model that has learned from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.estimate.boost import Settings
from gateway.estimate.estimator import Estimator
from gateway.estimate.model import Prior
from gateway.estimate.train import main, read_rows, train
from tests.estimate.synthetic import ENGLISH, JAPANESE, ask, records

SMALL = Settings(trees=12, depth=3, rate=0.5)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in records(160, seed=3)), "utf-8")
    return path


def test_is_deterministic(data: Path) -> None:
    """Two trainings with one seed give the same file; another seed gives another."""
    rows = read_rows(data)

    assert train(rows, seed=1, settings=SMALL) == train(rows, seed=1, settings=SMALL)
    assert train(rows, seed=1, settings=SMALL) != train(rows, seed=2, settings=SMALL)


def test_learns_what_the_data_say(data: Path) -> None:
    """A model trained on invented templates puts each on its side, in English and Japanese."""
    estimator = Estimator(Prior(json.loads(train(read_rows(data), settings=Settings(trees=40, depth=4, rate=0.3)))))
    sides = [[estimator.estimate(ask(f"{t}\nnewt 3")).p50 > 64 for t in pair] for pair in (ENGLISH, JAPANESE)]

    assert sides == [[False, True], [False, True]]


def test_holds_nothing_of_the_texts(data: Path) -> None:
    """The model file has numbers and the names of tasks, nothing of the prompts."""
    model = train(read_rows(data), settings=SMALL).decode()

    assert "heron" not in model
    assert "動物" not in json.dumps(json.loads(model), ensure_ascii=False)


def test_writes_the_file(data: Path, tmp_path: Path) -> None:
    """The command writes a model that loads."""
    out = tmp_path / "model.json"

    assert main(["--data", str(data), "--out", str(out), "--seed", "4"]) == 0
    assert json.loads(out.read_bytes())["seed"] == 4
    Prior(json.loads(out.read_bytes()))
