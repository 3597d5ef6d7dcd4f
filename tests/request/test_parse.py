"""Bodies in, lenient views out; and the one edit that is ever made to a body."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.request.parse import parse_body, rewrite_model
from gateway.request.shorten import WHOLE_BYTES

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.just("model"), inner, max_size=4)
    ),
    max_leaves=16,
)


def fill(piece: str, size: int) -> str:
    return piece * (size // len(piece) + 1)


def message(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


LARGE: dict[str, Callable[[], dict[str, object]]] = {
    "english": lambda: {"messages": [message(fill("The tide is out. ", 10**6)), message("Why?")]},
    "japanese": lambda: {"messages": [message(fill("潮が引いている。", 400_000)), message("なぜ？")]},
    "image": lambda: {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + fill("iVBORw0K", 10**6)}},
                    {"type": "text", "text": "Why?"},
                ],
            }
        ]
    },
    "small messages": lambda: {"messages": [message(f"number {i}") for i in range(20_000)]},
    "quotes and line breaks": lambda: {"messages": [message(fill('he said "no"\n', 10**6)), message("Why?")]},
    "token ids": lambda: {"prompt": list(range(200_000))},
    "batch of token ids": lambda: {"prompt": [[7] * 50] * 8000},
}


class TestParseBody:
    @pytest.mark.parametrize("raw", [b"[]", b'"x"', b"null", b"5", b"true", b"NaN"])
    def test_refuses_what_is_not_an_object(self, raw: bytes) -> None:
        """BODY-05: JSON that is not an object is a 400 with an error object that says what it is."""
        with pytest.raises(BadRequest, match="must be a JSON object, not") as caught:
            parse_body(raw)

        assert caught.value.status == 400
        assert "error" in caught.value.object()

    @pytest.mark.parametrize(
        ("raw", "said"),
        [
            (b'{"model":', "line 1, column 10"),
            (b"", "empty"),
            (b" \n", "empty"),
            (b'{"a":1}\n}', "line 2, column 1"),
            (b'{"a":"\xff"}', "UTF-8 at byte 6"),
            (b'{"a":' * 100_000, "nested too deeply"),
            (b"[" * 600_000, "nested too deeply"),
            (b'{"a":' + b"9" * 5000 + b"x}", "not valid JSON"),
        ],
    )
    def test_says_where_a_broken_body_breaks(self, raw: bytes, said: str) -> None:
        """BODY-06: broken JSON is a 400 whose message says where, however it is broken."""
        with pytest.raises(BadRequest, match=said):
            parse_body(raw)

    @pytest.mark.parametrize(
        "raw",
        [
            rb'{"model":"m","messages":[{"role":"user","content":"half \ud83d"}]}',
            b'{"model":"m","temperature":NaN}',
            b'{"model":"m","logit_bias":{"1":-Infinity}}',
            b'{"model":"m","seed":123456789012345678901234567890}',
            b'\xef\xbb\xbf{"model":"m"}',
        ],
    )
    def test_takes_what_python_takes(self, raw: bytes) -> None:
        """BODY-04: lone surrogates, NaN and big integers are read, as vLLM's own parser reads them."""
        assert parse_body(raw).model == "m"

    @pytest.mark.parametrize(("model", "read"), [('"a"', "a"), ("null", None)])
    def test_reads_the_model(self, model: str, read: str | None) -> None:
        """A model that is null counts as missing."""
        assert parse_body(f'{{"model":{model}}}'.encode()).model == read

    @pytest.mark.parametrize(("model", "kind"), [("5", "a number"), ('["a"]', "an array"), ("{}", "an object")])
    def test_says_what_a_model_is_that_is_no_string(self, model: str, kind: str) -> None:
        """It is not missing, and no name to look for."""
        with pytest.raises(BadRequest, match=f"`model` must be a string, not {kind}"):
            parse_body(f'{{"model":{model}}}'.encode())

    @pytest.mark.parametrize(
        ("value", "stream"),
        [("true", True), ("1", True), ('"true"', True), ("false", False), ("null", False), ("2", False), ("[]", False)],
    )
    def test_streams_where_vllm_streams(self, value: str, stream: bool) -> None:
        """`stream` is true where pydantic would read it as true."""
        assert parse_body(f'{{"stream":{value}}}'.encode()).stream is stream

    @pytest.mark.parametrize("kind", LARGE)
    @pytest.mark.parametrize("first", [True, False])
    def test_reads_names_and_caps_of_a_large_body_exactly(self, kind: str, first: bool) -> None:
        """BODY-01: a large body of any kind is read through a short copy, names before or after the long part."""
        names = {"model": "large", "max_tokens": 7, "stream": True}
        data = {**names, **LARGE[kind]()} if first else {**LARGE[kind](), **names}

        body = parse_body(json.dumps(data, ensure_ascii=False).encode())

        assert (body.model, body.data["max_tokens"], body.stream) == ("large", 7, True)
        assert len(body.view) <= WHOLE_BYTES < body.size

    def test_counts_hidden_text_but_not_hidden_images(self) -> None:
        """What is cut out of a large body counts as text unless it is base64."""
        text = parse_body(json.dumps(LARGE["english"]()).encode())
        image = parse_body(json.dumps(LARGE["image"]()).encode())

        assert text.hidden_text > 900_000
        assert image.hidden_text == 0

    def test_reads_escaped_text_and_keeps_emoji_whole(self) -> None:
        """A large body in ASCII escapes is cut between escapes, never inside a surrogate pair."""
        body = parse_body(json.dumps({"prompt": fill("潮😀", 300_000), "model": "m"}).encode())

        assert body.model == "m"
        assert body.hidden_text > 10**6

    def test_reads_a_large_body_whole_where_no_short_copy_parses(self) -> None:
        """Names between two long parts of many small strings are found all the same."""
        many = [[{"k": "v"}]] * 60_000
        body = parse_body(json.dumps({"a": many, "model": "m", "b": {"c": {"d": many}}}).encode())

        assert body.model == "m"


class TestRewriteModel:
    @pytest.mark.parametrize(
        ("raw", "wanted"),
        [
            (b'{"model":"a"}', b'{"model":"new"}'),
            (b'{ "model" :\n "a\\u0020b" , "x": 1.0e0 }', b'{ "model" :\n "new" , "x": 1.0e0 }'),
            (b'{"metadata":{"model":"x"},"model":"a"}', b'{"metadata":{"model":"x"},"model":"new"}'),
            (b'{"model":"a","n":1,"model":"b"}', b'{"model":"new","n":1,"model":"new"}'),
            (b'{"mod\\u0065l":"a","x":{"model":"b"}}', b'{"mod\\u0065l":"new","x":{"model":"b"}}'),
            (b'{"x":["model","model"],"model":"a"}', b'{"x":["model","model"],"model":"new"}'),
            (b'{"x":"say \\"model\\": \\"y\\"","model":"a"}', b'{"x":"say \\"model\\": \\"y\\"","model":"new"}'),
            (b'{"my\\"model":"x","model":"a"}', b'{"my\\"model":"x","model":"new"}'),
            (b'{"model":null}', b'{"model":"new"}'),
            (b'{"x":1}', b'{"x":1}'),
        ],
    )
    def test_changes_only_the_top_level_value(self, raw: bytes, wanted: bytes) -> None:
        """HEADER-02, MODEL-01: only the value's bytes change; spacing, escapes and nested models stay."""
        assert rewrite_model(raw, parse_body(raw), "new") == wanted

    @settings(max_examples=60, deadline=None)
    @given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.text(max_size=12))
    def test_leaves_everything_else(self, data: dict[str, object], name: str) -> None:
        """For any body: parsed again, only the model differs."""
        data = {**data, "model": "old"}
        raw = json.dumps(data).encode()

        after = json.loads(rewrite_model(raw, parse_body(raw), name))

        assert after == {**json.loads(raw), "model": name}

    @pytest.mark.parametrize("kind", LARGE)
    def test_finds_the_place_in_a_large_body(self, kind: str) -> None:
        """A large body keeps every byte but the name's, wherever the short copy was cut."""
        raw = json.dumps({**LARGE[kind](), "model": "old", "x": "model"}).encode()

        after = rewrite_model(raw, parse_body(raw), "other")

        assert after == raw.replace(b'"model": "old"', b'"model": "other"')

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
    def test_what_is_not_utf8_is_sent_as_utf8(self, encoding: str) -> None:
        """Python's parser, and so vLLM, reads other encodings of Unicode; the name is exchanged in these as well."""
        raw = '{"model": "alias", "prompt": "要約 😀"}'.encode(encoding)

        assert json.loads(rewrite_model(raw, parse_body(raw), "new")) == {"model": "new", "prompt": "要約 😀"}

    def test_takes_names_in_any_script(self) -> None:
        """A name with quotes and Japanese letters is written as valid JSON."""
        raw = b'{"model":"a"}'

        assert json.loads(rewrite_model(raw, parse_body(raw), 'モデル "1"'))["model"] == 'モデル "1"'


def test_a_data_url_keeps_its_beginning() -> None:
    """The short copy keeps a data URL's media type."""
    url = "data:image/jpeg;base64," + base64.b64encode(bytes(600_000)).decode()
    body = parse_body(json.dumps({"messages": [{"role": "user", "content": [{"image_url": {"url": url}}]}]}).encode())

    assert b"data:image/jpeg;base64," in body.view
