"""`llm`, a command line: a process of its own, configured by a file as its users do it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.fleet import MODEL, fleet_in_threads


@pytest.mark.parametrize("options", [(), ("--schema", "label, sure bool", "--no-stream")])
def test_it_prints_an_answer(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Streamed, and whole with a schema."""
    with fleet_in_threads() as url:
        entry = f"model_id: mine, model_name: {MODEL}, api_base: '{url}/v1', api_key_name: mine, supports_schema: true"
        (tmp_path / "extra-openai-models.yaml").write_text(f"- {{{entry}}}\n")
        done = subprocess.run(
            [sys.executable, "-m", "llm", "-m", "mine", "--no-log", "--key", "none", *options, "Is water wet?"],
            env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
        )

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 1
