"""Which headers cross the gateway."""

from __future__ import annotations

import pytest

from gateway.upstream.client import Headers
from gateway.upstream.headers import (
    client_request_id,
    downstream_response_headers,
    framing_fault,
    has_length,
    is_event_stream,
    own_location,
    upstream_request_headers,
)


def up(*headers: tuple[bytes, bytes], **options: object) -> Headers:
    return upstream_request_headers(list(headers), request_id=b"id-1", **options)  # type: ignore[arg-type]


def test_ordinary_headers_pass_in_order() -> None:
    """What is neither the hop's nor a secret goes through, repeated names too, `accept-encoding` unchanged."""
    headers = [(b"accept-encoding", b"gzip"), (b"x-a", b"1"), (b"content-type", b"application/json"), (b"x-a", b"2")]

    assert up(*headers) == [*headers, (b"x-request-id", b"id-1")]


def test_hop_by_hop_headers_stop_on_the_way_up() -> None:
    """HEADER-04: hop-by-hop headers, and those that any `Connection` header names, don't reach the back end."""
    kept = up(
        (b"connection", b"keep-alive"),
        (b"connection", b"X-Foo , close"),
        (b"x-foo", b"1"),
        (b"te", b"trailers"),
        (b"trailer", b"x-t"),
        (b"upgrade", b"h2c"),
        (b"http2-settings", b"AA"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-authorization", b"Basic canary"),
        (b"proxy-connection", b"keep-alive"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"3"),
        (b"expect", b"100-continue"),
    )

    assert kept == [(b"x-request-id", b"id-1")]


def test_host_is_left_to_the_connector() -> None:
    """HEADER-03: the client's Host does not go to the back end."""
    assert up((b"host", b"gateway.example")) == [(b"x-request-id", b"id-1")]


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"api-key", b"cookie", b"x-goog-api-key"])
def test_credentials_stop_here(name: bytes) -> None:
    """HEADER-05, HEADER-06: no credential of the client's goes on, with an own key for the back end or without."""
    assert up((name, b"Bearer canary")) == [(b"x-request-id", b"id-1")]
    assert up((name, b"Bearer canary"), api_key=b"own") == [
        (b"x-request-id", b"id-1"),
        (b"authorization", b"Bearer own"),
    ]


def test_hints_stop_here() -> None:
    """HEADER-09: `x-gateway-*` is for the gateway only."""
    assert up((b"x-gateway-pool", b"mtp"), (b"x-gateway-anything", b"1")) == [(b"x-request-id", b"id-1")]


def test_request_id_is_set_once() -> None:
    """HEADER-07, HEADER-08: the id that was chosen, passed or made, is the only one that goes on."""
    assert up((b"x-request-id", b"other")) == [(b"x-request-id", b"id-1")]


def test_names_of_the_callers_choice_can_be_dropped() -> None:
    """A caller may keep back more headers."""
    assert up((b"x-a", b"1"), (b"x-b", b"2"), drop=frozenset({b"x-a"})) == [
        (b"x-b", b"2"),
        (b"x-request-id", b"id-1"),
    ]


def test_peer_is_appended_to_forwarded_for() -> None:
    """The chain of proxies is continued where the peer is given, and passed as it is where not."""
    chain = [(b"x-forwarded-for", b"10.0.0.1"), (b"x-forwarded-for", b"10.0.0.2")]

    assert up(*chain, peer=b"10.0.0.3")[0] == (b"x-forwarded-for", b"10.0.0.1, 10.0.0.2, 10.0.0.3")
    assert up(peer=b"10.0.0.3")[0] == (b"x-forwarded-for", b"10.0.0.3")
    assert up(*chain)[:2] == chain


def test_hop_by_hop_headers_stop_on_the_way_down() -> None:
    """HEADER-04: the same rule for answers; `server`, `date` and ids of the back end stay behind too."""
    kept = downstream_response_headers(
        [
            (b"connection", b"close, x-foo"),
            (b"x-foo", b"1"),
            (b"keep-alive", b"timeout=5"),
            (b"transfer-encoding", b"chunked"),
            (b"trailer", b"x-t"),
            (b"server", b"uvicorn"),
            (b"date", b"now"),
            (b"x-request-id", b"theirs"),
            (b"x-gateway-pool", b"theirs"),
            (b"alt-svc", b"h3"),
            (b"content-type", b"application/json"),
        ]
    )

    assert kept == [(b"content-type", b"application/json")]


def test_answer_headers_pass_unchanged() -> None:
    """ERROR-03, HEADER-01: `retry-after`, the encoding's label and the length are the back end's."""
    headers = [(b"retry-after", b"30"), (b"content-encoding", b"gzip"), (b"content-length", b"9"), (b"x-a", b"1")]

    assert downstream_response_headers(headers) == headers


def test_each_cookie_of_an_answer_passes_on_a_line_of_its_own() -> None:
    """`set-cookie` is an end-to-end header, and the only one whose lines cannot be joined."""
    cookies = [(b"set-cookie", b"a=b; Path=/"), (b"set-cookie", b"c=d; Expires=Wed, 21 Oct 2026 07:28:00 GMT")]

    assert downstream_response_headers(cookies) == cookies


def test_length_of_a_rewritten_body_is_dropped() -> None:
    """HEADER-02: a body that is written anew can't keep the old length."""
    headers = [(b"content-length", b"9"), (b"x-a", b"1")]

    assert downstream_response_headers(headers, rewritten=True) == [(b"x-a", b"1")]


def test_stream_is_marked_against_buffering() -> None:
    """SSE-16: an event stream tells proxies in front not to hold it back."""
    kind = (b"content-type", b"text/event-stream; charset=utf-8")

    assert downstream_response_headers([kind]) == [
        kind,
        (b"x-accel-buffering", b"no"),
        (b"cache-control", b"no-cache"),
    ]


def test_marks_of_the_back_end_win() -> None:
    """SSE-16: a mark that is there already is not set twice."""
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ]

    assert downstream_response_headers(headers) == headers


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"Text/Event-Stream", True), (b"application/json", False), (b"text/plain; a=text/event-stream", False)],
)
def test_event_stream(value: bytes, expected: bool) -> None:
    """The content type decides, whatever its case."""
    assert is_event_stream([(b"x-a", b"1"), (b"content-type", value)]) is expected
    assert not is_event_stream([])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"abc-123", b"abc-123"),
        (b"", None),
        (b"a" * 128, b"a" * 128),
        (b"a" * 129, None),
        (b"a b", None),
        ("あ".encode(), None),
        (b"a\tb", None),
    ],
)
def test_request_id_of_the_client(value: bytes, expected: bytes | None) -> None:
    """HEADER-07: a client's id is repeated if it is safe in headers and logs."""
    assert client_request_id([(b"x-a", b"1"), (b"x-request-id", value)]) == expected
    assert client_request_id([]) is None


@pytest.mark.parametrize(
    ("headers", "sound"),
    [
        ([], True),
        ([(b"content-length", b"3")], True),
        ([(b"transfer-encoding", b"Chunked")], True),
        ([(b"content-length", b"3"), (b"content-length", b"3")], False),
        ([(b"content-length", b"3, 3")], False),
        ([(b"content-length", b"-1")], False),
        ([(b"content-length", b"")], False),
        ([(b"content-length", "３".encode())], False),
        ([(b"content-length", b"3"), (b"transfer-encoding", b"chunked")], False),
        ([(b"transfer-encoding", b"gzip, chunked")], False),
        ([(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")], False),
        ([(b"transfer-encoding", b"identity")], False),
    ],
)
def test_framing(headers: Headers, sound: bool) -> None:
    """An answer's end is either clear from its headers or the answer is refused."""
    assert (framing_fault(headers) is None) is sound


def test_length_is_marked() -> None:
    """Without a length or chunks, the connection's end is the body's."""
    assert has_length([(b"content-length", b"3")])
    assert has_length([(b"transfer-encoding", b"chunked")])
    assert not has_length([(b"x-a", b"1")])


@pytest.mark.parametrize(
    ("url", "location", "local"),
    [
        ("http://vllm:8000", b"http://vllm:8000/v1/embeddings?x=1", b"/v1/embeddings?x=1"),
        ("http://vllm:8000/engine/", b"http://vllm:8000/engine/v1/score", b"/v1/score"),
        ("http://vllm:8000/engine", b"/engine/v1/score", b"/v1/score"),
        ("http://vllm:8000", b"/v1/score", b"/v1/score"),
        (
            "http://vllm:8000",
            b"https://login.example/?to=http://vllm:8000/",
            b"https://login.example/?to=http://vllm:8000/",
        ),
        ("http://vllm:8000/engine", b"http://vllm:8000/other", b"http://vllm:8000/other"),
        ("http://vllm:8000", b"\xff:", b"\xff:"),
        ("http://vllm:8000", b"http://[x/", b"http://[x/"),
    ],
)
def test_a_redirect_to_the_endpoint_itself_is_one_to_this_gateway(url: str, location: bytes, local: bytes) -> None:
    """HEADER-03: a client can reach the gateway and not the back end, whose name is none of its business."""
    assert own_location([(b"location", location), (b"x-a", b"1")], url) == [(b"location", local), (b"x-a", b"1")]
