"""Multipart forms: the model is found wherever it stands and however the pieces are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.form import HELD_IN_MEMORY, ModelField, Upload
from gateway.errors import BadRequest, ConnectionLost

KIND = b'multipart/form-data; boundary="a b"; charset=utf-8'
FILE = (
    b'--a b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\ncontent-type: audio/wav\r\n\r\n%b\r\n'
)
FIELD = b'--a b\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n'
END = b"--a b--\r\n"


async def cut(whole: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(whole), size):
        yield whole[at : at + size]


async def joined(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


@given(st.binary(max_size=300), st.integers(1, 60), st.booleans())
def test_the_field_is_found_in_any_pieces(content: bytes, size: int, first: bool) -> None:
    """Before or after the file, whatever the file holds, cut anywhere; its place is exact."""
    parts = [FIELD % b"gemma \xe3\x81\x82", FILE % content]
    form = b"".join(parts if first else parts[::-1]) + END
    field = ModelField(KIND)
    fed = 0
    for at in range(0, len(form), size):
        fed = at + size
        if field.feed(form[at:fed]):
            break

    assert field.value == b"gemma \xe3\x81\x82"
    assert form[field.start : field.start + len(field.value)] == field.value
    if first:
        assert fed <= form.index(b"--a b", 5) + 5 + size


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("size", [1, 7, 65_536])
async def test_the_served_name_goes_in_its_place(first: bool, size: int) -> None:
    """Nothing else of the form changes, also where most of it was put aside on disk."""
    content = bytes(range(256)) * (2 if size < 10 else 3000)
    parts = [FIELD % b"alias", FILE % content]
    form = b"".join(parts if first else parts[::-1]) + END
    upload = Upload(cut(form, size), KIND)

    assert await upload.model() == "alias"
    assert await joined(upload.stream("served")) == form.replace(b"\r\n\r\nalias\r\n", b"\r\n\r\nserved\r\n")
    assert upload.whole
    upload.close()


async def test_a_form_can_be_sent_again_until_more_has_gone_than_is_kept() -> None:
    """A second attempt gets the same bytes, or an error that says why it cannot be."""
    late = FILE % b"x" + FIELD % b"m" + END
    upload = Upload(cut(late, len(late)), KIND, len(late))
    await upload.model()
    assert await joined(upload.stream("m")) == await joined(upload.stream("m")) == late
    upload.close()

    early = FIELD % b"m" + FILE % (b"x" * 500) + END
    upload = Upload(cut(early, 100), KIND)
    await upload.model()
    assert await joined(upload.stream(None)) == early
    with pytest.raises(ConnectionLost, match="cannot be sent again"):
        upload.stream(None)
    upload.close()


async def test_a_large_form_is_kept_on_disk() -> None:
    """Memory stays bounded by the spool's size where the model comes last."""
    form = FILE % bytes(HELD_IN_MEMORY * 2) + FIELD % b"m" + END
    upload = Upload(cut(form, 50_000), KIND)
    await upload.model()

    assert upload._held._rolled  # type: ignore[attr-defined]
    assert await joined(upload.stream("m")) == form
    upload.close()


async def test_a_form_without_a_model_or_a_boundary() -> None:
    """None is named, so the policy's first serves it; without a boundary there is no form."""
    form = FILE % b'content-disposition: form-data; name="model"\r\n\r\nfake' + END
    upload = Upload(cut(form, 10), KIND)

    assert await upload.model() is None
    assert await joined(upload.stream(None)) == form
    upload.close()
    with pytest.raises(BadRequest):
        Upload(cut(form, 10), b"multipart/form-data")


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_nonsense_is_no_form(pieces: list[bytes]) -> None:
    """Whatever comes, the scan ends and keeps little."""
    field = ModelField(b"multipart/form-data; boundary=x")
    for piece in pieces:
        field.feed(piece * 300)
        assert len(field._buffer) < 30_000
