"""Resume tokens: proof that an answer is for the interaction that it names (policy 3, BEHAVIOUR 4.6, CASES 95).

    token  = base64url(claims) . base64url(HMAC-SHA256(base64url(claims)))        both without padding
    claims = [key id, action, tenant, interaction id, correlation id or null, step id, deadline in epoch ms]      as JSON

The interaction id holds execution, step and item. The correlation id is null where it equals the interaction id. A token is a pure
function of its claims and key, so the owner of the row verifies by signing the row once more and comparing: nothing in a token is
believed, or even read, before its signature holds. There is no clock in here: an answer is early or late as its interaction is.
Tokens that were signed here are kept until an answer comes, while there is room: most answers cost a look-up and the comparison.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from schemas.errors import TokenRejected, UsageError

ACTION_COMPLETE = "complete"
"""What a token lets its holder do: answer the interaction."""

SECRET_BYTES_MIN = 16
"""Shortest secret; RFC 2104 advises the hash's 32 bytes."""

TOKEN_CHARS_MAX = 4_096
"""Longer ones are refused unread."""

ISSUED_MAX = 16_384
"""Tokens kept for the answers to come: twice the default window. When it is full all are forgotten; they can be signed again."""

_TOKEN = re.compile(rb"Wy[IJ][A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{43}")
"""A token in any text: the base64url of `["`, then the signature's 32 bytes."""

_REMOVED = b"(resume token removed)"

_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")
_BLOCK_BYTES = 64  # of SHA-256

_encode = msgspec.json.Encoder().encode


class TokenClaims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a token with a good signature says; whether it is true, only the row knows."""

    key_id: str
    action: str
    tenant_id: str
    interaction_id: str
    same_or_correlation_id: str | None
    step_id: str
    deadline_ms: int

    @property
    def correlation_id(self) -> str:
        """The correlation id."""
        return self.interaction_id if self.same_or_correlation_id is None else self.same_or_correlation_id


_decode = msgspec.json.Decoder(TokenClaims).decode


_Claims = tuple[str, str, str, str, str | None, str, int]
"""The fields of `TokenClaims`, in order."""


class _Key(NamedTuple):
    """HMAC's two hashes with the key already taken in: a third of the time of a one-shot HMAC, and no secret to print."""

    key_id: str
    inner: hashlib._Hash
    outer: hashlib._Hash


def without_tokens(data: bytes) -> bytes:
    """Cut tokens out of what others are to read: whoever reads a refused answer must not be able to give another one."""
    return _TOKEN.sub(_REMOVED, data)


class TokenSigner:
    """Signs with the active key, verifies with every key that is still there.

    Args:
        active: Key id that signs.
        keys: Key id -> secret. Old keys verify until they are removed.

    Raises:
        UsageError: No such active key, or a key id or secret that will not do.
    """

    __slots__ = ("_active", "_issued", "_keys")

    def __init__(self, *, active: str, keys: Mapping[str, bytes]) -> None:
        if active not in keys:
            raise UsageError(f"tokens.active is {active!r}, which tokens.keys does not have; it has {sorted(keys)}")
        self._active = _key(active, keys[active])
        others = [_key(key_id, secret) for key_id, secret in keys.items() if key_id != active]
        self._keys = (self._active, *others)
        self._issued: dict[_Claims, bytes] = {}

    def sign(
        self,
        *,
        tenant_id: str,
        interaction_id: str,
        correlation_id: str,
        step_id: str,
        deadline_ms: int,
        action: str = ACTION_COMPLETE,
    ) -> str:
        """Make the token of an interaction; the same claims and key give the same token."""
        other = None if correlation_id == interaction_id else correlation_id
        claims = (self._active.key_id, action, tenant_id, interaction_id, other, step_id, deadline_ms)
        if len(self._issued) >= ISSUED_MAX:
            self._issued.clear()
        self._issued[claims] = token = _token(self._active, _base64url(_encode(claims)))
        return token.decode()

    def verify(
        self,
        token: str | None,
        *,
        tenant_id: str,
        interaction_id: str,
        correlation_id: str,
        step_id: str,
        deadline_ms: int,
        action: str = ACTION_COMPLETE,
    ) -> None:
        """Judge a token with its interaction's row: each claim must be the row's.

        Raises:
            TokenRejected: It is missing, malformed, forged, of a removed key, or of another interaction.
        """
        given = _bytes_of(token)
        other = None if correlation_id == interaction_id else correlation_id
        for key in self._keys:
            claims = (key.key_id, action, tenant_id, interaction_id, other, step_id, deadline_ms)
            wanted = self._issued.pop(claims, None) or _token(key, _base64url(_encode(claims)))
            if hmac.compare_digest(wanted, given):
                return
        raise _rejected()

    def verify_signature(
        self, token: str | None, *, interaction_id: str | None = None, action: str = ACTION_COMPLETE
    ) -> TokenClaims:
        """Judge a token where there is no row: at ingress and at doors. The owner of the row judges it again, in full.

        Args:
            token: As it came.
            interaction_id: The interaction that the answer names; None where the token alone names it.
            action: What the holder wants to do.

        Raises:
            TokenRejected: It is missing, malformed, forged, of a removed key, or names another interaction or action.
        """
        given = _bytes_of(token)
        signed = given.partition(b".")[0]
        for key in self._keys:
            if hmac.compare_digest(_token(key, signed), given):
                break
        else:
            raise _rejected()
        try:
            claims = _decode(binascii.a2b_base64(signed.translate(_FROM_URL) + b"=" * (-len(signed) % 4)))
        except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError):  # somebody signs other things with our key
            raise _rejected() from None
        if claims.key_id != key.key_id or claims.action != action:
            raise _rejected()
        if interaction_id is not None and interaction_id != claims.interaction_id:
            raise _rejected()
        return claims


def _key(key_id: str, secret: bytes) -> _Key:
    """Prepare a key; a message about one never holds its secret."""
    if not key_id or not key_id.isprintable():
        raise UsageError(f"tokens.keys has the key id {key_id!r}; give it a printable name")
    if len(secret) < SECRET_BYTES_MIN:
        raise UsageError(
            f"the secret of tokens.keys.{key_id} has {len(secret)} bytes; it needs at least {SECRET_BYTES_MIN}, "
            "32 random ones are good (`openssl rand -base64 32`)"
        )
    block = (hashlib.sha256(secret).digest() if len(secret) > _BLOCK_BYTES else secret).ljust(_BLOCK_BYTES, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
    return _Key(key_id, inner, hashlib.sha256(bytes(byte ^ 0x5C for byte in block)))


def _token(key: _Key, signed: bytes) -> bytes:
    """A whole token of the part that is signed."""
    inner = key.inner.copy()
    inner.update(signed)
    outer = key.outer.copy()
    outer.update(inner.digest())
    return signed + b"." + _base64url(outer.digest())


def _base64url(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_URL)


def _bytes_of(token: str | None) -> bytes:
    if not token:
        raise TokenRejected("no resume token; the step takes answers with the token of the request only")
    if len(token) > TOKEN_CHARS_MAX or not token.isascii():
        raise _rejected()
    return token.encode()


def _rejected() -> TokenRejected:
    """One message for every other failure, so that it tells a forger nothing."""
    return TokenRejected("resume token rejected")
