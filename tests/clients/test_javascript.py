"""The npm package `openai` and the AI SDK's openai-compatible provider, each in a process of its own.

Needs `node` and `npm`, which CI installs; the packages, pinned in `js/package-lock.json`, are installed beside it once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import fleet_in_threads

JS = Path(__file__).parent / "js"
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed; CI installs them, so there these tests always run",
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The gateway's address, with the packages in place."""
    if not (JS / "node_modules" / ".package-lock.json").exists():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=JS, check=True, timeout=300)
    with fleet_in_threads() as made:
        yield made


def run(script: str, url: str) -> dict[str, Any]:
    """What the script saw."""
    done = subprocess.run(["node", script, url], cwd=JS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert isinstance(seen, dict)
    return seen


def test_the_openai_package(url: str) -> None:
    """Chat, streams, tools, schemas, responses, embeddings, an upload with the file first, lists, errors."""
    seen = run("openai.mjs", url)

    assert seen["stream"] == seen["chat"] != ""
    assert seen["tool"] == "get_weather"
    assert seen["schema"] == ["label"]
    assert seen["retrieved"] == seen["response"] != ""
    assert seen["events"][-1] == "response.completed"
    assert seen["embedding"] > 1
    assert seen["audio"] == "300000 bytes of sound."
    assert seen["models"] == ["gemma-4-e4b"]
    assert seen["unknown"] == ["NotFoundError", 404, "model_not_found"]
    assert seen["invalid"][:2] == ["BadRequestError", 400]


def test_the_ai_sdk(url: str) -> None:
    """Text, streams, tools, objects, embeddings, and its own error."""
    seen = run("ai.mjs", url)

    assert seen["stream"] == seen["text"] != ""
    assert seen["tokens"] > 0
    assert seen["finish"] == "stop"
    assert seen["tool"] == "get_weather"
    assert seen["object"] == ["label"]
    assert seen["embedding"] > 1
    assert seen["unknown"] == ["AI_APICallError", 404]
