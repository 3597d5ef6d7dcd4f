"""API keys: only digests are kept, and a credential is compared as a digest.

The look-up by digest leaks no part of a key: to steer how far a comparison runs, a caller would need keys whose
SHA-256 begins as he likes, and learning a digest does not give the key. The match is confirmed in constant time.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest

from gateway.errors import Forbidden, Unauthorized
from gateway.policy.schema import Access, AccessKey

_REFUSAL = "invalid or missing API key; send `Authorization: Bearer KEY`"


class Keyring:
    """The keys of one policy. Immutable: a reload makes another."""

    __slots__ = ("_keys", "_operator")

    def __init__(self, access: Access | None) -> None:
        keys = access.keys if access else ()
        self._keys: Mapping[bytes, AccessKey] = {key.sha256: key for key in keys}
        self._operator = access.operator_key if access else None

    @property
    def open(self) -> bool:
        """Whether models may be used without a key: the policy has none."""
        return not self._keys

    def check(self, credential: bytes | None) -> AccessKey | None:
        """The key that the credential is; None where access is open, whatever was sent.

        Raises Unauthorized, with the same words for a missing, a malformed and an unknown key.
        """
        if not self._keys:
            return None
        digest = sha256(credential or b"").digest()
        key = self._keys.get(digest)
        if key is None or not credential or not compare_digest(key.sha256, digest):
            raise Unauthorized(_REFUSAL)
        return key

    def check_operator(self, credential: bytes | None) -> None:
        """Whether the credential opens the operators' endpoints. A client's key never does.

        Without an operator key they are open where everything is, and closed where clients need keys.

        Raises Unauthorized for another credential, Forbidden where no key would do.
        """
        if self._operator is None:
            if self._keys:
                raise Forbidden("the operators' endpoints are closed: the policy has no `access.operator_key`")
            return
        if not credential or not compare_digest(self._operator, sha256(credential).digest()):
            raise Unauthorized(_REFUSAL)
