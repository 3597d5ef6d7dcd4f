"""Routes of pooling models and of speech models: vLLM's forms, with figures that depend on nothing but the texts.

Nothing here costs simulated time. A real server has these routes only where its model has the task; this one has all.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from gateway.sim.errors import invalid
from gateway.sim.tokens import pieces

Json = dict[str, Any]
DIMENSIONS = 16
_PART = re.compile(rb'name="([^"\r\n]+)"(?:; filename="[^"\r\n]*")?(?:\r\n[^\r\n]+)*\r\n\r\n(.*)\Z', re.DOTALL)


def vector(text: str) -> list[float]:
    """A unit vector for a text."""
    digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=2 * DIMENSIONS).digest()
    numbers = [value - 32767.5 for value in struct.unpack(f"<{DIMENSIONS}H", digest)]
    length = sum(value * value for value in numbers) ** 0.5
    return [value / length for value in numbers]


def similarity(one: str, other: str) -> float:
    """0 to 1; 1 for equal texts."""
    return (1 + sum(a * b for a, b in zip(vector(one), vector(other), strict=True))) / 2


def texts_of(value: object, name: str) -> list[str]:
    """One or more texts, or lists of token ids. Raises ApiError."""
    items = value if isinstance(value, list) and not all(isinstance(item, int) for item in value) else [value]
    if value is None or value == []:
        raise invalid(f"`{name}` is required.", param=name)
    return [item if isinstance(item, str) else repr(item) for item in items]


def _frame(prefix: str, model: str, data: list[Json], texts: list[str]) -> Json:
    tokens = sum(len(pieces(text)) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": "list",
        "created": 0,
        "model": model,
        "data": data,
        "usage": usage,
    }


def embeddings(body: Mapping[str, Any], model: str) -> Json:
    texts = texts_of(body.get("input"), "input")

    def written(text: str) -> object:
        numbers = vector(text)
        if body.get("encoding_format") == "base64":
            return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *numbers)).decode()
        return numbers

    data = [{"index": i, "object": "embedding", "embedding": written(text)} for i, text in enumerate(texts)]
    return _frame("embd", model, data, texts)


def pooling(body: Mapping[str, Any], model: str) -> Json:
    texts = texts_of(body.get("input"), "input")
    data = [{"index": i, "object": "pooling", "data": vector(text)} for i, text in enumerate(texts)]
    return _frame("pool", model, data, texts)


def classify(body: Mapping[str, Any], model: str) -> Json:
    texts = texts_of(body.get("input"), "input")
    shares = [similarity(text, "positive") for text in texts]
    data = [
        {"index": i, "label": "LABEL_1" if share >= 0.5 else "LABEL_0", "probs": [1 - share, share], "num_classes": 2}
        for i, share in enumerate(shares)
    ]
    return _frame("classify", model, data, texts)


def score(body: Mapping[str, Any], model: str) -> Json:
    queries = texts_of(body.get("queries", body.get("text_1")), "queries")
    documents = texts_of(body.get("documents", body.get("text_2")), "documents")
    pairs = [(queries[0] if len(queries) == 1 else queries[i], text) for i, text in enumerate(documents)]
    data = [{"index": i, "object": "score", "score": similarity(*pair)} for i, pair in enumerate(pairs)]
    return _frame("score", model, data, [*queries, *documents])


def rerank(body: Mapping[str, Any], model: str) -> Json:
    query = texts_of(body.get("query"), "query")[0]
    documents = texts_of(body.get("documents"), "documents")
    rows = [
        {"index": i, "document": {"text": text}, "relevance_score": similarity(query, text)}
        for i, text in enumerate(documents)
    ]
    rows.sort(key=lambda row: -float(str(row["relevance_score"])))
    top = body.get("top_n") or len(rows)
    tokens = sum(len(pieces(text)) for text in [query, *documents])
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": model,
        "usage": {"total_tokens": tokens},
        "results": rows[: int(top)],
    }


def embed_v2(body: Mapping[str, Any], model: str) -> Json:
    """Cohere's form."""
    texts = texts_of(body.get("texts"), "texts")
    return {"id": uuid.uuid4().hex, "embeddings": {"float": [vector(text) for text in texts]}, "texts": texts}


ROUTES: Mapping[str, Callable[[Mapping[str, Any], str], Json]] = {
    "/v1/embeddings": embeddings,
    "/v2/embed": embed_v2,
    "/pooling": pooling,
    "/classify": classify,
    "/score": score,
    "/v1/score": score,
    "/rerank": rerank,
    "/v1/rerank": rerank,
    "/v2/rerank": rerank,
}


def form_fields(raw: bytes, content_type: str) -> dict[str, bytes]:
    """The fields of a multipart form, files by their content. Raises ApiError."""
    found = re.search(r'boundary="?([^\s;"]+)', content_type)
    if found is None:
        raise invalid("A multipart form with a boundary is expected.")
    parts = raw.split(b"--" + found[1].encode())[1:-1]
    matched = (_PART.search(part.removesuffix(b"\r\n")) for part in parts)
    return {match[1].decode(): match[2] for match in matched if match}


def transcription(fields: Mapping[str, bytes]) -> Json:
    """What was heard: the simulation tells sizes, as it has no ears."""
    audio = fields.get("file")
    if audio is None:
        raise invalid("1 validation error:\n  {'type': 'missing', 'loc': ('body', 'file')}")
    return {"text": f"{len(audio)} bytes of sound.", "usage": {"type": "duration", "seconds": 1 + len(audio) // 32_000}}
