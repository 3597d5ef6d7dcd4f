"""`gateway explain` as a command: what it adds to the public explanation."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gateway import explain
from gateway.request.exact_tokens import TokenCounter

POLICY = Path(__file__).parents[1] / "policies" / "default.yaml"
TEXTS = ("Answer in one word.", "この文章を三行で要約してください。", "Привет, мир! 🙂")


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "system", "content": TEXTS[0]}, *({"role": "user", "content": t} for t in TEXTS[1:])]},
        {"input": "\n".join(TEXTS)},
        {"prompt": "\n".join(TEXTS)},
    ],
    ids=["chat", "responses", "completions"],
)
def test_it_counts_the_prompts_tokens_exactly(
    body: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TOKEN-06: beside the estimate stands what tiktoken counts, so that an operator sees how far it is off."""
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"model": "e4b", **body}), "utf-8")

    assert explain.main(argparse.Namespace(policy=str(POLICY), request=str(file), json=True)) == 0
    features = json.loads(capsys.readouterr().out)["features"]

    assert features["o200k_tokens"] == TokenCounter.load().count("\n".join(TEXTS))
    assert features["o200k_tokens"] == pytest.approx(features["input_tokens"], rel=0.6)
