"""``Content-Digest`` of a put (RFC 9530), verified while the body streams in.

sha-256 and sha-512 are verified, all that are given; other algorithms are ignored. The field is a dictionary of
structured values (RFC 8941), parsed strictly.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from api.errors import DigestMismatch
from storage.errors import ParameterInvalid

_BARE = (
    rb":[A-Za-z0-9+/=]*:"
    rb'|"(?:[ !#-\[\]-~]|\\["\\])*"'
    rb"|-?[0-9]{1,15}(?:\.[0-9]{1,3})?"
    rb"|\?[01]"
    rb"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"
)
_NAME = rb"[a-z*][a-z0-9_.*-]*"
_PARAMETERS = rb"(?:;[ ]*" + _NAME + rb"(?:=(?:" + _BARE + rb"))?)*"
_MEMBER = re.compile(rb"(" + _NAME + rb")(?:=(" + _BARE + rb"))?" + _PARAMETERS)
_COMMA = re.compile(rb"[ \t]*,[ \t]*")
_VERIFIED = {b"sha-256": "sha256", b"sha-512": "sha512"}


class DigestCheck:
    """The digests that a body has to have. ``update`` takes the body piece by piece, ``verify`` judges it."""

    __slots__ = ("_expected",)

    def __init__(self, expected: dict[str, bytes]) -> None:
        self._expected = [(name, hashlib.new(name), digest) for name, digest in expected.items()]

    def demand(self, name: str, digest: bytes) -> None:
        """Verify one more, beside those that the client declares."""
        self._expected.append((name, hashlib.new(name), digest))

    def update(self, data: bytes | memoryview) -> None:
        for _, running, _ in self._expected:
            running.update(data)

    def verify(self) -> None:
        """Raises ``DigestMismatch``."""
        for name, running, digest in self._expected:
            if running.digest() != digest:
                raise DigestMismatch(f"the {name} of the body is another one", algorithm=name)


def read_digests(fields: dict[bytes, bytes]) -> DigestCheck | None:
    """What to verify, or None if nothing is. Raises ``ParameterInvalid`` for a malformed field."""
    text = fields.get(b"content-digest")
    if text is None:
        return None
    expected: dict[str, bytes] = {}
    for name, value in _members(text.strip(b" ")):
        if name in _VERIFIED:
            # Of members of one name the last counts (RFC 8941, 4.2.2).
            expected[_VERIFIED[name]] = _digest(value, _VERIFIED[name])
    return DigestCheck(expected) if expected else None


def _members(text: bytes) -> list[tuple[bytes, bytes]]:
    members: list[tuple[bytes, bytes]] = []
    at = 0
    while True:
        member = _MEMBER.match(text, at)
        if member is None:
            raise _malformed()
        members.append((member[1], member[2] or b"?1"))
        if member.end() == len(text):
            return members
        comma = _COMMA.match(text, member.end())
        if comma is None:
            raise _malformed()
        at = comma.end()


def _digest(value: bytes, algorithm: str) -> bytes:
    if not value.startswith(b":"):
        raise _malformed()
    try:
        digest = base64.b64decode(value[1:-1], validate=True)
    except binascii.Error:
        raise _malformed() from None
    if len(digest) != hashlib.new(algorithm).digest_size:
        raise _malformed()
    return digest


def _malformed() -> ParameterInvalid:
    return ParameterInvalid("Content-Digest is not a dictionary of digests (RFC 9530)", parameter="Content-Digest")
