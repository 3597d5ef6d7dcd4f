"""Unpacking request bodies, within their limit."""

from __future__ import annotations

import contextlib
import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.body import inflate
from gateway.errors import BadRequest, BodyTooLarge

GZIP, EITHER = 31, 47


@given(st.lists(st.binary(max_size=200_000), min_size=1, max_size=3))
def test_members_come_out_in_order(members: list[bytes]) -> None:
    """gzip streams may be joined, as RFC 1952 has it."""
    packed = b"".join(gzip.compress(member) for member in members)

    assert inflate(packed, GZIP, 10_000_000) == b"".join(members)
    assert inflate(packed, EITHER, 10_000_000) == b"".join(members)


def test_a_bomb_costs_the_limit_and_no_more() -> None:
    """BODY-01: the limit holds for what is unpacked; at the limit it still fits."""
    packed = gzip.compress(bytes(1_000_000))

    assert len(inflate(packed, GZIP, 1_000_000)) == 1_000_000
    with pytest.raises(BodyTooLarge):
        inflate(packed, GZIP, 999_999)
    with pytest.raises(BodyTooLarge):
        inflate(zlib.compress(bytes(1_000_000)), EITHER, 10)


@pytest.mark.parametrize("raw", [b"{}", gzip.compress(b"x" * 5000)[:-9], gzip.compress(b"abc")[:12], b"\x1f\x8b"])
def test_what_is_broken_is_the_clients_error(raw: bytes) -> None:
    """A cut or falsely labelled body is 400 and never 500."""
    with pytest.raises(BadRequest):
        inflate(raw, GZIP, 1_000_000)


@given(st.binary(max_size=200))
def test_nothing_else_comes_of_any_bytes(raw: bytes) -> None:
    """Whatever the bytes, there is an answer or an error of ours."""
    with contextlib.suppress(BadRequest, BodyTooLarge):
        inflate(b"\x1f\x8b\x08\x00" + raw, GZIP, 1000)
