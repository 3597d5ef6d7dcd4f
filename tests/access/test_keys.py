"""Who is let in, and what a refusal says."""

from __future__ import annotations

from hashlib import sha256

import pytest

from gateway.access.keys import Keyring
from gateway.errors import Forbidden, Unauthorized
from gateway.policy.schema import Access
from tests.access.fakes import make_key

ALPHA, BETA = make_key("alpha"), make_key("beta")
OPERATOR = sha256(b"operator").digest()


def test_a_key_is_found_by_its_credential() -> None:
    """Each credential opens its own key."""
    ring = Keyring(Access(keys=(ALPHA, BETA)))

    assert not ring.open
    assert ring.check(b"alpha") is ALPHA
    assert ring.check(b"beta") is BETA


@pytest.mark.parametrize("credential", [None, b"", b"alph", b"alphaa", b"ALPHA", b"\xff\x00", b"x" * 100_000])
def test_every_refusal_has_the_same_words(credential: bytes | None) -> None:
    """Missing, wrong and malformed keys cannot be told apart, and none is echoed."""
    with pytest.raises(Unauthorized) as caught:
        Keyring(Access(keys=(ALPHA,))).check(credential)

    assert caught.value.message == "invalid or missing API key; send `Authorization: Bearer KEY`"
    assert caught.value.status == 401


def test_an_empty_credential_is_no_key_even_if_listed() -> None:
    """A key made from an empty secret opens nothing."""
    with pytest.raises(Unauthorized):
        Keyring(Access(keys=(make_key(""),))).check(b"")


@pytest.mark.parametrize("access", [None, Access(operator_key=OPERATOR)])
def test_without_keys_everybody_may_ask(access: Access | None) -> None:
    """Open access takes any credential for none: clients often send a placeholder."""
    ring = Keyring(access)

    assert ring.open
    assert ring.check(None) is None
    assert ring.check(b"EMPTY") is None


def test_operators_have_a_key_of_their_own() -> None:
    """A client's key does not open the operators' endpoints, nor theirs the models."""
    ring = Keyring(Access(keys=(ALPHA,), operator_key=OPERATOR))

    ring.check_operator(b"operator")
    for credential in (None, b"", b"alpha", b"operato"):
        with pytest.raises(Unauthorized):
            ring.check_operator(credential)
    with pytest.raises(Unauthorized):
        ring.check(b"operator")


def test_without_an_operator_key_operators_endpoints_follow_the_rest() -> None:
    """Open where everything is; closed where clients need keys, whatever is sent."""
    Keyring(None).check_operator(None)
    Keyring(Access()).check_operator(None)
    for credential in (None, b"alpha"):
        with pytest.raises(Forbidden):
            Keyring(Access(keys=(ALPHA,))).check_operator(credential)


def test_a_keyring_shows_no_digest() -> None:
    """What may land in a log holds neither key nor digest."""
    ring = Keyring(Access(keys=(ALPHA,), operator_key=OPERATOR))

    assert ALPHA.sha256.hex() not in repr(ring) + repr(ALPHA)
    assert repr(ALPHA.sha256) not in repr(ring) + repr(ALPHA)
