"""Requests that no sane client sends, made by Hypothesis: bodies, headers, paths, methods and framing.

Nothing here is random by itself: a case is drawn, so that a failing one shrinks and can be replayed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

MODEL = "m"


@dataclass(frozen=True, slots=True)
class Case:
    """What goes over one connection."""

    wire: bytes
    answers: int
    """Answers that must come. 0 where the framing is broken or the request never ends: an answer may come then."""
    form: str
    """What kind of nonsense it is, for the report."""


PATHS = (
    "/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/v1/responses",
    "/v1/messages", "/v1/embeddings", "/v1/audio/transcriptions", "/v1/rerank", "/v1/models", "/v1/models/m",
    "/gateway/explain", "/gateway/pools", "/gateway/policy", "/gateway/decisions?limit=x", "/tokenize", "/detokenize",
    "/health", "/ready", "/metrics", "/", "/docs", "/openapi.json", "/v1", "/v1/", "/v1/load_lora_adapter",
    "/v1/../health", "/v1/%2e%2e/metrics", "//v1/chat/completions", "/v1/chat/completions?x=%ff&&&=", "/v1/a;b", "*",
)  # fmt: skip
METHODS = ("POST", "POST", "POST", "POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")
FIELDS = (
    "model", "messages", "prompt", "input", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n",
    "min_tokens", "temperature", "top_p", "stop", "tools", "tool_choice", "response_format", "logprobs", "logit_bias",
    "top_logprobs", "seed", "user", "guided_json", "guided_choice", "structured_outputs", "chat_template_kwargs",
    "thinking_token_budget", "reasoning_effort", "allowed_token_ids", "ignore_eos", "min_p", "echo", "session_id",
    "vllm_xargs", "continue_final_message", "use_beam_search", "documents", "functions", "modalities", "best_of",
)  # fmt: skip
TYPES = (
    b"application/json", b"application/json; charset=utf-16", b"text/plain", b"", b"multipart/form-data",
    b"multipart/form-data; boundary=x", b"application/x-www-form-urlencoded", b"\xff\xfe", b"application/JSON;;;",
)  # fmt: skip
HEADERS = (
    b"x-request-id", b"x-gateway-pool", b"x-gateway-task", b"x-gateway-output-tokens", b"x-gateway-session",
    b"authorization", b"x-api-key", b"content-encoding", b"accept", b"accept-encoding", b"connection", b"expect",
    b"upgrade", b"te", b"trailer", b"host", b"cookie", b"x-forwarded-for", b"traceparent", b"range", b"content-type",
    b"origin", b"if-none-match", b"proxy-authorization", b"keep-alive", b"x-stainless-timeout",
)  # fmt: skip

odd_text = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "\ud800", "\x00", "\u202e", "NaN", "名" * 50, "a" * 5000, "-1", "1e999", "../..", "{{7*7}}"]),
)
odd_scalar = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**30, 10**400, 1.5, -0.0, 1e308, float("inf"), float("nan")]),
    st.floats(),
    odd_text,
)
odd_value = st.recursive(
    odd_scalar,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(FIELDS), odd_text), inner, max_size=4)
    ),
    max_leaves=8,
)
part = st.one_of(
    odd_value,
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "input_audio", "x"]), "text": odd_value}),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": odd_value}),
)
message = st.one_of(
    odd_value,
    st.fixed_dictionaries(
        {"role": st.one_of(st.sampled_from(["user", "system", "assistant", "tool", "developer"]), odd_value)},
        optional={
            "content": st.one_of(odd_value, st.lists(part, max_size=3)),
            "tool_calls": odd_value,
            "name": odd_value,
            "tool_call_id": odd_value,
        },
    ),
)


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    """A body that begins sane and has some of its fields replaced."""
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello, how are you?"}]}
    if draw(st.booleans()):
        body["messages"] = draw(st.one_of(odd_value, st.lists(message, max_size=4)))
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=4)):
        body[name] = draw(odd_value)
    if draw(st.integers(0, 3)):
        body["model"] = MODEL
    return body


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bytes that are, nearly are, or are far from a request's JSON."""
    form = draw(st.integers(0, 11))
    if form == 0:
        return draw(st.binary(max_size=300))
    if form == 1:
        opened = draw(st.sampled_from([b"[", b'{"messages":', b'{"model":"m","a":[', b'[{"a":']))
        return opened * draw(st.sampled_from([3, 200, 5000, 60_000]))
    if form == 2:
        depth = draw(st.sampled_from([10, 500, 20_000]))
        return b'{"model":"m","messages":' + b"[" * depth + b"]" * depth + b"}"
    if form == 3:
        digits = draw(st.sampled_from([20, 400, 5000, 50_000]))
        return b'{"model":"m","messages":[],"max_tokens":' + b"9" * digits + b"}"
    value = draw(odd_value) if form == 4 else draw(objects())
    raw = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if form == 5:
        return raw[: draw(st.integers(0, len(raw)))]
    if form == 6:
        at = draw(st.integers(0, len(raw)))
        return raw[:at] + draw(st.binary(max_size=4)) + raw[at:]
    if form == 7:
        return draw(st.sampled_from([b"\xef\xbb\xbf", b" \n\t", b"\x00", b"/**/"])) + raw
    if form == 8:
        return raw.decode("utf-8", "replace").encode(draw(st.sampled_from(["utf-16", "utf-32", "utf-16-le"])))
    if form == 9 and raw.startswith(b"{"):
        return b'{"model":"other","model":{},"stream":true,' + raw[1:]
    return raw


header_value = st.one_of(
    st.sampled_from(
        [b"", b"Bearer", b"Bearer  ", b"gzip", b"100-continue", b"websocket", b"close", b"upgrade", b"h2c"]
    ),
    st.sampled_from(
        [b"9" * 400, b"-5", b"\xff\xfe", b"a" * 8000, "名前".encode(), b"plain", b"mtp", b"code", b"\t\x0b"]
    ),
    st.binary(max_size=30).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b"").replace(b"\x00", b"")),
)


@st.composite
def heads(draw: st.DrawFn, path: str | None = None) -> bytes:
    """A request's first line and headers, without framing and without the empty line."""
    target = path or draw(st.one_of(st.sampled_from(PATHS), st.just("/v1/chat/completions")))
    method = draw(st.sampled_from(METHODS))
    lines = [f"{method} {target} HTTP/1.1".encode(), b"host: gateway"]
    lines.append(b"content-type: " + draw(st.one_of(st.just(TYPES[0]), st.sampled_from(TYPES))))
    for name in draw(st.lists(st.sampled_from(HEADERS), max_size=3)):
        lines.append(name + b": " + draw(header_value))
    return b"\r\n".join(lines) + b"\r\n"


@st.composite
def sane_framing(draw: st.DrawFn) -> Case:
    """A request that is odd in what it says and right in how it is framed."""
    head, body = draw(heads()), draw(bodies())
    # Headers that change the framing, or that make a server answer or close as it likes, promise nothing.
    lowered = head.lower()
    sure = not any(name in lowered for name in (b"\r\nconnection:", b"\r\nupgrade:", b"\r\nexpect:", b"\r\nte:"))
    sure = (
        sure and not any(byte in head for byte in b"\x0b\x7f") and not any(b < 32 and b not in b"\r\n\t" for b in head)
    )
    sure = sure and not head.startswith((b"BREW", b"HEAD")) and b" * HTTP" not in head
    if draw(st.booleans()):
        return Case(head + b"content-length: %d\r\n\r\n" % len(body) + body, int(sure), "content-length")
    size = draw(st.integers(1, 64))
    pieces = [body[i : i + size] for i in range(0, min(len(body), 40 * size), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return Case(head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", int(sure), "chunked")


@st.composite
def broken_framing(draw: st.DrawFn) -> Case:
    """Lengths that lie or contradict each other, chunks that are none, bytes that are no HTTP."""
    head, body = draw(heads("/v1/chat/completions")), draw(bodies())
    size = len(body)
    framing = draw(
        st.sampled_from(
            [
                b"content-length: %d\r\n" % (size + 10),
                b"content-length: %d\r\n" % max(size - 3, 0),
                b"content-length: %d\r\ncontent-length: %d\r\n" % (size, size + 1),
                b"content-length: %d\r\ntransfer-encoding: chunked\r\n" % size,
                b"content-length: -1\r\n",
                b"content-length: +%d\r\n" % size,
                b"content-length: 99999999999999999999999\r\n",
                b"content-length: 60000000\r\n",
                b"content-length: 1e3\r\n",
                b"transfer-encoding: chunked\r\n",
                b"transfer-encoding: gzip, chunked\r\n",
                b"transfer-encoding: chunked, identity\r\n",
                b"transfer-encoding:\x0bchunked\r\n",
                b"no colon here\r\n",
                b": empty name\r\n",
                b"folded: a\r\n b\r\ncontent-length: %d\r\n" % size,
                b"nul: \x00\r\ncontent-length: %d\r\n" % size,
                b"bare: a\ncontent-length: %d\n" % size,
            ]
        )
    )
    chunk = draw(
        st.sampled_from([b"", b"zz\r\n", b"-5\r\n", b"ffffffffffffffff1\r\n", b"5;x=\x00\r\nabcde\r\n", b"3\r\nabcX"])
    )
    return Case(head + framing + b"\r\n" + chunk + body, 0, "broken framing")


@st.composite
def pipelined(draw: st.DrawFn) -> Case:
    """Several requests in one write; each must have its answer."""
    wire = b""
    count = draw(st.integers(2, 5))
    for _ in range(count):
        body = json.dumps(draw(objects())).encode("utf-8", "surrogatepass")
        wire += b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    return Case(wire, count, "pipelined")


garbage = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.sampled_from(
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /v1/chat/completions HTTP/1.0\r\n\r\n",
            b"GET http://127.0.0.1:1/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
            b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n\r\n",
            b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 3000 + b"\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60,
        ]
    ),
).map(lambda wire: Case(wire, 0, "no HTTP"))

cases = st.one_of(
    sane_framing(), sane_framing(), sane_framing(), sane_framing(), broken_framing(), pipelined(), garbage
)
