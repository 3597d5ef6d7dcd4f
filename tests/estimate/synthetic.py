"""Invented traffic for the learned estimator's tests: templates in English and Japanese with known answer lengths."""

from __future__ import annotations

import json
import random
from typing import Any

from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.types import Api, Features, Outcome, Result, Usage

ENGLISH = ("Sort this garden note into soil, water or light.", "Tell the bedtime tale of this animal:")
JAPANESE = ("次の植物メモを土・水・光のいずれかに仕分けてください。", "この動物の寝る前のお話を聞かせてください：")
SUBJECTS = ("heron", "badger", "otter", "lynx", "marten", "stoat", "curlew", "dunnock", "きつね", "たぬき", "ふくろう")


def ask(text: str, *, system: str = "", model: str = "m", **params: Any) -> Features:
    """The features of a chat request with one user turn."""
    messages = [{"role": "system", "content": system}] if system else []
    body = {"model": model, "messages": [*messages, {"role": "user", "content": text}], **params}
    return extract(parse_body(json.dumps(body).encode()), Api.CHAT)


def ended(
    features: Features, tokens: int, *, result: Result = Result.OK, finish_reason: str | None = "stop"
) -> Outcome:
    """How such a request ended."""
    return Outcome(
        request_id="r",
        result=result,
        status=200,
        started=0.0,
        ended=1.0,
        features=features,
        usage=Usage(prompt_tokens=features.input_tokens, completion_tokens=tokens),
        finish_reason=finish_reason,
    )


def records(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows in the form of the training data: short answers to the first templates, long ones to the second."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for i in range(count):
        language, templates = ("en", ENGLISH) if i % 2 else ("ja", JAPANESE)
        long = rng.random() < 0.5
        text = f"{templates[long]}\n{rng.choice(SUBJECTS)} {rng.randrange(100)}"
        rows.append(
            {
                "id": f"made-{i}",
                "source": f"made-{i // 8 % 4}",
                "group": f"g{i}",
                "lang": language,
                "task": "long_form" if long else "classification",
                "messages": [{"role": "user", "content": text}],
                "params": {},
                "output_tokens": rng.randrange(300, 900) if long else rng.randrange(1, 4),
                "output_kind": "model",
            }
        )
    return rows
