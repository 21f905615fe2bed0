"""Tokens: how they are made, how they are kept, how one is found.

A token is 256 random bits behind a fixed prefix. Only its SHA-256 is kept. A slow hash (scrypt, Argon2) makes it costly
to try the passwords that people choose; of 2^256 random tokens nobody tries a share worth speaking of, whatever a try
costs, and a slow hash would cost each request milliseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from api.access.credentials import STRANGER, Credentials

PREFIX = "rbd_"
"""So that people and scanners for leaked secrets recognise one."""
SECRET_BYTES = 32
INDEX_BYTES = 8


def make_token() -> str:
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the token file: what is kept of a token, and what it allows."""

    digest: bytes
    credentials: Credentials


class TokenTable:
    """Finds the credentials of a token.

    The first bytes of the digest choose a bucket, of the rest a comparison in constant time decides. What the choice of
    the bucket takes may tell something of a stored digest's first bytes; that is no step towards a token, since nobody
    can make a token for a wanted digest.
    """

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._buckets: dict[bytes, list[Token]] = {}
        self.count = 0
        for token in tokens:
            self._buckets.setdefault(token.digest[:INDEX_BYTES], []).append(token)
            self.count += 1

    def find(self, token: bytes) -> Credentials:
        """The credentials of a presented token; ``STRANGER`` if it isn't known."""
        digest = digest_of(token)
        for known in self._buckets.get(digest[:INDEX_BYTES], ()):
            if hmac.compare_digest(known.digest, digest):
                return known.credentials
        return STRANGER
